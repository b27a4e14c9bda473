"""Renders the status of all shards for `status --json` and the status page."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import AliasPath, Field

from sweeperd import __version__
from sweeperd.config import Settings
from sweeperd.document import Count, Document, DownShard, Moment, Seconds, ShardsDocument
from sweeperd.ops.advice import Advice, endpoint_advice, reason_advice, shard_advice
from sweeperd.ops.endpoint_health import ENDPOINT_STATES, most_troubled, state_level, unlisted
from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.health import STALE, ShardView, summarize_health
from sweeperd.ops.history import StatusSample
from sweeperd.ops.processes import ProcessDocument
from sweeperd.ops.reasons import ReasonCount
from sweeperd.ops.status import Due, KindDocument, MemoryDocument, ShardStatus, WalkDocument
from sweeperd.outbox.attempts import Attempt
from sweeperd.store.lease import process_name
from sweeperd.sweep.last_sweep import LastSweep

#: The longest text that is shown, characters.
TEXT = 200
#: Up to how many reasons of quarantine, and endpoints that are not configured, are listed.
REASONS, UNKNOWN = 20, 10


class UnreachableShard(Document):
    """A shard whose Redis could not be read."""

    shard: str = Field(validation_alias="name")
    address: str = Field(description="Where Redis is, without credentials.")
    reachable: Literal[False]
    error: str


def _of_reservations(name: str, description: str | None = None) -> Any:
    return Field(validation_alias=AliasPath("reservations", name), description=description)


class ShardDocument(Document):
    """A shard. The fields about due entries, quarantine, sweep, rate and walk are those of reservations in `kinds`."""

    shard: str = Field(validation_alias="name")
    address: str = Field(description="Where Redis is, without credentials.")
    reachable: Literal[True]
    now: Moment = Field(validation_alias="now_ms", description="When this was read, on Redis's clock.")
    due: Due
    quarantined: Count = _of_reservations("quarantined")
    tick: LastSweep | None = _of_reservations("tick", "null before the first sweep.")
    tick_age_seconds: Seconds | None = _of_reservations("tick_age_seconds")
    rate: float | None = _of_reservations("rate", "Expiries per second, or null.")
    rate_window_seconds: Seconds = _of_reservations("rate_window_seconds", "The time over which the rate was measured.")
    empty_in_seconds: Seconds | None = _of_reservations(
        "empty_in_seconds", "How long overdue entries take at this rate; null: forever."
    )
    last_walk: WalkDocument | None = _of_reservations("last_walk", "The last walk of reconcile; null before the first.")
    empty: bool = Field(description="Whether Redis holds none of the keys: a wrong database or prefix?")
    sweeping: str = _of_reservations(
        "sweeping", "The process that sweeps now: host, process id and a random part; or empty."
    )
    kinds: list[KindDocument] = Field(description="All kinds that are swept, reservations first.")
    endpoints: list[EndpointDocument]
    dead_letters: Count
    dead_letters_counted: bool = Field(description="Whether the dead letters of each endpoint are all counted.")
    processes: list[ProcessDocument] | None = Field(
        validation_alias=AliasPath("processes", "known"),
        description="The daemons that run, and those that fell silent in the last hour; null if this user may not read "
        "them.",
    )
    memory: MemoryDocument | None = Field(description="null if this user may not run INFO.")
    deferred: Count = Field(
        description="Overdue entries of all kinds that wait because Redis is above sweep.memory_limit, as of the last "
        "full ticks."
    )


class StatusDocument(ShardsDocument, title="sweeperd status --json"):
    shards: list[ShardDocument | UnreachableShard]

    @classmethod
    def of(cls, statuses: Sequence[ShardStatus]) -> "StatusDocument":
        models = [ShardDocument if status.reachable else UnreachableShard for status in statuses]
        down = [DownShard.made_of(each, shard=each.name) for each in statuses if not each.reachable]
        shards = [model.model_validate(status) for model, status in zip(models, statuses, strict=True)]
        return cls(shards=shards, down=down)


def status_report(
    settings: Settings, shards: Sequence[tuple[ShardView, Sequence[StatusSample]]], now: float
) -> dict[str, Any]:
    """The document of the status page. `now`: monotonic, seconds, like the samples."""
    answers = summarize_health(settings, [view for view, _ in shards])
    return {
        "version": __version__,
        "by": _text(process_name()),
        "answers": [asdict(answer) | {"details": [_text(detail) for detail in answer.details]} for answer in answers],
        "runbook": settings.http.runbook,
        "shards": [
            _shard(settings, view, samples, now, ("--shard", view.name) if len(shards) > 1 else ())
            for view, samples in shards
        ],
    }


def _shard(
    settings: Settings, view: ShardView, samples: Sequence[StatusSample], now: float, options: Sequence[str]
) -> dict[str, Any]:
    """`options` name this shard in the commands to copy."""
    return {
        "shard": view.name,
        "address": _text(view.address),
        "error": _text(view.error),
        "stale": bool(view.error) or view.age_seconds > STALE,
        "age_seconds": round(view.age_seconds, 1),
        "status": None if view.status is None else _status(settings, view.status, samples, options),
        "history": {
            "seconds_ago": [round(now - sample.at, 1) for sample in samples],
            "unread": [sample.kinds is None for sample in samples],
        },
    }


def _status(
    settings: Settings, status: ShardStatus, samples: Sequence[StatusSample], options: Sequence[str]
) -> dict[str, Any]:
    """The document of the shard, with fields that only the page needs."""
    places = {endpoint.name: _place(endpoint.url.get_secret_value()) for endpoint in settings.consumers}
    known = [endpoint for endpoint in status.endpoints if endpoint.configured]
    unknown = [endpoint for endpoint in status.endpoints if not endpoint.configured]
    listed = (*most_troubled(known), *unknown[:UNKNOWN])
    document: dict[str, Any] = _short(ShardDocument.model_validate(replace(status, endpoints=listed)).as_json())
    for endpoint, of_endpoint in zip(listed, document["endpoints"], strict=True):
        of_endpoint |= {
            **_advice(endpoint_advice(endpoint, options)),
            "place": places.get(endpoint.endpoint, ""),
            "label": ENDPOINT_STATES[endpoint.state].label,
            "level": state_level(endpoint),
            "attempts": [_attempt(status, attempt) for attempt in status.details.attempts.get(endpoint.endpoint, ())],
            "history": [(sample.pending or {}).get(endpoint.endpoint) for sample in samples]
            if endpoint.configured
            else [],
        }
    for of_kind in document["kinds"]:
        figures = [(sample.kinds or {}).get(of_kind["kind"]) for sample in samples]
        of_kind["history"] = {
            "overdue": [each and each.overdue for each in figures],
            "expired_per_second": [each and each.rate for each in figures],
            "quarantined": [each and each.quarantined for each in figures],
        }
    return document | {
        "warnings": [_advice(advice) for advice in shard_advice(status, options)],
        "reasons": [_reason(reason, options) for reason in status.details.reasons[:REASONS]],
        "more_endpoints": max(0, len(unknown) - UNKNOWN),
        "grouped": unlisted(known),
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
    """An attempt without its response, which may repeat what only the receiver should see."""
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
    """Scheme, host and port of the receiver; the other parts of a URL may hold credentials."""
    parts = urlsplit(url)
    if not parts.hostname:
        return parts.scheme  # the relay
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return _text(f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else ""))


def _short(value: Any) -> Any:
    """A JSON value with `_text` applied to each text."""
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    """Shortens the text and escapes characters that could hide or reverse other text."""
    short = value if len(value) <= TEXT else value[: TEXT - 1] + "…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in short)
