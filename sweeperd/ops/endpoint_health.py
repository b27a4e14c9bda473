"""Judges the endpoints of a shard, and ranks them by trouble."""

import enum
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.text import span

EndpointT = TypeVar("EndpointT", bound=EndpointDocument)

#: From how many seconds on a pending event is worth watching, or bad; the alert rules have the same limit for `bad`.
PENDING_WATCH, PENDING_BAD = 60.0, 900.0
#: Up to how many endpoints of a shard are listed, unless all are asked for.
LISTED = 50


class HealthLevel(enum.StrEnum):
    GOOD = "good"
    WATCH = "watch"
    BAD = "bad"


class StateStyle(NamedTuple):
    """How commands and page show a state. `level`: None if it is neither good nor bad."""

    label: str
    level: HealthLevel | None


#: By `EndpointDocument.state`.
ENDPOINT_STATES = {
    "delivering": StateStyle("delivering", HealthLevel.GOOD),
    "stopped": StateStyle("no process delivers", HealthLevel.BAD),
    "muted": StateStyle("muted", HealthLevel.WATCH),
    "open": StateStyle("circuit open", HealthLevel.BAD),
    "paused": StateStyle("paused", HealthLevel.BAD),
    "group": StateStyle("read by another program", None),
    "unknown": StateStyle("not in the configuration", None),
}


Finding = tuple[HealthLevel, str]


def state_level(endpoint: EndpointDocument) -> HealthLevel | None:
    """How bad the state is; None if it is neither good nor bad. While nothing waits, a pause delays nothing."""
    if endpoint.state == "paused" and endpoint.pending == 0:
        return HealthLevel.WATCH
    return ENDPOINT_STATES[endpoint.state].level


def judge_endpoint(endpoint: EndpointDocument) -> Finding | None:
    """How bad the state of an endpoint is, and why; None if all is well, or if it is not configured."""
    if endpoint.pending is None:
        waiting = "it has no consumer group"
    elif endpoint.pending:
        waiting = f"{endpoint.pending:,} wait, the oldest for {span(endpoint.oldest_pending_seconds)}"
    else:
        waiting = "nothing waits"
    if endpoint.state in {"unknown", "group"}:
        return None
    if endpoint.state == "paused":
        return state_level(endpoint) or HealthLevel.BAD, f"{endpoint.endpoint} is paused; {waiting}"
    if endpoint.state == "open":
        return HealthLevel.BAD, f"{endpoint.endpoint}: circuit open; {waiting}"
    if endpoint.warning:
        level = HealthLevel.BAD if endpoint.stalled and endpoint.pending else HealthLevel.WATCH
        return level, f"{endpoint.endpoint} {endpoint.warning}; {waiting}"
    if endpoint.oldest_pending_seconds > PENDING_BAD:
        return HealthLevel.BAD, f"{endpoint.endpoint}: {waiting}"
    if endpoint.oldest_pending_seconds > PENDING_WATCH or endpoint.pending is None:
        return HealthLevel.WATCH, f"{endpoint.endpoint}: {waiting}"
    return None


def most_troubled(endpoints: Sequence[EndpointT], limit: int = LISTED) -> list[EndpointT]:
    """All endpoints in order; if there are more than `limit`, those with the most trouble, the worst first."""

    def trouble(endpoint: EndpointT) -> tuple[int, int, int]:
        finding, usual = judge_endpoint(endpoint), ENDPOINT_STATES[endpoint.state].level or HealthLevel.GOOD
        level = max(usual, finding[0] if finding else usual, key=list(HealthLevel).index)
        return list(HealthLevel).index(level), endpoint.dead_letters, endpoint.pending or 0

    return sorted(endpoints, key=trouble, reverse=True)[:limit] if len(endpoints) > limit else list(endpoints)


def unlisted(endpoints: Sequence[EndpointDocument], limit: int = LISTED) -> str:
    """One line about the endpoints that `most_troubled` leaves out; empty if it lists all."""
    listed = {endpoint.endpoint for endpoint in most_troubled(endpoints, limit)}
    rest = [endpoint for endpoint in endpoints if endpoint.endpoint not in listed]
    if not rest:
        return ""
    states = Counter(endpoint.state for endpoint in rest)
    counts = [f"{states[state]:,} {style.label}" for state, style in ENDPOINT_STATES.items() if states[state]]
    if pending := sum(endpoint.pending or 0 for endpoint in rest):
        counts.append(f"{pending:,} pending")
    if letters := sum(endpoint.dead_letters for endpoint in rest):
        counts.append(f"{letters:,} dead letter{'s' * (letters != 1)}")
    return f"{len(rest):,} more endpoint{'s' * (len(rest) != 1)}: {', '.join(counts)}"
