"""Answers from the status of all shards whether sweeping, delivery and quarantine are healthy."""

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeperd.config import Settings
from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.status import ShardStatus
from sweeperd.text import span

#: If the last answer of a shard is older, seconds, the shard does not answer. Without a viewer the shard is read every
#: 15 s.
STALE = 30.0
#: How long an entry may be overdue, or an event may wait, before the level is `watch`, and before it is `bad`, seconds.
#: The alert rules have the same limits for `bad`.
OVERDUE_WATCH, OVERDUE_BAD = 20.0, 60.0
PENDING_WATCH, PENDING_BAD = 60.0, 900.0
#: The finding about a shard whose Redis cannot be read.
UNKNOWN = "not known"
#: How many details an answer has at most.
DETAILS = 5


class HealthLevel(enum.StrEnum):
    """From good to bad."""

    GOOD = "good"
    WATCH = "watch"
    BAD = "bad"


class EndpointLook(NamedTuple):
    label: str
    #: None: neither good nor bad.
    level: HealthLevel | None


#: `EndpointDocument.state` -> how it is shown, by the commands and by the page.
ENDPOINT_STATES = {
    "delivering": EndpointLook("delivering", HealthLevel.GOOD),
    "muted": EndpointLook("muted", HealthLevel.WATCH),
    "open": EndpointLook("circuit open", HealthLevel.BAD),
    "paused": EndpointLook("paused", HealthLevel.BAD),
    "group": EndpointLook("read by another program", None),
    "unknown": EndpointLook("not in the configuration", None),
}


@dataclass(frozen=True, slots=True)
class ShardView:
    """The last status of a shard that could be read, the age of this status, and why there is no newer status."""

    name: str
    address: str
    status: ShardStatus | None = None
    age_seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    question: str
    answer: str
    level: HealthLevel
    details: tuple[str, ...]


_Finding = tuple[HealthLevel, str]


def summarize_health(settings: Settings, views: Sequence[ShardView]) -> tuple[Answer, Answer, Answer]:
    """The three answers. If there is only one shard, the answers do not name the shard."""

    def collected(findings_of: Callable[[ShardView], Iterator[_Finding]]) -> list[_Finding]:
        prefix = "{}: " if len(views) > 1 else ""
        return [(level, prefix.format(view.name) + text) for view in views for level, text in findings_of(view)]

    no_endpoints = not settings.consumers
    return (
        _answer(
            "Are we keeping up?",
            {HealthLevel.GOOD: "Yes", HealthLevel.WATCH: "Not quite", HealthLevel.BAD: "No"},
            collected(lambda view: _sweep(settings, view)),
            "nothing is overdue for long",
        ),
        _answer(
            "Does everyone get their events?",
            {HealthLevel.GOOD: "Yes", HealthLevel.WATCH: "Not quite", HealthLevel.BAD: "No"},
            collected(_deliveries),
            "there are no endpoints" if no_endpoints else "no event waits for long",
        ),
        _answer(
            "Is anything set aside?",
            {HealthLevel.GOOD: "No", HealthLevel.WATCH: "Yes"},
            collected(_set_aside),
            "nothing waits for a person",
        ),
    )


def _answer(question: str, answers: dict[HealthLevel, str], findings: Sequence[_Finding], all_well: str) -> Answer:
    ranks = list(HealthLevel)
    worst_first = sorted(findings, key=lambda finding: -ranks.index(finding[0]))
    level = worst_first[0][0] if worst_first else HealthLevel.GOOD
    only_unknown = bool(worst_first) and all(text.endswith(UNKNOWN) for _, text in worst_first)
    details = [text for _, text in worst_first[:DETAILS]]
    if len(worst_first) > DETAILS:
        details.append(f"and {len(worst_first) - DETAILS} more")
    return Answer(question, "Not known" if only_unknown else answers[level], level, tuple(details) or (all_well,))


def _sweep(settings: Settings, view: ShardView) -> Iterator[_Finding]:
    status = view.status
    if view.error:
        yield HealthLevel.BAD, f"Redis cannot be read: {view.error}"
        return
    if status is None:
        yield HealthLevel.WATCH, "not read yet"
        return
    if view.age_seconds > STALE:
        yield HealthLevel.BAD, f"Redis has not answered for {span(view.age_seconds)}"
        return
    if "sweeps" in status.processes.missing:
        yield HealthLevel.BAD, "no process sweeps"
    yield from _ticks(settings, view, status)
    for kind in status.kinds:
        if kind.held:
            yield HealthLevel.BAD, f"{kind.kind}: {kind.held:,} held: {kind.held_because}"
    due = status.due
    if due.oldest_overdue_seconds > OVERDUE_WATCH:
        level = HealthLevel.BAD if due.oldest_overdue_seconds > OVERDUE_BAD else HealthLevel.WATCH
        about = "" if due.exact else "about "
        yield level, f"{about}{due.overdue:,} overdue, the oldest for {span(due.oldest_overdue_seconds)}"


def _ticks(settings: Settings, view: ShardView, status: ShardStatus) -> Iterator[_Finding]:
    """Reservations, if they are swept, and each kind: whether a sweep has ended lately."""
    # A replica that dies is replaced after the lease's TTL and an interval; a drain may take its whole time budget.
    sweep = settings.sweep
    late = (3 * sweep.interval + sweep.lease_ttl).total_seconds() + 10
    ticks = [("", status.tick, status.sweeping)] if settings.reservations.enabled else []
    for name, tick, sweeping in [*ticks, *((f"{kind.kind}: ", kind.tick, kind.sweeping) for kind in status.kinds)]:
        limit = late + (sweep.time_budget.total_seconds() if sweeping else 0)
        if tick is None:
            yield HealthLevel.WATCH, f"{name}no sweep has ended yet"
        elif (age := tick.age_seconds(status.now_ms) + view.age_seconds) > limit:
            yield HealthLevel.BAD, f"{name}not swept for {span(age)}"


def _deliveries(view: ShardView) -> Iterator[_Finding]:
    if view.status is None or view.error or view.age_seconds > STALE:
        # If Redis cannot be read, no event is delivered either.
        if view.status is None or view.status.endpoints:
            yield HealthLevel.WATCH, UNKNOWN
        return
    if "delivers" in view.status.processes.missing:
        waits = any(endpoint.configured and endpoint.state != "group" for endpoint in view.status.endpoints)
        yield HealthLevel.BAD if waits else HealthLevel.WATCH, "no process delivers"
    for endpoint in view.status.endpoints:
        finding = _delivery(endpoint)
        if finding is not None:
            yield finding


def _delivery(endpoint: EndpointDocument) -> _Finding | None:
    if endpoint.pending is None:
        waiting = "it has no consumer group"
    elif endpoint.pending:
        waiting = f"{endpoint.pending:,} wait, the oldest for {span(endpoint.oldest_pending_seconds)}"
    else:
        waiting = "nothing waits"
    if endpoint.state in {"unknown", "group"}:
        return None
    if endpoint.state == "paused":
        return HealthLevel.BAD, f"{endpoint.endpoint} is paused; {waiting}"
    if endpoint.state == "open":
        return HealthLevel.BAD, f"{endpoint.endpoint}: circuit open; {waiting}"
    if endpoint.warning:
        return HealthLevel.WATCH, f"{endpoint.endpoint} {endpoint.warning}; {waiting}"
    if endpoint.oldest_pending_seconds > PENDING_BAD:
        return HealthLevel.BAD, f"{endpoint.endpoint}: {waiting}"
    if endpoint.oldest_pending_seconds > PENDING_WATCH or endpoint.pending is None:
        return HealthLevel.WATCH, f"{endpoint.endpoint}: {waiting}"
    return None


def _set_aside(view: ShardView) -> Iterator[_Finding]:
    if view.status is None:
        yield HealthLevel.WATCH, UNKNOWN
        return
    if view.status.quarantined:
        yield HealthLevel.WATCH, f"{view.status.quarantined:,} in quarantine"
    for kind in view.status.kinds:
        if kind.quarantined:
            yield HealthLevel.WATCH, f"{kind.quarantined:,} of {kind.kind} in quarantine"
    if view.status.dead_letters:
        letters = "dead letter" if view.status.dead_letters == 1 else "dead letters"
        yield HealthLevel.WATCH, f"{view.status.dead_letters:,} {letters}"
