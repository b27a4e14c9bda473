"""The walk over one configured kind, where work goes on while it walks."""

import tomllib
from collections.abc import Callable

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.context import Timing
from sweeperd.ops.reconcile import Fault, ReconcileReport, Throttle, WalkStage, keyspace, mend, reconcile, subject_of
from sweeperd.ops.reconcile.counters import fingerprint
from sweeperd.store import Shard
from tests.support.kind_settings import SEAT_HOLD, hold_seats

FUTURE = 4_000_000_000_000
SUMS = (
    'give_back = ["HINCRBY seats:{show} held -{qty}"]\nsums = [{ key = "seats:{show}", field = "held", of = "qty" }]\n'
)
SETTINGS = Settings.model_validate(tomllib.loads(SEAT_HOLD + SUMS))
SUM_STAGES = (WalkStage.COUNTERS, WalkStage.AGAIN)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys on one page, however large the server's table has become in other tests."""
    monkeypatch.setattr(keyspace, "PAGE", 10_000_000)


def walk(shard: Shard, in_each_walk_over_the_sums: Callable[[int], None]) -> ReconcileReport:
    """Walk; the function is called in each walk over the sums, when the names of the hashes are known."""
    walks = 0

    def progress(stage: WalkStage, _done: int, _total: int) -> None:
        nonlocal walks
        if stage in SUM_STAGES:
            in_each_walk_over_the_sums(walks)
            walks += 1

    subject = subject_of(shard, SETTINGS, "seat-hold", Throttle(timing=Timing(settle_faults=0.0)))
    subject.progress = progress
    return reconcile(subject)


def test_a_drift_that_stays_is_found(shard: Shard, client: redis.Redis) -> None:
    hold_seats(client, "a", 3, FUTURE)
    client.hset("seats:hamlet", "held", 4)
    report = walk(shard, lambda _: None)
    assert (dict(report.found), report.unjudged) == ({Fault.SUM_DRIFT: 1}, 0)


def test_an_amount_of_too_many_digits_counts_for_nothing(shard: Shard, client: redis.Redis) -> None:
    hold_seats(client, "a", 3, FUTURE)
    hold_seats(client, "b", "9" * 5000, FUTURE)
    client.hset("seats:hamlet", "held", 3)
    assert dict(walk(shard, lambda _: None).found) == {}


def test_a_hold_that_takes_the_place_of_another_is_no_drift(shard: Shard, client: redis.Redis) -> None:
    """A walk may see neither of two holds that follow each other, and the counter never changes."""
    client.hset("seats:hamlet", "held", 1)

    def replace(number: int) -> None:
        if number < 4:
            client.delete(f"seats:hold:{number}")
            hold_seats(client, str(number + 1), 1, FUTURE)

    hold_seats(client, "0", 1, FUTURE)
    report = walk(shard, replace)
    assert (dict(report.found), report.unjudged) == ({}, 1)


def test_other_entries_with_the_same_sum_are_no_agreement(shard: Shard, client: redis.Redis) -> None:
    hold_seats(client, "a", 1, FUTURE)
    hold_seats(client, "b", 2, FUTURE)
    client.hset("seats:hamlet", "held", 4)

    def swap(number: int) -> None:
        client.hset("seats:hold:a", "qty", 1 + number % 2)
        client.hset("seats:hold:b", "qty", 2 - number % 2)

    report = walk(shard, swap)
    assert (dict(report.found), report.unjudged) == ({}, 1)


def test_two_entries_that_exchange_their_amounts_have_another_fingerprint() -> None:
    """Whatever their names are."""
    for number in range(1000):
        a, b = b"a%d" % number, b"b%d" % number
        before, after = (fingerprint(a, one) + fingerprint(b, 3 - one) for one in (1, 2))
        assert before != after


def test_where_nothing_is_suspect_the_sums_are_added_up_once(shard: Shard, client: redis.Redis) -> None:
    hold_seats(client, "a", 3, FUTURE)
    client.hset("seats:hamlet", "held", 3)
    walks: list[int] = []
    report = walk(shard, walks.append)
    assert (walks, report.unjudged, dict(report.found)) == ([0], 0, {})


def test_what_another_operator_has_mended_is_not_counted_as_changed(shard: Shard, client: redis.Redis) -> None:
    hold_seats(client, "lost", 0, FUTURE)
    client.delete("seats:ttl")
    client.zadd("seats:ttl", {"orphan": FUTURE})
    report = walk(shard, lambda _: None)
    first, second = (mend(subject_of(shard, SETTINGS, "seat-hold"), report) for _ in range(2))
    assert (first.changed, second.changed) == (2, 0)
    assert dict(first.mended) == dict(second.mended) == {Fault.LOST: 1, Fault.ORPHAN: 1}
    assert client.zrange("seats:ttl", 0, -1) == [b"lost"]
