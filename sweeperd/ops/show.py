"""Inspects one entry: its hash, what a sweep would decide now, its event and deliveries."""

import contextlib
import enum
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, cast

import redis
from pydantic import AliasGenerator, AliasPath, ConfigDict, Field, PlainSerializer, WithJsonSchema

from sweeperd.config import Settings
from sweeperd.document import Count, Document, Moment, Seconds, Text
from sweeperd.ops.advice import command_line
from sweeperd.outbox.attempts import attempts_with
from sweeperd.outbox.event import OutboxEntry, event_id
from sweeperd.outbox.filters import Filters
from sweeperd.outbox.groups import LONG_IDLE_MS, REPLAY_PREFIX, is_waiting
from sweeperd.outbox.replays import replay_group
from sweeperd.outbox.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group
from sweeperd.store.scripts import accepted, run_commands
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId, StreamRow
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.explanation import Explanation, explain
from sweeperd.sweep.fields import json_fields, member_fields
from sweeperd.sweep.kind import PROTECTED, Budgets, Kind, Outcome
from sweeperd.sweep.proof import is_proven
from sweeperd.sweep.reservations import kind_of_event, kind_option
from sweeperd.text import candidates, decode, integer, moment_ms, span, strings, whole

#: One script writes `expired_at` and the event, so the event's id lies within these ms of `expired_at`.
EVENT_BEFORE, EVENT_AFTER = 10, 5_000
#: Up to how many entries of a stream are searched for an event, and of how many scopes the budget is shown.
SEARCH, SCOPES = 20_000, 100
_WHY = {
    Outcome.IN_GRACE: "the deadline has passed, its grace has not: a late commit is still accepted",
    Outcome.NOT_DUE: "its deadline is in the future; the index would be set to it",
}
Fields = dict[bytes, bytes]
_Score = Annotated[
    float | None,
    PlainSerializer(lambda score: None if score is None else moment_ms(score), return_type=float | None),
]


class Fate(enum.StrEnum):
    """The state of an event at one endpoint."""

    #: In flight, or waiting for the next attempt.
    PENDING = "pending"
    NOT_TAKEN = "not taken yet"
    DEAD_LETTER = "dead letter"
    #: Delivered, or the endpoint is younger than the event.
    ACKNOWLEDGED = "acknowledged"
    #: Excluded by the endpoint's `tenants`, `events` or `scopes`.
    NOT_ASKED_FOR = "not asked for"
    #: Configured, but no daemon has run with this configuration yet.
    NO_GROUP = "no group yet"


@dataclass(frozen=True, slots=True)
class EventDelivery:
    endpoint: str
    fate: Annotated[Fate, WithJsonSchema({"type": "string"}), Field(description="Its state at this endpoint.")]
    hand_overs: Count = 0
    #: The process that delivers the event; empty if it waits for the next hand-over.
    owner: str = ""
    #: Since the last hand-over; None if the event was made due since then, because that time is gone.
    idle_seconds: Seconds | None = 0.0
    #: Why it became a dead letter.
    reason: str = ""


class AttemptDocument(Document):
    """A recorded delivery attempt."""

    # A field without an alias is read from the attempt inside the RecordedAttempt.
    model_config = ConfigDict(
        alias_generator=AliasGenerator(validation_alias=lambda name: AliasPath("attempt", name)),
    )

    at: Moment = Field(validation_alias=AliasPath("attempt", "at_ms"))
    shard: str = Field(validation_alias="shard")
    endpoint: str = Field(validation_alias="endpoint")
    result: Annotated[str, WithJsonSchema({"enum": ["delivered", "rejected", "failed"]})]
    reason: str = Field(description="The status, or why there was no response.")
    milliseconds: Count
    hand_over: Count = Field(description="Which hand-over of the first event it was, from 1.")
    attempt: Count = Field(description="Which attempt within the hand-over, from 1.")
    events: Count = Field(description="How many events the request had.")
    event_id: str = Field(description="Of the first event.")
    reservation_id: Text = Field(
        validation_alias=AliasPath("attempt", "reservation"),
        description="What has expired; of the first event. Bytes that are not UTF-8 are escaped.",
    )
    webhook_id: str = Field(description="Of the request; a batch has its own id.")
    first_stream_id: Text = Field(validation_alias=AliasPath("attempt", "first"))
    last_stream_id: Text = Field(validation_alias=AliasPath("attempt", "last"))
    replica: str = Field(description="Host, process id and a random part of the daemon.")
    answer: Annotated[str, WithJsonSchema({"type": "string", "maxLength": 256})] = Field(
        description="The beginning of the response's body, with secrets masked."
    )


class EventDocument(Document):
    webhook_id: str
    stream_id: Text
    fields: dict[Text, Text]
    deliveries: list[EventDelivery]
    attempts: list[AttemptDocument] = Field(description="Newest first, including batches that span the event.")


class VerdictDocument(Document):
    outcome: str
    detail: str
    why: str
    writes: list[list[Text]] = Field(description="The commands that it would run.")


class InspectionDocument(Document):
    shard: str
    kind: str = Field(description="`reservations`, or a configured kind.")
    id: Text
    key: Text
    type: str = Field(description="The Redis type of the key; none if it does not exist.")
    fields: dict[Text, Text] = Field(description="The hash as it is stored.")
    ttl_ms: int | None
    score: _Score = Field(description="The deadline in the index, ms, clamped to 0 to 2^53.")
    quarantined_at: Moment | None
    budgets: dict[Text, dict[Text, Text] | str | None] = Field(
        description="The hash of each scope's budget; the type of the key if it is not a hash; null if there is none."
    )
    event: EventDocument | None
    sweep: VerdictDocument
    commands: list[str] = Field(description="What an operator can run next.")


#: By scope, in order: the hash of a budget, the type of a key that is not a hash, or None.
_BudgetsByScope = dict[bytes, Fields | str | None]
#: A scope, what is reserved there, and what is to be given back.
_Underflow = tuple[bytes, int, int]


def inspect(
    settings: Settings, shard: Shard, kind: Kind, entry: bytes, row: StreamRow | None = None
) -> InspectionDocument | None:
    """
    Inspects an entry; None if the shard does not know it. `row`: the event to show, instead of that of the last expiry.
    """
    key = kind.entry_key(entry)
    places = (("ZSCORE", name, entry) for name in (kind.index, kind.quarantine))
    replies = run_commands(shard.client, [("TYPE", key), ("PTTL", key), *places])
    type_, ttl, score, quarantined_at = accepted(replies)
    if kind.form == "member":
        type_, ttl = b"none", -1
    if row is None and type_ == b"none" and score is None and quarantined_at is None:
        return None
    fields = _fields(shard, kind, entry, type_)
    (explanation,) = explain(shard, kind, [entry], 1, proven=is_proven(shard, kind))
    decision = explanation.decision
    budgets = _budgets(shard, kind.counters, fields) if isinstance(kind.counters, Budgets) else {}
    underflows = _underflows(fields, budgets) if decision.detail == "RESERVED_UNDERFLOW" else []
    found = row or _expiry(shard, kind, entry, fields)
    event = read_event(settings, shard, found) if found else None
    options = ("--shard", shard.name) if len(settings.shards) > 1 else ()
    values = {
        "shard": shard.name,
        "kind": kind.name,
        "id": entry,
        "key": key,
        "type": type_.decode(),
        "fields": fields,
        "ttl_ms": ttl if ttl >= 0 else None,
        "score": None if score is None else kind.moment_of(score),
        "quarantined_at": quarantined_at,
        "budgets": budgets,
        "event": event,
        "sweep": VerdictDocument.made_of(decision, why=_why(kind, explanation, underflows), writes=explanation.writes),
    }
    document = InspectionDocument.model_validate({**values, "commands": []})
    scopes = [decode(scope + b":" + fields.get(b"estimate_unit", b"")) for scope, _, _ in underflows]
    endpoints = {endpoint.name for endpoint in settings.webhooks.endpoints}
    return document.model_copy(update={"commands": _commands(document, endpoints, scopes, options)})


def _commands(
    entry: InspectionDocument, endpoints: Container[str], drifted: Sequence[str], options: Sequence[str]
) -> list[str]:
    """
    The commands that apply to the entry, without those that cannot be copied. `endpoints`: those in the settings, which
    alone can skip an event. `drifted`: budgets to repair.
    """
    kind, named = kind_option(entry.kind), [*options, *(["--"] if entry.id.startswith("-") else []), entry.id]
    words: list[Sequence[str]] = [("reconcile", "--repair-budget", budget, *options) for budget in drifted]
    words.append(("show", *kind, *named))
    if entry.quarantined_at is not None:
        words += [("quarantine", verb, *kind, *named) for verb in ("requeue", "dismiss")]
    for delivery in entry.event.deliveries if entry.event else ():
        if delivery.fate is Fate.DEAD_LETTER:
            words.append(("dead-letters", "replay", "--endpoint", delivery.endpoint, *options))
        elif delivery.fate is Fate.PENDING and delivery.endpoint in endpoints and entry.event:
            words.append(("endpoints", "skip", delivery.endpoint, entry.event.webhook_id, *options))
    return list(dict.fromkeys(filter(None, (command_line(*each) for each in words))))


def _underflows(fields: Fields, budgets: _BudgetsByScope) -> list[_Underflow]:
    """The scopes for which RESERVED_UNDERFLOW is decided."""
    found, amount = list[_Underflow](), whole(fields.get(b"estimate_amount", b""))
    for scope, mentions in Counter(_scopes(fields)).items():
        budget = budgets.get(scope)
        if amount is None or not isinstance(budget, dict) or budget.get(b"status") == b"CLOSED":
            continue
        reserved = integer(budget.get(b"reserved", b""))
        if reserved is not None and reserved < mentions * amount:
            found.append((scope, reserved, mentions * amount))
    return found


def _why(kind: Kind, explanation: Explanation, underflows: Sequence[_Underflow]) -> str:
    decision = explanation.decision
    if decision.outcome is Outcome.EXPIRED:
        lacking = f"; there is no {kind.labels.lacking} {', '.join(decision.missing)}" if decision.missing else ""
        if any(kind.protected in write for write in explanation.writes):
            return f"deadline and grace have passed, and `unless` no longer protects it{lacking}"
        return f"deadline and grace passed {span(decision.lag_ms / 1000)} ago{lacking}"
    if decision.outcome is Outcome.QUARANTINED:
        why = decision.why or kind.reasons.get(decision.detail, "")
        lacks = (f"{decode(scope)} has {held} reserved, {back} to give back" for scope, held, back in underflows)
        return f"{decision.detail}: {'; '.join([why, *lacks])}"
    if decision.outcome is Outcome.HELD:
        return f"no active entry of the kind was seen yet, so it stays; {decision.why or 'it has no hash'}"
    if decision.outcome is Outcome.SKIPPED:
        return f"it is already {decision.detail}; the index entry would be removed"
    if decision.outcome is Outcome.NOT_FOUND:
        return f"there is no such {kind.labels.entry}; the index entry would be removed"
    if decision.detail == PROTECTED:
        return "deadline and grace have passed, but `unless` protects it; the index would be set to a later time"
    return _WHY.get(decision.outcome, decision.detail)


def _fields(shard: Shard, kind: Kind, entry: bytes, type_: bytes) -> Fields:
    """The fields of an entry, with the marks of one that is not a hash."""
    key, marks = kind.entry_key(entry), Fields()
    if kind.marks is not None and (mark := run_commands(shard.client, [("HGET", kind.marks, entry)])[0]):
        first, _, rest = mark.partition(b" ")
        dismissed = first == b"dismissed"
        marks = {b"dismissed_at": rest} if dismissed else {b"quarantine_reason": first, b"quarantine_detail": rest}
    if kind.form == "member":
        return member_fields(kind.parts, entry) | marks
    if kind.form == "json":
        return (json_fields(cast(bytes, shard.client.get(key))) if type_ == b"string" else Fields()) | marks
    return cast(Fields, shard.client.hgetall(key)) if type_ == b"hash" else {}


def inspect_all(settings: Settings, shard: Shard, names: Sequence[str], text: str) -> Iterator[InspectionDocument]:
    """The first entry of each of these kinds with the id `text`, raw or as displayed."""
    for name in names:
        kind = kinds_of(settings, shard)[name]
        inspections = (inspect(settings, shard, kind, entry) for entry in candidates(text))
        if inspection := next(filter(None, inspections), None):
            yield inspection


def _budgets(shard: Shard, budgets: Budgets, fields: Fields) -> _BudgetsByScope:
    found: _BudgetsByScope = {}
    for scope in _scopes(fields)[:SCOPES]:
        key = budgets.stem + scope + b":" + fields.get(b"estimate_unit", b"")
        type_ = cast(bytes, shard.client.type(key))
        if type_ == b"hash":
            found[scope] = cast(Fields, shard.client.hgetall(key))
        else:
            found[scope] = None if type_ == b"none" else type_.decode()
    return found


def _scopes(fields: Fields) -> tuple[bytes, ...]:
    with contextlib.suppress(ValueError, RecursionError):
        return strings(fields.get(b"budgeted_scopes") or fields.get(b"affected_scopes") or b"[]")
    return ()


def _expiry(shard: Shard, kind: Kind, subject: bytes, fields: Fields) -> StreamRow | None:
    """The event of the last expiry, found by the time in the hash."""
    expired_at = fields.get(b"expired_at", b"")
    if not expired_at.isdigit() or len(expired_at) > 16:
        return None
    around = int(expired_at)
    for entry, event in _range(shard, shard.keys.events, max(0, around - EVENT_BEFORE), b"%d" % (around + EVENT_AFTER)):
        if kind_of_event(event) == kind.name and event.get(b"id") == subject and event.get(b"expired_at") == expired_at:
            return entry, event
    return None


def read_event(settings: Settings, shard: Shard, row: StreamRow) -> EventDocument:
    entry, fields = row
    deliveries = list(_deliveries(settings, shard, entry, fields))
    attempts = attempts_with(shard, (delivery.endpoint for delivery in deliveries), entry)
    values = {"stream_id": entry, "fields": fields, "deliveries": deliveries, "attempts": attempts}
    return EventDocument.model_validate({"webhook_id": event_id(shard.origin, fields), **values})


def _range(shard: Shard, key: bytes, first_ms: int, last: bytes = streams.LAST) -> Iterator[StreamRow]:
    """Up to SEARCH entries of a stream from this time on."""
    return islice(streams.read(shard, key, b"%d" % first_ms, last), SEARCH)


def _deliveries(settings: Settings, shard: Shard, entry: bytes, event: Fields) -> Iterator[EventDelivery]:
    letters = {
        decode(letter.get(b"endpoint", b"")): letter
        for _, letter in streams.read(shard, shard.keys.dead_letters, b"%d" % streams.milliseconds(entry))
        if letter.get(b"event") == entry
    }
    groups = {decode(key): info for key, info in streams.groups(shard.client, shard.keys.events).items()}
    names = [name for name in groups if not name.startswith(REPLAY_PREFIX)]
    configured = {endpoint.name: Subscription(endpoint) for endpoint in settings.consumers}
    filters, found = Filters(shard, "operator"), OutboxEntry.of(entry, 0, event)
    filters.refresh()
    for name in dict.fromkeys([*configured, *names, *letters]):
        subscription = configured.get(name)
        if name in letters:
            letter = letters[name]
            hand_overs = whole(letter.get(b"attempts", b"")) or 0
            yield EventDelivery(name, Fate.DEAD_LETTER, hand_overs, reason=decode(letter.get(b"reason", b"")))
        elif name not in groups:
            yield EventDelivery(name, Fate.NO_GROUP)
        elif StreamId.parse(entry) > StreamId.parse(groups[name]["last-delivered-id"]):
            yield EventDelivery(name, Fate.NOT_TAKEN)
        elif subscription is not None and not filters.wanted(subscription, found):
            yield EventDelivery(name, Fate.NOT_ASKED_FOR)
        elif pending := _pending(shard, name, filter(groups.get, (name, replay_group(name))), entry):
            yield pending
        else:
            yield EventDelivery(name, Fate.ACKNOWLEDGED)


def _pending(shard: Shard, endpoint: str, groups: Iterable[str], entry: bytes) -> EventDelivery | None:
    """Where an event is pending in one of these groups of an endpoint: its own, and that of its replay."""
    for group in groups:
        try:
            rows: Any = shard.client.xpending_range(shard.keys.events, group, min=entry, max=entry, count=1)
        except redis.ResponseError as error:
            if not is_missing_group(error):
                raise
            continue  # the replay has ended meanwhile
        for row in rows:
            owner = "" if is_waiting(row["consumer"]) else decode(row["consumer"])
            idle_ms = row["time_since_delivered"]
            idle = None if idle_ms >= LONG_IDLE_MS else idle_ms / 1000
            return EventDelivery(endpoint, Fate.PENDING, row["times_delivered"], owner, idle)
    return None
