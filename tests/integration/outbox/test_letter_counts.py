"""How many dead letters each endpoint has, counted page by page."""

import pytest
import redis

from sweeperd.outbox import dead_letters
from sweeperd.store import Shard


@pytest.mark.parametrize(("counted", "total", "complete"), [(100, 5, True), (6, 5, True), (4, 4, False)])
def test_the_oldest_dead_letters_are_counted(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, counted: int, total: int, complete: bool
) -> None:
    monkeypatch.setattr(dead_letters, "COUNT_PAGE", 2)
    monkeypatch.setattr(dead_letters, "COUNTED", counted)
    for number in range(5):
        client.xadd("sweeperd:dead-letters", {"endpoint": "ab"[number % 2], "reason": "HTTP 500"})
    counts = dead_letters.LetterCounts()
    for _ in range(2):
        counts.read(shard)
        assert (counts.total, counts.by_endpoint.total(), counts.complete) == (5, total, complete)
    assert counts.by_endpoint["b"] == 2
    client.delete("sweeperd:dead-letters")
    assert (counts.read(shard).total, counts.by_endpoint.total(), counts.complete) == (0, 0, True)
