"""Tests previews of a kind on a real Redis: what they tell while they run, and what ends them."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.errors import KindRefused
from sweeperd.store import Shard
from sweeperd.sweep import Kind, Outcome
from sweeperd.sweep.preview import Preview, PreviewStage, preview_due, preview_sample
from tests.lua.kinds.world import SCRIPT, SEATS, Seats, scripted

PREVIEWS: dict[str, Callable[[Shard, Kind], Preview]] = {
    "due": lambda shard, kind: preview_due(shard, kind, 10),
    "sample": lambda shard, kind: preview_sample(shard, kind, 10),
}


def held(client: redis.Redis, kind: dict[str, Any]) -> Kind:
    """The kind with three entries that are due."""
    seats = Seats(client, kind)
    seats.show(held=9)
    for entry in (b"h1", b"h2", b"h3"):
        seats.hold(entry)
    return seats.kind


def test_each_page_is_told(shard: Shard, client: redis.Redis) -> None:
    told: list[tuple[PreviewStage, int, int]] = []
    preview_due(shard, held(client, SEATS), 2, lambda *page: told.append(page))
    assert told == [(PreviewStage.DECIDING, 2, 3), (PreviewStage.DECIDING, 3, 3)]


@pytest.mark.parametrize("preview", PREVIEWS)
def test_a_kind_that_cannot_be_swept_is_refused(shard: Shard, client: redis.Redis, preview: str) -> None:
    with pytest.raises(KindRefused, match="does not compile, line 1"):
        PREVIEWS[preview](shard, held(client, scripted("function decide(")))


@pytest.mark.parametrize("preview", PREVIEWS)
@pytest.mark.parametrize("kind", [SEATS, scripted(SCRIPT)], ids=["declared", "script"])
def test_an_entry_that_fails_hides_no_other(
    shard: Shard, client: redis.Redis, preview: str, kind: dict[str, Any]
) -> None:
    made = held(client, kind)
    client.hset("seats:hold:h1", "state", "SOLD")
    client.set("sweeperd:events", "text")
    counts = PREVIEWS[preview](shard, made).counts
    assert (counts[Outcome.ERROR], counts.total()) == (2, 3)
