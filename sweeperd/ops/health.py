"""Judges from the status of all shards whether the sweep keeps up, events arrive, and entries need attention."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sweeperd.config import Settings
from sweeperd.ops.endpoint_health import Finding, HealthLevel, judge_endpoint
from sweeperd.ops.status import KindDocument, ShardStatus
from sweeperd.text import span

#: A status that is older is stale, seconds. Without a viewer a shard is read every 15 s.
STALE = 30.0
#: From how many seconds on an overdue entry is worth watching, or bad; the alert rules have the same limit for `bad`.
OVERDUE_WATCH, OVERDUE_BAD = 20.0, 60.0
#: From this share of maxmemory on Redis is close to full, percent.
ALMOST_FULL = 85
#: The finding about a shard whose Redis cannot be read.
UNKNOWN = "not known"
#: Up to how many details an answer has.
DETAILS = 5


@dataclass(frozen=True, slots=True)
class ShardView:
    """The last known status of a shard, its age, and why there is no newer one."""

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


def summarize_health(settings: Settings, views: Sequence[ShardView]) -> tuple[Answer, Answer, Answer]:
    """The three answers, which name the shard if there are several."""

    def collected(findings_of: Callable[[ShardView], Iterator[Finding]]) -> list[Finding]:
        prefix = "{}: " if len(views) > 1 else ""
        return [(level, prefix.format(view.name) + text) for view in views for level, text in findings_of(view)]

    yes = {HealthLevel.GOOD: "Yes", HealthLevel.WATCH: "Not quite", HealthLevel.BAD: "No"}
    no = {HealthLevel.GOOD: "No", HealthLevel.WATCH: "Yes"}
    sweeping = collected(lambda view: _sweep(settings, view))
    all_delivered = "no event waits for long" if settings.consumers else "there are no endpoints"
    return (
        _answer("Are we keeping up?", yes, sweeping, "nothing is overdue for long"),
        _answer("Does everyone get their events?", yes, collected(_deliveries), all_delivered),
        _answer("Is anything set aside?", no, collected(_quarantined), "nothing needs an operator"),
    )


def _answer(question: str, answers: dict[HealthLevel, str], findings: Sequence[Finding], all_well: str) -> Answer:
    ranks = list(HealthLevel)
    worst_first = sorted(findings, key=lambda finding: -ranks.index(finding[0]))
    level = worst_first[0][0] if worst_first else HealthLevel.GOOD
    only_unknown = bool(worst_first) and all(text.endswith(UNKNOWN) for _, text in worst_first)
    details = [text for _, text in worst_first[:DETAILS]]
    if len(worst_first) > DETAILS:
        details.append(f"and {len(worst_first) - DETAILS} more")
    return Answer(question, "Not known" if only_unknown else answers[level], level, tuple(details) or (all_well,))


def _sweep(settings: Settings, view: ShardView) -> Iterator[Finding]:
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
    yield from _memory(status)
    for process in status.processes.silent:
        age = span(process.heartbeat_age_seconds + view.age_seconds)
        yield HealthLevel.WATCH, f"process {process.process} has been silent for {age}"
    yield from _ticks(settings, view, status)
    for kind in status.kinds:
        if kind.held:
            yield HealthLevel.BAD, f"{kind.kind}: {kind.held:,} held: {kind.held_because}"
        oldest = kind.oldest_overdue_seconds
        if oldest > OVERDUE_WATCH:
            level = HealthLevel.BAD if oldest > OVERDUE_BAD else HealthLevel.WATCH
            about = "" if kind.exact else "about "
            yield level, f"{_named(status, kind)}{about}{kind.overdue:,} overdue, the oldest for {span(oldest)}"


def _memory(status: ShardStatus) -> Iterator[Finding]:
    if status.deferred:
        yield HealthLevel.BAD, f"{status.deferred:,} expiries wait until Redis has memory"
    percent = status.memory_percent
    if percent is not None and percent >= ALMOST_FULL:
        level = HealthLevel.BAD if percent >= 100 else HealthLevel.WATCH
        yield level, f"Redis uses {percent} % of its maxmemory"


def _ticks(settings: Settings, view: ShardView, status: ShardStatus) -> Iterator[Finding]:
    """Whether the last sweep of each kind is recent."""
    # A dead replica is replaced after the lease's TTL and an interval; a drain may use up its time budget.
    sweep = settings.sweep
    late = (3 * sweep.interval + sweep.lease_ttl).total_seconds() + 10
    for kind in status.kinds:
        limit, name = late + (sweep.time_budget.total_seconds() if kind.sweeping else 0), _named(status, kind)
        if kind.tick_age_seconds is None:
            yield HealthLevel.WATCH, f"{name}no sweep has ended yet"
        elif (age := kind.tick_age_seconds + view.age_seconds) > limit:
            yield HealthLevel.BAD, f"{name}not swept for {span(age)}"


def _named(status: ShardStatus, kind: KindDocument) -> str:
    """The name of the kind before a finding; empty if it is the only one."""
    return f"{kind.kind}: " if len(status.kinds) > 1 else ""


def _deliveries(view: ShardView) -> Iterator[Finding]:
    if view.status is None or view.error or view.age_seconds > STALE:
        # Without Redis nothing is delivered either.
        if view.status is None or view.status.endpoints:
            yield HealthLevel.WATCH, UNKNOWN
        return
    if "delivers" in view.status.processes.missing:
        waits = any(endpoint.configured and endpoint.state != "group" for endpoint in view.status.endpoints)
        yield HealthLevel.BAD if waits else HealthLevel.WATCH, "no process delivers"
    yield from filter(None, map(judge_endpoint, view.status.endpoints))


def _quarantined(view: ShardView) -> Iterator[Finding]:
    if view.status is None:
        yield HealthLevel.WATCH, UNKNOWN
        return
    for kind in view.status.kinds:
        if kind.quarantined:
            yield HealthLevel.WATCH, f"{_named(view.status, kind)}{kind.quarantined:,} in quarantine"
    if view.status.dead_letters:
        letters = "dead letter" if view.status.dead_letters == 1 else "dead letters"
        yield HealthLevel.WATCH, f"{view.status.dead_letters:,} {letters}"
