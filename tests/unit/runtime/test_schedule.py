"""Walks every transition of the schedule without Redis, threads or sleep, and has jobs of APScheduler come late."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sweeperd.runtime.schedule import (
    FOLLOW_EVERY,
    JITTER,
    LEADS_WITHIN,
    NOTE_EVERY,
    START_WITHIN,
    Complete,
    Incomplete,
    Message,
    Moment,
    Note,
    Phase,
    Poll,
    Polled,
    Rules,
    Schedule,
    Signal,
    State,
    Step,
    Tick,
    advance,
)

RULES = Rules(interval=10.0, precision=0.05)
NOW = 1000.0
#: Redis's clock at NOW, ms; an entry that has just become due; and one that is due later.
SERVER = 5_000_000.0
DUE, LATER = SERVER - 1, SERVER + 30
LONG_DUE = SERVER - LEADS_WITHIN - 1
SEEN = 4_999_000
OURS, THEIRS = Note(True, SEEN + 1, SEEN), Note(False, SEEN + 1, SEEN)
POLLING = (Phase.LEADING, Phase.STANDING_BY, Phase.FOLLOWING, Phase.SUSPECTING)


def state(phase: Phase, **changed: Any) -> State:
    """A state whose polls are due now and whose full tick is not."""
    usual: dict[str, Any] = {"full_at": NOW + 5, "seen_ms": SEEN, "poll_at": NOW, "read_at": NOW - 1, "since": NOW - 1}
    return State(phase, **(usual | changed))


def ticking(order: Tick, **changed: Any) -> State:
    return state(Phase.TICKING, **({"order": order, "begun": True, "since": NOW - 0.01} | changed))


def step(before: State, message: Message = None, rules: Rules = RULES, **moment: Any) -> Step:
    return advance(before, message, Moment(**({"now": NOW, "server_ms": SERVER} | moment)), rules)


WOKEN, FULL = Tick(SEEN, briefly=True), Tick(None, 100, briefly=True)
COMPLETE = Complete(seen_ms=SEEN + 1, grace_end_ms=math.inf, noted=False)


@pytest.mark.parametrize("phase", [Phase.BLIND, *POLLING])
def test_a_full_tick_is_due(phase: Phase) -> None:
    done = step(state(phase, full_at=NOW), spread=0.5)
    steady = phase is Phase.LEADING
    assert done.action == Tick(None, 100 if steady else 0, briefly=steady)
    assert (done.state.phase, done.state.begun) == (Phase.TICKING, False)
    assert done.state.full_at == NOW + RULES.interval * (1 - JITTER / 2)
    assert done.wake_at == NOW + START_WITHIN


def test_the_first_tick_comes_at_once() -> None:
    assert step(State()).action == Tick()


def test_without_polls_only_full_ticks_are_due() -> None:
    rules = Rules(10.0, None)
    done = step(ticking(Tick()), COMPLETE, rules)
    assert (done.state.phase, done.action, done.wake_at) == (Phase.BLIND, None, NOW + 5)


@pytest.mark.parametrize(
    ("phase", "wanted"),
    [
        (Phase.LEADING, Poll(head=True, note=False, clock=False, lease=False)),
        (Phase.STANDING_BY, Poll(head=True, note=True, clock=True, lease=True)),
        (Phase.FOLLOWING, Poll(head=True, note=False, clock=False, lease=False)),
        (Phase.SUSPECTING, Poll(head=True, note=True, clock=False, lease=True)),
    ],
)
def test_what_a_poll_reads(phase: Phase, wanted: Poll) -> None:
    assert step(state(phase)).action == wanted
    stale = step(state(phase, read_at=NOW - NOTE_EVERY)).action
    assert isinstance(stale, Poll)
    assert stale.note, "the note is read every few seconds"
    early = step(state(phase, poll_at=NOW + 0.02))
    assert (early.action, early.wake_at) == (None, NOW + 0.02)


def test_the_leader_ticks_without_another_poll_for_a_known_end() -> None:
    for end in ({"head_ms": DUE}, {"grace_end_ms": DUE}):
        done = step(state(Phase.LEADING, **end))
        assert (done.action, done.state.phase, done.state.led) == (WOKEN, Phase.TICKING, True)
    stale = step(state(Phase.LEADING, head_ms=DUE, read_at=NOW - NOTE_EVERY))
    assert isinstance(stale.action, Poll), "another process may lead by now"


def test_a_poll_of_the_leader() -> None:
    quiet = step(state(Phase.LEADING, poll_at=math.inf), Polled(head_ms=math.inf))
    assert (quiet.state.phase, quiet.wake_at) == (Phase.LEADING, NOW + RULES.precision)  # type: ignore[operator]
    soon = step(state(Phase.LEADING, poll_at=math.inf), Polled(head_ms=LATER))
    assert soon.wake_at == pytest.approx(NOW + 0.031), "one ms after the deadline"
    assert step(state(Phase.LEADING, poll_at=math.inf), Polled(head_ms=DUE)).action == WOKEN


@pytest.mark.parametrize("phase", [Phase.LEADING, Phase.STANDING_BY])
def test_another_process_noted_the_last_tick(phase: Phase) -> None:
    done = step(state(phase, poll_at=math.inf), Polled(math.inf, Note(False, SEEN, SEEN - 7)))
    assert (done.state.phase, done.state.seen_ms, done.state.read_at) == (Phase.FOLLOWING, SEEN - 7, NOW)
    assert done.wake_at == NOW + FOLLOW_EVERY


def test_another_process_noted_the_last_tick_and_does_not_act() -> None:
    led = step(state(Phase.LEADING, poll_at=math.inf), Polled(LONG_DUE, THEIRS))
    assert (led.state.phase, led.action) == (Phase.SUSPECTING, Poll(head=True, note=True, clock=False, lease=True))
    stood_by = state(Phase.STANDING_BY, poll_at=math.inf)
    held = step(stood_by, Polled(LONG_DUE, THEIRS, held=True))
    assert (held.state.phase, held.action, held.wake_at) == (Phase.SUSPECTING, None, NOW + FOLLOW_EVERY)
    assert step(stood_by, Polled(LONG_DUE, THEIRS)).action == Tick(others_note_ms=SEEN + 1)


@pytest.mark.parametrize("phase", POLLING)
def test_a_note_that_says_nothing_ends_the_polls(phase: Phase) -> None:
    done = step(state(phase, poll_at=math.inf), Polled(math.inf, Note(False, SEEN, None)))
    assert (done.state.phase, done.wake_at) == (Phase.BLIND, NOW + 5)
    assert step(state(phase, poll_at=math.inf), Signal.REFUSED).state.phase is Phase.BLIND


@pytest.mark.parametrize("phase", POLLING)
def test_a_poll_that_fails_is_sent_again_later(phase: Phase) -> None:
    done = step(state(phase, poll_at=math.inf), Signal.UNREACHABLE)
    assert (done.state.phase, done.action, done.wake_at) == (phase, None, NOW + FOLLOW_EVERY)


def test_standing_by() -> None:
    before = state(Phase.STANDING_BY, poll_at=math.inf, since=NOW - 0.5)
    assert step(before, Polled(LATER, OURS)).state.phase is Phase.LEADING
    assert step(before, Polled(DUE, OURS)).action == WOKEN
    held = step(before, Polled(DUE, OURS, held=True))
    assert (held.state.phase, held.action, held.wake_at) == (Phase.STANDING_BY, None, NOW + 0.05)
    assert held.state.since == NOW - 0.5, "since the lease was not available"
    longer = step(replace(before, since=NOW - 2), Polled(DUE, OURS, held=True))
    assert longer.wake_at == NOW + FOLLOW_EVERY


def test_a_follower() -> None:
    before = state(Phase.FOLLOWING, poll_at=math.inf)
    due = step(before, Polled(head_ms=DUE))
    assert (due.state.phase, due.wake_at) == (Phase.FOLLOWING, NOW + FOLLOW_EVERY), "the leader has time"
    late = step(before, Polled(head_ms=LONG_DUE))
    assert (late.state.phase, late.action) == (Phase.SUSPECTING, Poll(head=True, note=True, clock=False, lease=True))
    assert step(before, Polled(note=OURS)).state.phase is Phase.LEADING


def test_a_follower_that_suspects() -> None:
    before = state(Phase.SUSPECTING, poll_at=math.inf)
    held = step(before, Polled(LONG_DUE, THEIRS, held=True))
    assert (held.state.phase, held.action, held.wake_at) == (Phase.SUSPECTING, None, NOW + FOLLOW_EVERY)
    free = step(before, Polled(LONG_DUE, THEIRS))
    assert (free.state.phase, free.action) == (Phase.TICKING, Tick(others_note_ms=SEEN + 1))
    done = step(before, Polled(LATER, THEIRS, held=True))
    assert done.state.phase is Phase.FOLLOWING
    assert step(before, Polled(LATER, OURS)).state.phase is Phase.LEADING
    assert step(before, Polled(DUE, OURS, held=True)).state.phase is Phase.STANDING_BY


@pytest.mark.parametrize(("led", "noted"), [(True, False), (False, True), (True, True)])
def test_a_tick_of_the_leader_is_complete(led: bool, noted: bool) -> None:
    done = step(ticking(WOKEN, led=led), Complete(SEEN + 5, LATER, noted))
    assert (done.state.phase, done.state.seen_ms, done.state.grace_end_ms) == (Phase.LEADING, SEEN + 5, LATER)
    assert done.wake_at == pytest.approx(NOW - 0.01 + 0.05), "a precision after the tick was ordered"


def test_a_tick_is_complete_and_it_is_unknown_who_leads() -> None:
    done = step(ticking(Tick()), COMPLETE)
    assert (done.state.phase, done.action) == (Phase.FOLLOWING, None)
    assert done.wake_at == pytest.approx(NOW - 0.01 + 0.05)
    later = step(done.state, now=done.wake_at)
    assert later.action == Poll(head=True, note=True, clock=False, lease=False)
    assert step(later.state, Polled(LATER, OURS)).state.phase is Phase.LEADING


def test_a_follower_goes_on_from_its_own_full_tick_while_the_note_is_the_same() -> None:
    """An entry in grace stays overdue, and a tick over nothing else is seldom noted."""
    ordered = step(state(Phase.SUSPECTING, poll_at=math.inf), Polled(LONG_DUE, THEIRS)).state
    seen = int(LONG_DUE) + 1
    done = step(ordered, Complete(seen, LATER, noted=False)).state
    same = step(done, Polled(math.inf, THEIRS)).state
    assert (same.phase, same.seen_ms, same.grace_end_ms) == (Phase.FOLLOWING, seen, LATER)
    newer = step(same, Polled(math.inf, Note(False, SEEN + 2, SEEN + 1))).state
    assert (newer.seen_ms, newer.grace_end_ms) == (SEEN + 1, LATER)
    assert step(same, Polled(math.inf, Note(False, SEEN + 1, None))).state.phase is Phase.BLIND


@pytest.mark.parametrize(("decided", "wanted"), [(0, Phase.FOLLOWING), (-1, Phase.SUSPECTING)])
def test_a_grace_that_a_later_tick_of_another_has_decided_is_over(decided: int, wanted: Phase) -> None:
    before = state(Phase.FOLLOWING, poll_at=math.inf, grace_end_ms=LONG_DUE)
    note = Note(False, int(SERVER), int(LONG_DUE) + decided)
    assert step(before, Polled(math.inf, note)).state.phase is wanted


def test_graces_that_did_not_fit_into_a_tick_are_for_the_next_one() -> None:
    done = step(ticking(WOKEN, led=True), Complete(SEEN + 5, SEEN + 5, noted=True))
    assert step(done.state, now=done.wake_at).action == Tick(SEEN + 5, briefly=True)


def test_another_process_holds_the_lease() -> None:
    done = step(ticking(WOKEN, led=True), Signal.STOOD_BY)
    assert (done.state.phase, done.state.stood_by_since, done.action) == (Phase.STANDING_BY, NOW, None)
    assert done.wake_at == pytest.approx(NOW - 0.01 + 0.05), "a precision after the tick was ordered"
    assert isinstance(step(done.state, now=NOW + 0.05).action, Poll)
    assert step(ticking(Tick(SEEN)), Signal.STOOD_BY).state.phase is Phase.SUSPECTING


def test_how_long_a_process_has_stood_by_is_told_to_the_tick() -> None:
    before = ticking(FULL, led=True, stood_by_since=NOW - 60)
    again = step(before, Signal.STOOD_BY)
    assert again.state.stood_by_since == NOW - 60
    order = step(replace(again.state, full_at=NOW + 1), now=NOW + 1).action
    assert isinstance(order, Tick)
    assert order.stood_by == 61
    assert step(before, replace(COMPLETE, alone=True)).state.stood_by_since == NOW - 60
    assert step(before, COMPLETE).state.stood_by_since is None


@pytest.mark.parametrize("order", [WOKEN, FULL])
def test_a_tick_fails_or_is_cut_short(order: Tick) -> None:
    done = step(ticking(order, led=True), Incomplete())
    assert (done.state.phase, done.action, done.wake_at) == (Phase.BLIND, None, NOW + 5)


def test_the_lease_of_cycles() -> None:
    barred = step(ticking(FULL), Signal.BARRED, permitted=False)
    assert (barred.state.phase, barred.action, barred.wake_at) == (Phase.WAITING, None, NOW + FOLLOW_EVERY)
    assert step(replace(barred.state, full_at=NOW)).action == Tick(), "permitted again"
    for phase in POLLING:
        assert step(state(phase), permitted=False).action is None, "nobody looks without it"


def test_a_full_tick_follows_a_woken_one_at_once() -> None:
    done = step(ticking(WOKEN, led=True, full_at=NOW - 1), COMPLETE)
    assert done.action == FULL


def test_full_ticks_that_fall_into_a_full_tick_are_left_out() -> None:
    done = step(ticking(FULL, led=True, full_at=NOW - 12), COMPLETE)
    assert done.action is None
    assert done.state.full_at == NOW + 8


def test_a_tick_that_does_not_begin_is_ordered_again() -> None:
    before = ticking(WOKEN, begun=False)
    assert step(before, now=NOW + 0.5).action is None
    again = step(before, now=NOW + START_WITHIN)
    assert (again.action, again.state.phase, again.wake_at) == (WOKEN, Phase.TICKING, NOW + 2 * START_WITHIN)
    begun = step(before, Signal.BEGUN)
    assert (begun.state.begun, begun.wake_at) == (True, math.inf)
    assert step(begun.state, now=NOW + 100).action is None


def test_a_late_copy_of_an_order_does_not_run_in_place_of_the_next_one() -> None:
    jobs: list[tuple[Callable[..., None], Any, Tick]] = []
    ran: list[Tick] = []

    def add_job(job: Callable[..., None], *, args: tuple[Any, Tick], **_: object) -> None:
        jobs.append((job, *args))

    def run(_sweep: object, tick: Tick) -> Complete:
        ran.append(tick)
        return COMPLETE

    def wait_for(count: int) -> None:
        limit = time.monotonic() + 20
        while len(jobs) < count:
            assert time.monotonic() < limit
            time.sleep(0.01)

    shard: Any = SimpleNamespace(name="default", clock=SimpleNamespace(now_ms=lambda: int(SERVER)))
    sweep: Any = SimpleNamespace(name="holds", permitted=True, hangs=False)
    stop = threading.Event()
    schedule = Schedule(shard, stop, [sweep], Rules(0.2, None), run)
    scheduler: Any = SimpleNamespace(add_job=add_job)
    schedule.start(scheduler)
    try:
        wait_for(2)  # the first tick has not begun in time
        (job, slot, first), (_, _, copy) = jobs[:2]
        job(slot, first)
        before = len(jobs)
        wait_for(before + 1)
        job(slot, copy)
        assert len(ran) == 1
        job(*jobs[-1][1:])
        assert (len(ran), ran[-1]) == (2, jobs[-1][2])
    finally:
        stop.set()
        assert schedule.join(time.monotonic() + 20)
