"""The status of one shard over the last hour, read by one thread: what the status page shows."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sweeperd import __version__
from sweeperd.config import Settings
from sweeperd.ops.health import STALE, Advice, ShardView, endpoint_advice, reason_advice, shard_advice, summarize_health
from sweeperd.ops.processes import Processes
from sweeperd.ops.show import ReasonCount
from sweeperd.ops.status import EndpointStatus, LastWalk, ReplayStatus, ShardStatus, WalkEnd
from sweeperd.outbox.attempts import Attempt
from sweeperd.outbox.endpoint_state import CircuitNote
from sweeperd.store.lease import process_name
from sweeperd.text import rfc3339

#: Between two samples, seconds, and how far back they go.
SAMPLE_EVERY, REMEMBERED = 15.0, 3600.0
#: After a request for the status, every call of `update` reads Redis for so long, seconds.
WATCHED_FOR = 15.0


@dataclass(frozen=True, slots=True)
class StatusSample:
    """One shard at one moment. None where Redis did not answer."""

    #: Monotonic, seconds.
    at: float
    overdue: int | None = None
    quarantined: int | None = None
    #: Expiries per second, as `ops.rate` has them, and when this was read, ms on Redis's clock.
    rate: float | None = None
    now_ms: int = 0
    #: Endpoint -> events that wait.
    pending: Mapping[str, int | None] | None = None


class StatusHistory:
    """
    One thread calls `update`; requests use `view` and `samples`, which never wait for Redis. `read` may take long, and
    does not raise where Redis is not available. It is called every SAMPLE_EVERY, and at each `update` after a request.
    """

    def __init__(self, name: str, address: str, read: Callable[[], ShardStatus]) -> None:
        self._name = name
        self._address = address
        self._read = read
        self._lock = threading.Lock()
        self._samples: deque[StatusSample] = deque(maxlen=int(REMEMBERED / SAMPLE_EVERY))
        self._status: ShardStatus | None = None
        self._read_at = 0.0
        self._error = ""
        self._asked_at: float | None = None

    def adopt(self, before: "StatusHistory") -> None:
        """Take over what another remembers of the same shard."""
        with before._lock:
            samples, status, read_at, error = before._samples.copy(), before._status, before._read_at, before._error
        with self._lock:
            self._samples, self._status, self._read_at, self._error = samples, status, read_at, error

    def update(self) -> None:
        """Call it every few seconds."""
        now = time.monotonic()
        with self._lock:
            watched = self._asked_at is not None and now - self._asked_at < WATCHED_FOR
            due = not self._samples or now - self._samples[-1].at >= SAMPLE_EVERY
        if not (watched or due):
            return
        status = self._read()
        with self._lock:
            self._error = status.error
            if status.reachable:
                self._status, self._read_at = status, time.monotonic()
            if due:
                self._samples.append(_sample(now, status))

    def view(self) -> ShardView:
        """The last status that was read. This counts as a request: Redis is read more often from now on."""
        with self._lock:
            self._asked_at = now = time.monotonic()
            age = now - self._read_at if self._status else 0.0
            return ShardView(self._name, self._address, self._status, age, self._error)

    def samples(self) -> list[StatusSample]:
        """The last hour, the oldest first, with what is known now as the last one."""
        now = time.monotonic()
        with self._lock:
            kept = [sample for sample in self._samples if now - sample.at <= REMEMBERED]
            status = None if self._error else self._status
            if status is not None and not (kept and kept[-1].now_ms == status.now_ms):
                kept.append(_sample(self._read_at, status))
        return kept


def _sample(at: float, status: ShardStatus) -> StatusSample:
    if not status.reachable:
        return StatusSample(at)
    return StatusSample(
        at,
        status.due.overdue,
        status.quarantined,
        status.rate.per_second,
        status.now_ms,
        {endpoint.name: endpoint.pending for endpoint in status.endpoints if endpoint.configured},
    )


# ---- what the page shows, as JSON: the three answers, and each shard with its endpoints and its last hour


#: The longest text that is shown, characters.
TEXT = 200
#: How many reasons of quarantine are listed.
REASONS = 20
#: How many endpoints that are not configured are listed: their names come from the dead letters.
UNKNOWN = 10


def status_report(
    settings: Settings, shards: Sequence[tuple[ShardView, Sequence[StatusSample]]], now: float
) -> dict[str, Any]:
    """All of it. `now`: monotonic, seconds, like the samples'."""
    answers = summarize_health(settings, [view for view, _ in shards])
    return {
        "version": __version__,
        "by": _text(process_name()),
        "answers": [
            {
                "question": answer.question,
                "answer": answer.answer,
                "level": answer.level,
                "details": [_text(detail) for detail in answer.details],
            }
            for answer in answers
        ],
        "runbook": settings.http.runbook,
        "shards": [
            _shard(settings, view, samples, now, ("--shard", view.name) if len(shards) > 1 else ())
            for view, samples in shards
        ],
    }


def _shard(
    settings: Settings, view: ShardView, samples: Sequence[StatusSample], now: float, options: Sequence[str]
) -> dict[str, Any]:
    """`options`: what the commands to copy need, to mean this shard."""
    return {
        "shard": view.name,
        "address": _text(view.address),
        "error": _text(view.error),
        "stale": bool(view.error) or view.age_seconds > STALE,
        "age_seconds": round(view.age_seconds, 1),
        "status": None if view.status is None else _status(settings, view.status, samples, options),
        "history": {
            "seconds_ago": [round(now - sample.at, 1) for sample in samples],
            "overdue": [sample.overdue for sample in samples],
            "expired_per_second": [sample.rate for sample in samples],
            "quarantined": [sample.quarantined for sample in samples],
        },
    }


def _status(
    settings: Settings, status: ShardStatus, samples: Sequence[StatusSample], options: Sequence[str]
) -> dict[str, Any]:
    tick, due = status.tick, status.due
    places = {endpoint.name: _place(endpoint.url.get_secret_value()) for endpoint in settings.consumers}
    known = [endpoint for endpoint in status.endpoints if endpoint.configured]
    unknown = [endpoint for endpoint in status.endpoints if not endpoint.configured]
    return {
        "overdue": due.overdue,
        "in_grace": due.in_grace,
        "exact": due.exact,
        "oldest_overdue_seconds": round(due.oldest_overdue_seconds, 1),
        "quarantined": status.quarantined,
        "dead_letters": status.dead_letters,
        "sweeping": _text(status.sweeping),
        **rate_as_dict(status),
        "last_walk": None if status.last_walk is None else last_walk_as_dict(status.last_walk),
        "empty": status.empty,
        "warnings": [_advice(advice) for advice in shard_advice(status, options)],
        "reasons": [_reason(reason, options) for reason in status.details.reasons[:REASONS]],
        "processes": processes_as_list(status.processes),
        "tick": None
        if tick is None
        else {
            "age_seconds": status.tick_age_seconds,
            "by": _text(tick.by),
            "seconds": tick.seconds,
            "complete": tick.complete,
            "expired": tick.expired,
        },
        "kinds": [
            {
                "kind": kind.name,
                "due": kind.due,
                "oldest_due_seconds": round(kind.oldest_due_seconds, 1),
                "quarantined": kind.quarantined,
                "sweeping": _text(kind.sweeping),
                "tick_age_seconds": None if kind.tick is None else max(0, status.now_ms - kind.tick.at_ms) / 1000,
                "last_walk": kind.last_walk and last_walk_as_dict(kind.last_walk),
            }
            for kind in status.kinds
        ],
        "endpoints": [
            _endpoint(status, endpoint, places.get(endpoint.name, ""), samples)
            | _advice(endpoint_advice(endpoint, options))
            for endpoint in known + unknown[:UNKNOWN]
        ],
        "more_endpoints": max(0, len(unknown) - UNKNOWN),
    }


def last_walk_as_dict(walk: WalkEnd) -> dict[str, Any]:
    """The last walk over the reservations or over a kind, for the page and for `status`."""
    foreign = {"foreign_expiries": walk.foreign_expiries} if isinstance(walk, LastWalk) else {}
    return {
        "finished_at": rfc3339(walk.finished_at),
        "findings": walk.total,
        "found": {fault.value: count for fault, count in walk.found.items()},
        **foreign,
    }


def processes_as_list(processes: Processes) -> list[dict[str, Any]] | None:
    """The daemons that live; None where it is not known."""
    if processes.living is None:
        return None
    return [
        {"process": _text(note.process), "sweeps": note.sweeps, "delivers": note.delivers} for note in processes.living
    ]


def rate_as_dict(status: ShardStatus | EndpointStatus) -> dict[str, Any]:
    """How fast entries expire or events are delivered, and how long what waits now takes at this rate."""
    rate = status.rate
    return {
        "rate": rate.per_second if rate.window_seconds else None,
        "rate_window_seconds": rate.window_seconds,
        "empty_in_seconds": status.empty_in_seconds,
    }


def replica_as_dict(note: CircuitNote) -> dict[str, Any]:
    """One process that delivers to an endpoint."""
    return {
        "process": _text(note.process),
        "circuit_open": note.probe_at > 0,
        "failures": note.failures,
        "failure": _text(note.reason),
        "rate": note.rate if note.rate_window else None,
        "delivered_at": rfc3339(note.delivered_at) if note.delivered_at else None,
    }


def replay_as_dict(replay: ReplayStatus, now_ms: int) -> dict[str, Any]:
    """A replay that is running, for the page and for `status`."""
    return {
        "since": rfc3339(replay.since_ms),
        "until": rfc3339(replay.until_ms),
        "tenant": replay.tenant,
        "event_type": replay.event_type,
        "began_at": rfc3339(replay.began_at_ms),
        "running_seconds": max(0, now_ms - replay.began_at_ms) // 1000,
        "events": replay.events,
        "left": replay.left,
    }


def _replay(status: ShardStatus, replay: ReplayStatus) -> dict[str, Any]:
    values = replay_as_dict(replay, status.now_ms)
    return values | {name: values[name] and _text(values[name]) for name in ("tenant", "event_type")}


def _endpoint(
    status: ShardStatus, endpoint: EndpointStatus, place: str, samples: Sequence[StatusSample]
) -> dict[str, Any]:
    paused_at = endpoint.paused_at_ms
    return {
        "endpoint": _text(endpoint.name),
        "place": place,
        "state": endpoint.state,
        "pending": endpoint.pending,
        "pending_exact": endpoint.pending_exact,
        "oldest_pending_seconds": round(endpoint.oldest_pending_seconds, 1),
        "paused_seconds": None if paused_at is None else max(0, status.now_ms - paused_at) // 1000,
        "quiet_seconds": round(endpoint.quiet_seconds),
        "open_on": endpoint.open_on,
        "processes": endpoint.processes,
        "failures": endpoint.failures,
        "reason": _text(endpoint.paused_reason or endpoint.failure),
        "dead_letters": endpoint.dead_letters,
        **rate_as_dict(endpoint),
        "replay": endpoint.replay and _replay(status, endpoint.replay),
        "replicas": [replica_as_dict(note) for note in endpoint.replicas],
        "attempts": [_attempt(status, attempt) for attempt in status.details.attempts.get(endpoint.name, ())],
        "history": [(sample.pending or {}).get(endpoint.name) for sample in samples] if endpoint.configured else [],
    }


def _advice(advice: Advice) -> dict[str, Any]:
    return {
        "text": _text(advice.text),
        "commands": [command for command in advice.commands if command],
        "runbook": advice.runbook,
    }


def _reason(reason: ReasonCount, options: Sequence[str]) -> dict[str, Any]:
    return _advice(reason_advice(reason, options)) | {
        "kind": reason.kind,
        "reason": _text(reason.reason),
        "count": reason.count,
        "newest": [_text(entry) for entry in reason.newest],
    }


def _attempt(status: ShardStatus, attempt: Attempt) -> dict[str, Any]:
    """Without the response: it may repeat what only its receiver should see."""
    return {
        "seconds_ago": round(max(0, status.now_ms - attempt.at_ms) / 1000, 1),
        "event": _text(attempt.event_id),
        "events": attempt.events,
        "result": _text(attempt.result),
        "reason": _text(attempt.reason),
        "milliseconds": attempt.milliseconds,
        "hand_over": attempt.hand_over,
        "attempt": attempt.attempt,
        "replica": _text(attempt.replica),
    }


def _place(url: str) -> str:
    """Whom it is sent to: no more of the URL, because credentials may stand in all the rest."""
    parts = urlsplit(url)
    if not parts.hostname:
        return parts.scheme  # the relay's
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return _text(f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else ""))


def _text(value: str) -> str:
    """Short, and without characters that hide the text next to it or reverse its direction."""
    short = value if len(value) <= TEXT else value[: TEXT - 1] + "…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in short)
