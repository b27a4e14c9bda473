"""What the status page shows beyond `status`."""

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.ops import show
from sweeperd.ops.show import ReasonCount, read_details
from sweeperd.store.shard import Shard


def set_aside(client: redis.Redis, **reasons: str) -> None:
    for at, (entry, reason) in enumerate(reasons.items()):
        client.zadd("sweeperd:quarantine", {entry: at})
        client.hset(f"reservation:res_{entry}", "quarantine_reason", reason)


def test_the_quarantine_by_reason_the_newest_first(shard: Shard, client: redis.Redis) -> None:
    set_aside(client, a="INVALID_STATE", b="INVALID_STATE", c="INVALID_BUDGET", d="INVALID_STATE", e="INVALID_STATE")
    client.zadd("sweeperd:quarantine", {"text": 10, "gone": 11})
    client.set("reservation:res_text", "no hash")
    assert read_details(Settings(), shard).reasons == (
        ReasonCount("reservations", "INVALID_STATE", 4, ("e", "d", "b")),
        ReasonCount("reservations", "INVALID_BUDGET", 1, ("c",)),
        ReasonCount("reservations", "WRONG_TYPE", 1, ("text",)),
        ReasonCount("reservations", "", 1, ("gone",)),
    )


def test_only_the_newest_are_counted(shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "COUNTED", 2)
    set_aside(client, a="INVALID_STATE", b="INVALID_STATE", c="INVALID_STATE")
    assert read_details(Settings(), shard).reasons == (ReasonCount("reservations", "INVALID_STATE", 2, ("c", "b")),)
