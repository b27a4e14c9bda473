"""What `reconcile` finds on a Redis without other clients, and what it mends."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta

import pytest

from sweeperd.config import RedisSettings, SweepSettings
from sweeperd.context import Timing
from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import Ledger
from sweeperd.ops.quarantine import Quarantine, QuarantineFilter
from sweeperd.ops.reconcile.budgets import MOMENT_PAUSE, MOMENTS, BudgetCounters, judge_budget
from sweeperd.ops.reconcile.faults import Fault, WalkStage
from sweeperd.ops.reconcile.last_walk import WalkCursor
from sweeperd.ops.reconcile.report import ReconcileReport
from sweeperd.ops.reconcile.subjects import Reservations, WalkProgress
from sweeperd.ops.reconcile.throttle import Interrupted, Throttle
from sweeperd.ops.reconcile.walk import mend, reconcile
from sweeperd.store import Shard
from sweeperd.sweep import Decision, Outcome
from tests.support.books import Property, check, read
from tests.support.builders import UNSETTLED, make_sweeper, reservations_kind
from tests.support.fixtures import a_shard, full
from tests.support.harness import SCOPES, eventually, reserve, server_time
from tests.support.servers import Server

FAST = 1e9
INDEX = "reservation:ttl"
#: So that nothing is due: ms until the deadline. Less than the TTL, or it would have begun in the future.
LATER = -50_000


def subject(
    shard: Shard,
    stop: threading.Event | None = None,
    progress: WalkProgress | None = None,
    rate: float = FAST,
    timing: Timing = UNSETTLED,
) -> Reservations:
    made = Reservations(shard, SweepSettings(), Throttle(rate, stop, timing))
    made.progress = progress or made.progress
    return made


def walk(shard: Shard, *, repair: bool = False, limit: int = 100) -> ReconcileReport:
    report = reconcile(subject(shard), limit=limit)
    return mend(subject(shard), report) if repair else report


def found(report: ReconcileReport) -> set[tuple[str, str]]:
    return {(finding.fault.value, finding.subject.decode()) for finding in report.findings}


def sweep(shard: Shard) -> list[Decision]:
    decisions: list[Decision] = []
    kind = reservations_kind(shard.keys)
    make_sweeper(shard, kind, observe=lambda some, _: decisions.extend(some)).tick()
    return decisions


def written(shard: Shard) -> object:
    books = read(shard.client)
    return books.budgets, books.reservations, books.index, books.events, books.strangers


def held(ledger: Ledger, scopes: Sequence[str], amount: int, key: str) -> bytes:
    ttl = timedelta(minutes=1)
    return ledger.reserve("acme", scopes, "TOKENS", amount, ttl=ttl, idempotency_key=key).reservation_id.encode()


def plant(shard: Shard) -> set[tuple[str, str]]:
    """60 reservations that are right, and faults of every kind; returns what is to be found."""
    client = shard.client
    reserve(client, [f"right-{number}" for number in range(60)], overdue_by=LATER)
    reserve(client, [f"lost-{number}" for number in range(50)], overdue_by=LATER)
    reserve(client, ["early", "late", "never"], overdue_by=LATER)
    client.zrem(INDEX, *[f"lost-{number}" for number in range(50)])
    client.zadd(INDEX, {"early": 1, "late": 9e15, "never": float("inf")})
    client.zadd(INDEX, {"orphan one": 1, "orphan two": server_time(client) + 10**9})
    client.hincrby(f"budget:{SCOPES[0]}:TOKENS", "reserved", 7)
    client.hincrby(f"budget:{SCOPES[1]}:TOKENS", "reserved", -3)
    return (
        {("lost", f"lost-{number}") for number in range(50)}
        | {("wrong_score", name) for name in ("early", "late", "never")}
        | {("orphan", "orphan one"), ("orphan", "orphan two")}
        | {("budget_drift", f"budget:{scope}:TOKENS") for scope in SCOPES}
    )


def test_all_that_is_planted_is_found_and_nothing_else(shard: Shard) -> None:
    planted = plant(shard)
    before = written(shard)
    report = walk(shard)
    assert found(report) == planted
    assert report.found == {Fault.LOST: 50, Fault.WRONG_SCORE: 3, Fault.ORPHAN: 2, Fault.BUDGET_DRIFT: 2}
    assert (report.hashes, report.counters, report.unjudged, report.unreadable.count) == (113, 2, 0, 0)
    assert report.remaining == 57
    drifts = {f.subject: (f.found, f.expected, f.bounds) for f in report.findings if f.fault is Fault.BUDGET_DRIFT}
    assert drifts == {
        f"budget:{SCOPES[0]}:TOKENS".encode(): (str(113 * 5 + 7), str(113 * 5), (7, 7)),
        f"budget:{SCOPES[1]}:TOKENS".encode(): (str(113 * 5 - 3), str(113 * 5), (-3, -3)),
    }
    assert written(shard) == before, "a look changes nothing"


def test_repair_mends_the_index_and_no_ledger_value(shard: Shard) -> None:
    planted = plant(shard)
    before = read(shard.client)
    report = walk(shard, repair=True)
    assert found(report) == planted
    assert report.mended == {Fault.LOST: 50, Fault.WRONG_SCORE: 3, Fault.ORPHAN: 2}
    assert report.remaining == 2
    after = read(shard.client)
    check(after, {Property.INDEXED, Property.EXPLAINED})
    assert (after.budgets, after.reservations, after.events) == (before.budgets, before.reservations, before.events)
    again = walk(shard)
    assert found(again) == {one for one in planted if one[0] == "budget_drift"}


def test_what_was_mended_meanwhile_stays_as_it_is(shard: Shard) -> None:
    """The script that mends decides again: a healthy entry is neither removed nor set."""
    planted = plant(shard)
    report = walk(shard)
    assert found(report) == planted
    scores = {name: server_time(shard.client) + number for number, name in enumerate(("early", "lost-0", "orphan two"))}
    reserve(shard.client, ["orphan two"], overdue_by=LATER)
    for name, score in scores.items():
        shard.client.hset(f"reservation:res_{name}", "expires_at", score)
        shard.client.zadd(INDEX, {name: score})
    mended = mend(subject(shard), report)
    assert {name: shard.client.zscore(INDEX, name) for name in scores} == scores
    assert mended.mended == {Fault.LOST: 50, Fault.WRONG_SCORE: 3, Fault.ORPHAN: 2}
    assert mended.changed == 52
    second = mend(subject(shard), report)
    assert (second.changed, second.mended) == (0, mended.mended), "another operator's repair was faster"
    check(read(shard.client), {Property.INDEXED})


def test_marks_of_another_sweeper_are_found_apart_from_dismissed_ones(shard: Shard) -> None:
    reserve(shard.client, ["foreign", "dismissed", "ours", "expired elsewhere", "expired here"])
    for name in ("foreign", "dismissed"):
        shard.client.hset(
            f"reservation:res_{name}", mapping={"quarantined_at": 5, "quarantine_reason": "INVALID_ESTIMATE"}
        )
    shard.client.hset("reservation:res_dismissed", "dismissed_at", 6)
    shard.client.hset("reservation:res_ours", mapping={"quarantined_at": 5})
    shard.client.zadd("sweeperd:quarantine", {"ours": 5})
    for name in ("expired elsewhere", "expired here"):
        shard.client.hset(f"reservation:res_{name}", mapping={"state": "EXPIRED", "expired_at": 7})
    shard.client.hset("reservation:res_expired here", "expired_event", "1-1")
    shard.client.delete(INDEX)
    report = walk(shard, repair=True)
    assert {each for each in found(report) if each[0] != "budget_drift"} == {("foreign_quarantine", "foreign")}
    assert (report.dismissed, report.foreign_expiries, report.foreign_ids) == (1, 1, [b"expired elsewhere"])
    assert shard.client.zcard(INDEX) == 0


def test_a_closed_budget_is_not_judged(shard: Shard) -> None:
    reserve(shard.client, ["one"], overdue_by=LATER)
    shard.client.hset(f"budget:{SCOPES[0]}:TOKENS", mapping={"status": "CLOSED", "reserved": 0})
    report = walk(shard)
    assert (found(report), report.closed, report.counters) == (set(), 1, 1)


def interrupted(shard: Shard, at: WalkStage, timing: Timing = UNSETTLED) -> WalkCursor:
    """Where a walk was that was stopped in this stage."""
    stop, places = threading.Event(), list[WalkCursor]()

    def progress(stage: WalkStage, *_: int) -> None:
        if stage is at:
            stop.set()

    with pytest.raises(Interrupted):
        reconcile(subject(shard, stop, progress, timing=timing), checkpoint=places.append)
    return places[-1]


def counts(report: ReconcileReport) -> object:
    """All that does not depend on whether the walk was interrupted."""
    budgets = report.counters, report.unjudged, report.closed, report.unreadable
    return report.hashes, report.entries, report.dismissed, report.foreign_expiries, report.found, budgets


def plant_many(shard: Shard) -> None:
    """Faults and marks on several pages."""
    plant(shard)
    reserve(shard.client, [f"more-{number}" for number in range(1000)], overdue_by=LATER)
    for number in range(20):
        shard.client.hset(f"reservation:res_more-{number}", mapping={"quarantined_at": 5, "dismissed_at": 6})
        shard.client.hset(f"reservation:res_more-{number + 20}", mapping={"state": "EXPIRED", "expired_at": 7})
    shard.client.zrem(INDEX, *[f"more-{number}" for number in range(40)])


class StopsAt(threading.Event):
    """Is set once it was asked for the n-th time."""

    def __init__(self, asked: int) -> None:
        super().__init__()
        self.left = asked

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0 or super().is_set()


@pytest.mark.parametrize("stage", [WalkStage.HASHES, WalkStage.INDEX])
def test_a_walk_goes_on_where_it_was_interrupted(shard: Shard, stage: WalkStage) -> None:
    planted = plant(shard)
    reserve(shard.client, [f"more-{number}" for number in range(1000)], overdue_by=LATER)
    place = WalkCursor.model_validate_json(interrupted(shard, stage).model_dump_json())
    report = reconcile(subject(shard), resume=place)
    assert found(report) == planted, "the budgets are judged too"
    assert (report.resumed, report.counters, report.started_at) == (True, 2, place.started_at)
    assert report.hashes == 1113


@pytest.mark.slow
def test_a_walk_counts_the_same_wherever_it_was_interrupted(shard: Shard) -> None:
    plant_many(shard)
    unbroken, whole = StopsAt(10**9), counts(reconcile(subject(shard)))
    reconcile(subject(shard, unbroken))
    resumed = 0
    for asked in range(1, 10**9 - unbroken.left, 17):
        places = list[WalkCursor]()
        with contextlib.suppress(Interrupted):
            reconcile(subject(shard, StopsAt(asked)), checkpoint=places.append)
        if places:
            report = reconcile(subject(shard), resume=places[-1])
            assert (asked, counts(report)) == (asked, whole)
            resumed += report.resumed
    assert resumed > 2


def test_pages_whose_hints_still_wait_are_counted_once(shard: Shard) -> None:
    """The place is that of the first page with such a hint, so a later walk visits the pages after it again."""
    plant_many(shard)
    whole = counts(reconcile(subject(shard)))
    place = interrupted(shard, WalkStage.INDEX, Timing(settle_faults=60.0))
    assert place.stage is WalkStage.HASHES
    assert counts(reconcile(subject(shard), resume=place)) == whole


def test_a_cursor_of_another_server_is_not_used(shard: Shard) -> None:
    planted = plant(shard)
    place = interrupted(shard, WalkStage.HASHES).model_copy(update={"run_id": "another"})
    report = reconcile(subject(shard), resume=place)
    assert (found(report), report.resumed) == (planted, False)


def test_what_is_right_is_left_alone(shard: Shard) -> None:
    """Ended ones, ones in grace, due ones, extended ones, ones set aside."""
    reserve(shard.client, ["due"], overdue_by=1000)
    reserve(shard.client, ["in grace"], overdue_by=-1000, grace=5000)
    reserve(shard.client, ["set aside", "dismissed"])
    ledger = Ledger(shard)
    ids = [held(ledger, SCOPES, 0, str(number)) for number in range(3)]
    ledger.commit("acme", ids[0], 0, idempotency_key="commit")
    ledger.release("acme", ids[1], idempotency_key="release")
    ledger.extend("acme", ids[2], timedelta(seconds=5), idempotency_key="extend")
    for name in ("set aside", "dismissed"):
        shard.client.hset(f"reservation:res_{name}", "grace_ms", "none")
    outcomes = Counter(decision.outcome for decision in sweep(shard))
    assert outcomes == {Outcome.EXPIRED: 1, Outcome.IN_GRACE: 1, Outcome.QUARANTINED: 2}
    list(Quarantine(shard, reservations_kind(shard.keys), 50).dismiss(QuarantineFilter((b"dismissed",))))
    assert shard.client.zcard(INDEX) == 2
    report = walk(shard, repair=True)
    assert (found(report), report.unjudged, report.hashes) == (set(), 0, 7)


def test_a_deadline_that_cannot_be_read_comes_before_the_sweep(shard: Shard) -> None:
    reserve(shard.client, ["lost", "far"], overdue_by=LATER)
    for name in ("lost", "far"):
        shard.client.hset(f"reservation:res_{name}", "expires_at", "soon")
    shard.client.zrem(INDEX, "lost")
    assert found(walk(shard, repair=True)) == {("lost", "lost"), ("wrong_score", "far")}
    # The sweep will come by itself, so nothing is wrong any more.
    assert found(walk(shard)) == set()
    assert [decision.detail for decision in sweep(shard)] == ["INVALID_EXPIRY"] * 2


def test_what_cannot_be_read_is_no_drift_that_is_hidden(shard: Shard) -> None:
    """It may hold any amount, so its budgets are not judged."""
    reserve(shard.client, ["right", "broken", "stateless"], overdue_by=LATER)
    shard.client.hset("reservation:res_broken", "estimate_amount", "five")
    report = walk(shard)
    assert (report.unreadable.ids, report.unjudged, found(report)) == ([b"broken"], 2, set())
    # Less is reserved than the readable ones hold for certain.
    shard.client.hincrby(f"budget:{SCOPES[0]}:TOKENS", "reserved", -6)
    assert found(walk(shard)) == {("budget_drift", f"budget:{SCOPES[0]}:TOKENS")}
    shard.client.hincrby(f"budget:{SCOPES[0]}:TOKENS", "reserved", 6)
    # Without a state it may hold its amount or not, so nothing is reported.
    shard.client.hset("reservation:res_broken", "estimate_amount", "5")
    shard.client.hset("reservation:res_stateless", "state", "BROKEN")
    report = walk(shard)
    assert (found(report), report.unjudged, report.unreadable.count) == (set(), 2, 0)


def test_without_a_time_of_its_beginning_nothing_is_judged(shard: Shard) -> None:
    reserve(shard.client, ["a", "b"], overdue_by=LATER)
    shard.client.hdel("reservation:res_a", "created_at")
    shard.client.hset("reservation:res_b", "created_at", server_time(shard.client) + 10**6)
    report = walk(shard)
    assert (found(report), report.unjudged) == (set(), 2)
    shard.client.hincrby(f"budget:{SCOPES[0]}:TOKENS", "reserved", 1)
    assert found(walk(shard)) == {("budget_drift", f"budget:{SCOPES[0]}:TOKENS")}, "more than both can hold"


class Traffic(Throttle):
    """A client that acts in each walk between the moments of the budget and the reservations."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act
        self._moments = 0

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self._moments += seconds == MOMENT_PAUSE
        if self._moments == MOMENTS:
            self._moments = 0
            self._act()


def test_a_writer_that_keeps_ended_reservations_for_a_moment_only(shard: Shard) -> None:
    """They are gone before the walk reads them, so that the budget seems to hold more than its reservations."""
    client, ledger = shard.client, Ledger(shard)
    ledger.open_budget("team", "TOKENS", 1000)
    ids = [held(ledger, ["team"], 100, f"key {number}") for number in range(4)]

    def end(kept_ms: int) -> None:
        entry = ids.pop()
        ledger.commit("acme", entry, 100, idempotency_key=f"end of {entry!r}")
        client.pexpire(shard.keys.reservation(entry), kept_ms)
        eventually(lambda: kept_ms > 1 or not client.exists(shard.keys.reservation(entry)))

    end(2000)  # what the walk can see
    traffic = Traffic(lambda: end(1))

    def progress(*_: object) -> None:
        time.sleep(1.1)  # more than half of 2 s

    with Reservations(shard, SweepSettings(), traffic) as subject:
        subject.progress = progress
        verdict = BudgetCounters(subject).judge(b"budget:team:TOKENS")
    assert verdict.difference is None
    assert "readable" in verdict.result


def test_a_clock_that_was_set_back_makes_no_drift(shard: Shard) -> None:
    client, ledger = shard.client, Ledger(shard)
    ledger.open_budget("team", "TOKENS", 1000)
    entry = held(ledger, ["team"], 100, "key")
    ledger.commit("acme", entry, 100, idempotency_key="end")
    client.hset(shard.keys.reservation(entry), "committed_at", server_time(client) + 60_000)
    report = walk(shard)
    assert (found(report), report.unjudged) == (set(), 1)
    verdict = judge_budget(shard, SweepSettings(), b"budget:team:TOKENS", Throttle())
    assert verdict.difference is None


@pytest.mark.parametrize("drift", [0, 5])
def test_a_beginning_that_is_passed_between_two_walks_makes_no_drift(shard: Shard, drift: int) -> None:
    """It began before both walks, but by a clock that was ahead: the first walk knows it to be after now."""
    client, ledger = shard.client, Ledger(shard)
    ledger.open_budget("team", "TOKENS", 1000)
    entry = held(ledger, ["team"], 100, "key")
    client.hincrby("budget:team:TOKENS", "reserved", drift)
    key = shard.keys.reservation(entry)
    client.hset(key, "created_at", server_time(client) + 1000)
    walks = 0

    def act() -> None:
        nonlocal walks
        walks += 1
        if walks == 2:
            # Between the moments of the second walk and its look.
            client.hset(key, "created_at", server_time(client))
            time.sleep(0.002)

    verdict = judge_budget(shard, SweepSettings(), b"budget:team:TOKENS", Traffic(act))
    assert (walks, verdict.difference) == (2, None)


def test_affected_scopes_count_where_there_are_no_others_and_a_scope_twice_counts_twice(shard: Shard) -> None:
    ledger = Ledger(shard)
    ledger.open_budget("team", "TOKENS", 10**18)
    huge = 2**53 + 1
    first = held(ledger, ["team", "team"], huge, "1")
    second = held(ledger, ["team", "nobody's"], 1, "2")
    for entry in (first, second):
        shard.client.hdel(shard.keys.reservation(entry), "budgeted_scopes")
    assert found(walk(shard)) == set()
    shard.client.hset("budget:team:TOKENS", "reserved", 2 * huge)
    assert [f.bounds for f in walk(shard).findings] == [(-1, -1)]


def test_only_what_has_the_prefix(server: Server) -> None:
    prefix = "odd*[x]?\\:"
    with closing(Shard(RedisSettings.model_validate({"url": server.url}), prefix)) as shard:
        reserve(shard.client, ["mine"], overdue_by=LATER, prefix=prefix)
        reserve(shard.client, ["another's"], overdue_by=LATER)
        shard.client.delete(INDEX, prefix + INDEX)
        report = walk(shard, repair=True)
        assert (found(report), report.counters) == ({("lost", "mine")}, 2)
        assert shard.client.zcard(prefix + INDEX) == 1
        assert shard.client.zcard(INDEX) == 0


def test_hostile_names_pass(shard: Shard) -> None:
    names = [b"\xff\xfe", b"a b:c\n\x1b[31m", b"x" * 10_000, b"*"]
    reserve(shard.client, names, overdue_by=LATER, scopes=["tenant:\xe9<b>\n", "x" * 10_000])
    shard.client.delete(INDEX)
    report = walk(shard, repair=True)
    assert {finding.subject for finding in report.findings} == set(names)
    assert set(shard.client.zrange(INDEX, 0, -1)) == set(names)
    assert report.unreadable.count == 0


def test_what_is_found_is_counted_and_only_the_first_are_kept(shard: Shard) -> None:
    reserve(shard.client, [str(number) for number in range(250)], overdue_by=LATER)
    shard.client.delete(INDEX)
    report = walk(shard, limit=10)
    assert (len(report.findings), report.found[Fault.LOST], report.truncated) == (10, 250, True)


@pytest.mark.every_redis
def test_repair_works_at_maxmemory(own_server: Server) -> None:
    with a_shard(own_server) as shard:
        planted = plant(shard)
        with full(shard):
            assert found(walk(shard, repair=True)) == planted
        check(read(shard.client), {Property.INDEXED})


def test_a_restart_ends_the_walk(own_server: Server) -> None:
    """A cursor means nothing to another process, so what the walk has seen by then is worth nothing."""
    with a_shard(own_server) as shard:
        reserve(shard.client, [str(number) for number in range(500)], overdue_by=LATER)

        def restart_once(stage: WalkStage, *_: int) -> None:
            if stage is WalkStage.HASHES and not restarted:
                restarted.append(True)
                own_server.kill()
                own_server.start()

        restarted: list[bool] = []
        with pytest.raises(RedisUnavailable):
            reconcile(subject(shard, progress=restart_once, timing=Timing(settle_faults=0.0, identify_every=0.0)))
        assert restarted
