"""
Judges a history: is there an order of all calls that explains every answer?

A call happens at one moment between its sending and its answer (it is linearizable). The history is split by
reservation and by budget; an order of the whole implies one for each part. Each part is replayed on a small model of
what the ledger should do. The search is Lowe's just-in-time linearization: it goes through the moments of sending and
answering, and keeps every state that the model may be in, together with the calls that have happened in it and are not
answered yet. A call without an answer may happen within LOST_MS, or never.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.support.traffic.history import ENDED, SLACK_MS, Amounts, Call, merged, resolved

State = TypeVar("State", bound=Hashable)
#: The state after a call; None if the call cannot happen in this state with this answer.
Step = Callable[[State, Call], State | None]
#: The state, and the calls that have happened in it and are not answered yet: their numbers.
Configuration = tuple[State, frozenset[int]]

#: How long after its sending a call without an answer may still happen: Redis may have been stopped with it in hand.
LOST_MS = 60_000.0
ASKED, ANSWERED, GIVEN_UP = range(3)
#: Configurations that are tried for one answer at most.
MOST_TRIED = 500_000


class Undecided(Exception):
    """So many calls have no answer that the search would not end."""


def explained(calls: Sequence[Call], start: State, step: Step[State]) -> Call | None:
    """None if an order explains all answers; else the first answered call that no order explains."""
    found = _search(calls, start, step, lazy=True)
    if found is not None and any(call.is_lost for call in calls):
        found = _search(calls, start, step, lazy=False)
    return found


def _search(calls: Sequence[Call], start: State, step: Step[State], *, lazy: bool) -> Call | None:
    """
    `lazy`: a call without an answer happens only if an answer needs it, which is quick. The search may miss an order
    then, so what it does not explain is searched again.
    """
    moments = [(call.invoked, ASKED, number) for number, call in enumerate(calls)] + [
        (call.invoked + LOST_MS, GIVEN_UP, number) if call.is_lost else (call.returned, ANSWERED, number)
        for number, call in enumerate(calls)
    ]
    configurations: set[Configuration[State]] = {(start, frozenset())}
    answered, lost = set[int](), set[int]()
    for _, kind, number in sorted(moments):
        if kind == ASKED:
            (lost if calls[number].is_lost else answered).add(number)
            continue
        if kind == GIVEN_UP:
            lost.discard(number)
            configurations = {(state, happened - {number}) for state, happened in configurations}
            continue
        for most_lost in range(len(lost) + 1) if lazy else [len(lost)]:
            reached = _reach(number, configurations, calls, answered | lost, most_lost, step)
            if reached:
                break
        else:
            return calls[number]
        configurations = reached
        answered.discard(number)
    return None


def _reach(
    wanted: int,
    configurations: Iterable["Configuration[State]"],
    calls: Sequence[Call],
    open_calls: set[int],
    most_lost: int,
    step: Step[State],
) -> set["Configuration[State]"]:
    """Every configuration in which `wanted` has happened, after any open calls: `most_lost` of them lost at most."""
    reached: set[Configuration[State]] = set()
    seen: set[tuple[State, frozenset[int], int]] = set()
    todo = [(state, happened, most_lost) for state, happened in configurations]
    while todo:
        state, happened, allowed = todo.pop()
        if (state, happened, allowed) in seen:
            continue
        if len(seen) > MOST_TRIED:
            raise Undecided(f"more than {MOST_TRIED} orders of calls without an answer")
        seen.add((state, happened, allowed))
        if wanted in happened:
            reached.add((state, happened - {wanted}))
            continue
        possible = open_calls - happened
        turn = min((calls[number].turn for number in possible if calls[number].turn), default=0)
        for number in possible:
            if calls[number].turn not in (0, turn):
                continue
            cost = int(calls[number].is_lost)
            if cost > allowed or (after := step(state, calls[number])) is None:
                continue
            todo.append((after, happened | {number}, allowed - cost))
    return reached


@dataclass(frozen=True)
class Hold:
    """A reservation: its state, deadline, grace and number of extensions."""

    state: bytes = b""
    expires_at: int = 0
    grace: int = 0
    extensions: int = 0


def reservation_step(hold: Hold, call: Call) -> Hold | None:
    """What a call makes of a reservation."""
    if call.operation == "end":
        return hold if hold.state == call.state else None
    if call.operation == "reserve":
        return None if hold.state else Hold(b"ACTIVE", call.expires_at, call.grace)
    limit = hold.expires_at + (0 if call.operation == "extend" else hold.grace)
    if call.refusal:
        return hold if _may_refuse(hold, call, limit) else None
    in_time = call.ended_at > limit if call.operation == "expire" else call.invoked <= limit + SLACK_MS
    if hold.state != b"ACTIVE" or not in_time:
        return None
    if call.operation != "extend":
        return Hold(ENDED[call.operation], hold.expires_at, hold.grace, hold.extensions)
    after = Hold(b"ACTIVE", hold.expires_at + call.by, hold.grace, hold.extensions + 1)
    return after if call.is_lost or (call.expires_at, call.extensions) == (after.expires_at, after.extensions) else None


def _may_refuse(hold: Hold, call: Call, limit: int) -> bool:
    match call.refusal:
        case "ReservationExpired":
            is_late = hold.state == b"ACTIVE" and call.returned + SLACK_MS > limit
            return is_late or hold.state == b"EXPIRED"
        case "ReservationFinalized":
            return hold.state in (b"COMMITTED", b"RELEASED")
        case "ReservationNotFound":
            return not hold.state
        case "RedisFull":
            return True  # it changes nothing, and a server may be full at any time
        case _:
            return False


def budget_step(scope: bytes, estimates: Mapping[bytes, int]) -> Step[Amounts]:
    """What a call makes of the budget of a scope. `estimates`: what each reservation holds."""

    def step(before: Amounts, call: Call) -> Amounts | None:
        remaining, reserved, spent, debt = before
        if call.refusal:
            return before if remaining < call.amount else None
        held = estimates.get(call.reservation, call.amount)
        match call.operation:
            case "reserve":
                if remaining < call.amount:
                    return None
                after = (remaining - call.amount, reserved + call.amount, spent, debt)
            case "commit":
                after = (remaining + held - call.amount, reserved - held, spent + call.amount, debt)
            case "release" | "expire":
                after = (remaining + held, reserved - held, spent, debt)
            case _:
                after = before
        wrong = after[1] < 0 or (call.balances is not None and call.balances[scope] != after)
        return None if wrong else after

    return step


def faults(calls: Iterable[Call], budgets: Mapping[bytes, int]) -> list[str]:
    """Every part of the history that no order explains. `budgets`: what each was opened with, by scope."""
    history, wrong = merged(calls)
    history = resolved(history)
    by_reservation: dict[bytes, list[Call]] = defaultdict(list)
    by_scope: dict[bytes, list[Call]] = defaultdict(list)
    estimates = {call.reservation: call.amount for call in history if call.operation in ("reserve", "expire")}
    reserves = [call for call in history if call.operation == "reserve"]
    held_in = {call.reservation: tuple(call.balances or call.scopes) for call in reserves}
    for call in history:
        if call.reservation and call.refusal != "InsufficientBudget":
            by_reservation[call.reservation].append(call)
        for scope in _scopes(call, held_in):
            if scope in budgets and not (call.is_lost and call.operation == "extend"):
                by_scope[scope].append(call)
    for entry, found in by_reservation.items():
        start, part = Hold(), found
        if not any(call.operation == "reserve" and call.expires_at for call in part):
            # Its reserve has no answer, so the deadline is not known; that it ended once, and how, is checked.
            start, part = Hold(b"ACTIVE"), [call for call in part if call.operation != "reserve"]
        if unexplained := explained(part, start, reservation_step):
            wrong.append(f"reservation {entry!r}: {unexplained}")
    for scope, part in by_scope.items():
        step = budget_step(scope, estimates)
        if unexplained := explained(part, (budgets[scope], 0, 0, 0), step):
            wrong.append(f"budget {scope!r}: {unexplained}")
    return wrong


def _scopes(call: Call, held_in: Mapping[bytes, tuple[bytes, ...]]) -> Iterable[bytes]:
    """The scopes whose budgets a call reads or changes."""
    if call.operation == "end":
        return ()
    if call.refusal:
        return (call.refused_by,) if call.refused_by else ()
    if call.balances is not None:
        return tuple(call.balances)
    return call.scopes or held_in.get(call.reservation, ())
