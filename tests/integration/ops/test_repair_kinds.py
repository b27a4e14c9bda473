"""The repair of the index of a configured kind, and the way from there to the quarantine."""

import tomllib
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.context import Timing
from sweeperd.ops.reconcile.report import Fault, ReconcileReport
from sweeperd.ops.reconcile.subjects import subject_of
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.ops.reconcile.walk import mend, reconcile
from sweeperd.store import Shard
from tests.support.kind_settings import SEAT_HOLD, hold_seats

FUTURE = 4_000_000_000_000
SETTINGS = Settings.model_validate(tomllib.loads(SEAT_HOLD))


def walk(shard: Shard) -> ReconcileReport:
    return reconcile(subject_of(shard, SETTINGS, "seat-hold", Throttle(timing=Timing(settle_faults=0.0))))


def test_a_hash_with_a_deadline_that_cannot_be_read_is_lost_too(shard: Shard, client: redis.Redis) -> None:
    """As for a reservation, the repair leads to the quarantine. A hash without a deadline may be anything."""
    hold_seats(client, "lost", 0, FUTURE)
    hold_seats(client, "never due", 0, FUTURE)
    hold_seats(client, "ended", 0, FUTURE, state="SOLD")
    for entry in ("lost", "never due", "ended"):
        client.hset(f"seats:hold:{entry}", "expires_at", "soon")
    client.zrem("seats:ttl", "lost", "ended")
    client.hset("seats:hold:other", "state", "HELD")
    report = walk(shard)
    assert dict(report.found) == {Fault.LOST: 1, Fault.WRONG_SCORE: 1}
    assert mend(subject_of(shard, SETTINGS, "seat-hold"), report).changed == 2
    assert sorted(client.zrange("seats:ttl", 0, -1, withscores=True)) == [(b"lost", 0), (b"never due", 0)]
    assert dict(walk(shard).found) == {}


def test_an_entry_that_is_back_in_the_index_has_no_mark_of_a_quarantine(shard: Shard, client: redis.Redis) -> None:
    marks: dict[str, Any] = {"quarantined_at": 1, "quarantine_reason": "INVALID_PLAN", "quarantine_detail": "why"}
    hold_seats(client, "lost", 0, FUTURE, **marks)
    client.zrem("seats:ttl", "lost")
    assert mend(subject_of(shard, SETTINGS, "seat-hold"), walk(shard)).changed == 1
    assert client.hkeys("seats:hold:lost") == [b"state", b"show", b"qty", b"expires_at"]
