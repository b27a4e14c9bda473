"""The walk over one configured kind, where work goes on while it walks."""

import itertools
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.ops.reconcile import keyspace
from sweeperd.ops.reconcile.faults import Fault, WalkStage
from sweeperd.ops.reconcile.indexing import survey
from sweeperd.ops.reconcile.report import ReconcileReport
from sweeperd.ops.reconcile.subjects import subject_of
from sweeperd.ops.reconcile.sums import fingerprint
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.ops.reconcile.walk import mend, reconcile
from sweeperd.store import Shard
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.servers import Server

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


def walk_once(shard: Shard, settings: Settings) -> ReconcileReport:
    return reconcile(subject_of(shard, settings, "seat-hold"))


def test_a_kind_of_which_no_entry_is_alive_is_not_judged(shard: Shard, client: redis.Redis) -> None:
    """With a wrong word in `active` every hash looks ended, and a walk that skips them finds nothing."""
    for entry in ("a", "b", "lost"):
        hold_seats(client, entry, 1, FUTURE)
    hold_seats(client, "over", 1, FUTURE, state="EXPIRED")
    client.zrem("seats:ttl", "lost")
    client.pexpire("seats:hold:a", 1000_000)
    assert dict(walk_once(shard, SETTINGS).found) == {Fault.LOST: 1, Fault.SHORT_TTL: 1}
    wrong = Settings.model_validate(tomllib.loads(SEAT_HOLD.replace('state = "HELD"', 'state = "held"')))
    report = walk_once(shard, wrong)
    assert (report.held, report.held_because, dict(report.found)) == (3, "state is HELD, active says held", {})
    assert mend(subject_of(shard, wrong, "seat-hold"), report).changed == 0
    assert not client.zscore("seats:ttl", "lost")
    document = report.document(shard)
    assert (document.held, document.held_because) == (3, report.held_because)
    hold_seats(client, "alive", 1, FUTURE, state="held")
    report = walk_once(shard, wrong)
    assert (report.held, report.held_because) == (0, "")


def test_counters_are_not_judged_by_hashes_that_are_not(shard: Shard, client: redis.Redis) -> None:
    """With a wrong word in `active` no hash counts, and each counter would differ from a sum of nothing."""
    hold_seats(client, "a", 3, FUTURE)
    client.hset("seats:hamlet", "held", 3)
    wrong = Settings.model_validate(tomllib.loads((SEAT_HOLD + SUMS).replace('state = "HELD"', 'state = "held"')))
    report = walk_once(shard, wrong)
    assert (report.held, report.counters, report.unjudged, dict(report.found)) == (1, 1, 1, {})


def walk(shard: Shard, in_each_walk_over_the_sums: Callable[[int], None] = lambda _: None) -> ReconcileReport:
    """Walk; the function is called in each walk over the sums, when the names of the hashes are known."""
    walks = 0

    def progress(stage: WalkStage, _done: int, _total: int) -> None:
        nonlocal walks
        if stage in SUM_STAGES:
            in_each_walk_over_the_sums(walks)
            walks += 1

    subject = subject_of(shard, SETTINGS, "seat-hold")
    subject.progress = progress
    return reconcile(subject)


def test_a_drift_that_stays_is_found(shard: Shard, client: redis.Redis) -> None:
    hold_seats(client, "a", 3, FUTURE)
    client.hset("seats:hamlet", "held", 4)
    report = walk(shard)
    assert (dict(report.found), report.unjudged) == ({Fault.SUM_DRIFT: 1}, 0)


def test_a_drift_is_found_where_the_score_is_the_deadline(shard: Shard, client: redis.Redis) -> None:
    settings = Settings.model_validate(tomllib.loads((SEAT_HOLD + SUMS).replace('deadline = "expires_at"', "")))
    hold_seats(client, "a", 3, FUTURE)
    client.hset("seats:hamlet", "held", 4)
    report = walk_once(shard, settings)
    assert (dict(report.found), report.unjudged) == ({Fault.SUM_DRIFT: 1}, 0)


def test_an_amount_of_too_many_digits_counts_for_nothing(shard: Shard, client: redis.Redis) -> None:
    hold_seats(client, "a", 3, FUTURE)
    hold_seats(client, "b", "9" * 5000, FUTURE)
    client.hset("seats:hamlet", "held", 3)
    assert dict(walk(shard).found) == {}


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
        before, after = (fingerprint(a, one, b"5") + fingerprint(b, 3 - one, b"5") for one in (1, 2))
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
    report = walk(shard)
    first, second = (mend(subject_of(shard, SETTINGS, "seat-hold"), report) for _ in range(2))
    assert (first.changed, second.changed) == (2, 0)
    assert dict(first.mended) == dict(second.mended) == {Fault.LOST: 1, Fault.ORPHAN: 1}
    assert client.zrange("seats:ttl", 0, -1) == [b"lost"]


class Measuring(Throttle):
    """Notes the keys of each step, and whether it told how long Redis had worked on it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, bool]] = []

    def end(self, keys: int = 0, busy: float | None = None) -> None:
        self.steps.append((keys, busy is not None))
        super().end(keys, busy)


def test_a_step_tells_how_busy_redis_is_and_counts_a_key_once(shard: Shard, client: redis.Redis) -> None:
    """Otherwise each walk would rest as beside a busy server, and go at half of `--rate`."""
    for number in range(120):
        hold_seats(client, f"{number}", 1, FUTURE)
    throttle = Measuring()
    subject = subject_of(shard, SETTINGS, "seat-hold", throttle)
    survey(subject, "*")
    scripts = [busy for keys, busy in throttle.steps if not keys]
    assert len(scripts) >= 3
    assert None not in scripts
    assert any(scripts), "a step may be too short for the server's clock"
    assert [keys for keys, _ in throttle.steps if keys] == [keyspace.PAGE], "of the SCAN"


class Meddling(Throttle):
    """Calls a function whenever the walk waits between two sights of a fault."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        super().__init__()
        self._meddle = meddle

    def end(self, *_: object, **__: object) -> None:
        """Without a rest after a step."""

    def wait(self, seconds: float) -> None:
        self._meddle()


def meddled(shard: Shard, meddle: Callable[[], object]) -> ReconcileReport:
    return reconcile(subject_of(shard, SETTINGS, "seat-hold", Meddling(meddle)))


def test_a_slot_that_is_used_again_between_two_sights_is_not_lost(shard: Shard, client: redis.Redis) -> None:
    """Both holds are seen before their service has written the index entry."""
    hold_seats(client, "slot", 0, FUTURE)
    client.zrem("seats:ttl", "slot")
    waits = itertools.count(1)

    def serve() -> None:
        match next(waits):
            case 1:
                client.hset("seats:hold:slot", "expires_at", FUTURE + 1)
            case 2:
                client.zadd("seats:ttl", {"slot": FUTURE + 1})

    assert dict(meddled(shard, serve).found) == {}
    assert next(waits) > 2


def test_a_lost_hash_is_found_though_its_deadline_moves_all_the_time(shard: Shard, client: redis.Redis) -> None:
    hold_seats(client, "renewed", 0, FUTURE)
    client.zrem("seats:ttl", "renewed")
    moved = itertools.count(FUTURE)
    report = meddled(shard, lambda: client.hset("seats:hold:renewed", "expires_at", next(moved)))
    assert dict(report.found) == {Fault.LOST: 1}


def test_a_slot_that_has_ended_is_not_lost_when_it_is_used_again(shard: Shard, client: redis.Redis) -> None:
    hold_seats(client, "slot", 0, FUTURE, state="SOLD")
    client.zrem("seats:ttl", "slot")
    assert dict(meddled(shard, lambda: client.hset("seats:hold:slot", "state", "HELD")).found) == {}


def test_the_repair_leaves_alone_what_has_changed_since_the_walk(shard: Shard, client: redis.Redis) -> None:
    """Index entries whose hash is about to be written; a hash whose index entry is about to be written, and an end."""
    client.zadd("seats:ttl", {"orphan": FUTURE, "used again": FUTURE})
    for entry in ("lost", "used again too", "sold"):
        hold_seats(client, entry, 0, FUTURE)
        client.zrem("seats:ttl", entry)
    report = walk(shard)
    assert dict(report.found) == {Fault.LOST: 3, Fault.ORPHAN: 2}
    client.zadd("seats:ttl", {"used again": FUTURE + 1})
    client.hset("seats:hold:used again too", "expires_at", FUTURE + 1)
    client.hset("seats:hold:sold", "state", "SOLD")
    mended = mend(subject_of(shard, SETTINGS, "seat-hold"), report)
    assert client.zrange("seats:ttl", 0, -1) == [b"lost", b"used again"]
    assert (dict(mended.mended), mended.changed) == ({Fault.LOST: 2, Fault.ORPHAN: 1}, 2)
    assert mended.remaining == 2
    assert sorted(each.subject for each in mended.findings if not each.mended) == [b"used again", b"used again too"]


@contextmanager
def slots_in_use(url: str, slots: int) -> Iterator[None]:
    """A service holds and frees each slot, one show for each, without a pause and each time in one transaction."""
    stop = threading.Event()

    def serve() -> None:
        with redis.Redis.from_url(url) as own:
            for number in itertools.count():
                for slot in range(slots):
                    with own.pipeline() as pipe:
                        if number % 2:
                            pipe.hset(f"seats:hold:{slot}", "state", "SOLD").zrem("seats:ttl", str(slot))
                            pipe.hincrby(f"seats:{slot}", "held", -1)
                        else:
                            hold_seats(pipe, str(slot), 1, FUTURE + number, show=str(slot))
                            pipe.hincrby(f"seats:{slot}", "held", 1)
                        pipe.execute()
                    if stop.is_set():
                        return

    service = threading.Thread(target=serve, name="service")
    service.start()
    try:
        yield
    finally:
        stop.set()
        service.join()


def test_slots_that_are_used_again_and_again_have_no_fault(shard: Shard, server: Server) -> None:
    with slots_in_use(server.url, 8):
        found = [dict(walk(shard).found) for _ in range(12)]
    assert found == [{}] * 12


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
