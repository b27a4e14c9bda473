"""Carries out what operators do to an endpoint: pause, resume, skip, drop."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field

from sweeperd.config import EndpointSettings
from sweeperd.document import Argument, Count, Document, Moment, ShardsDocument, Truncated
from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.show import AttemptDocument
from sweeperd.ops.trial import shown_url
from sweeperd.outbox.announcements import Announcements
from sweeperd.outbox.circuits import CircuitStateStore
from sweeperd.outbox.endpoint_state import EndpointState, EndpointStateStore
from sweeperd.outbox.event import OutboxEntry, event_id
from sweeperd.outbox.groups import ConsumerGroups
from sweeperd.outbox.replays import replay_group
from sweeperd.outbox.stream import PAGE, Outbox
from sweeperd.outbox.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId
from sweeperd.webhook_keys import PRIVATE

#: The reasons of dead letters after `skip` and `drop`.
SKIPPED, DROPPED = "an operator skipped it", "an operator dropped it"


def jwks(endpoints: Iterable[EndpointSettings]) -> dict[str, Any]:
    """The public keys of all secrets `whsk_…` of these endpoints, as a JSON Web Key Set."""
    texts = [secret.get_secret_value() for endpoint in endpoints for secret in endpoint.secrets]
    private = [text for text in texts if text.startswith(PRIVATE)]
    if not private:
        return {"keys": []}
    # Imported late, because only asymmetric keys need the package cryptography, an extra.
    from sweeperd.delivery import webhook  # noqa: PLC0415

    return webhook.jwks(private)


def pause(shard: Shard, name: str, reason: str, announced: Collection[str] = ()) -> EndpointState:
    """Stops delivery in all processes within seconds. `announced`: the operational event types to write."""
    shard.read_clock()
    return EndpointStateStore(shard, Announcements(shard.clock, announced)).pause(name, reason)


@dataclass(frozen=True, slots=True)
class Resumed:
    #: Whether the endpoint was paused or muted.
    was_resting: bool
    #: How many processes had an open circuit.
    was_open_on: int
    #: How many parked events are due now.
    due: int


def resume(shard: Shard, name: str) -> Resumed:
    """Ends pause and mute, closes the circuit, and makes parked events due, in all processes within seconds."""
    shard.read_clock()
    open_on = close_circuit(shard, name)
    groups = ConsumerGroups(shard, "operator")
    due = groups.make_due(name) + groups.make_due(replay_group(name))
    return Resumed(EndpointStateStore(shard).resume(name), open_on, due)


def close_if_open(shard: Shard, name: str) -> None:
    """Closes the circuit in all processes if it is open in any."""
    shard.read_clock()
    if CircuitStateStore(shard).read(name).open:
        close_circuit(shard, name)


def close_circuit(shard: Shard, name: str) -> int:
    """Closes the circuit in all processes within seconds. Returns how many were open."""
    circuits = CircuitStateStore(shard)
    open_on = circuits.read(name).open_on
    circuits.close(name)
    return open_on


def skip(shard: Shard, endpoint: EndpointSettings, event: str) -> str | None:
    """
    Turns an event that a process has taken, given by event id or stream id, into a dead letter. Returns the stream id;
    None if no process has taken such an event, it has ended, or the endpoint does not want it: a replay of the letter
    would send it.
    """
    shard.read_clock()
    name, outbox, subscription = endpoint.name, Outbox(shard, "operator"), Subscription(endpoint)
    outbox.filters.refresh()
    for group in (name, replay_group(name)):
        if group.encode() not in streams.groups(shard.client, shard.keys.events):
            continue
        for entry in _pending(shard, outbox, group):
            named = entry.id.decode() == event or (entry.pairs and event_id(shard.origin, entry.fields) == event)
            # After replays, an event may be pending several times, and not wanted each time.
            if (
                named
                and _is_wanted(outbox, subscription, entry)
                and outbox.dead_letter(group, entry, SKIPPED, name, in_hand=False)
            ):
                return entry.id.decode()
    return None


def end_of_backlog(shard: Shard, before_ms: int, now_ms: int) -> StreamId:
    """
    The id before which events were added before `before_ms`. After Redis's clock was set back, ids are ahead of it; but
    what is there now was added before now.
    """
    end, last = StreamId.at(before_ms), StreamId.parse(streams.last_id(shard.client, shard.keys.events))
    return max(end, StreamId(last.milliseconds, last.sequence + 1)) if before_ms >= now_ms else end


def count_backlog(shard: Shard, endpoint: EndpointSettings, end: StreamId) -> int:
    """
    How many events with ids before `end` are unacknowledged and wanted, by these settings or by the filter of a living
    process.
    """
    info = streams.groups(shard.client, shard.keys.events).get(endpoint.name.encode())
    if info is None:
        return 0
    first, last = streams.after(info["last-delivered-id"]), bytes(end.before)
    untaken = (OutboxEntry.of(entry, 0, found) for entry, found in streams.read(shard, shard.keys.events, first, last))
    outbox, subscription = Outbox(shard, "operator"), Subscription(endpoint)
    outbox.filters.refresh()
    taken = itertools.takewhile(lambda entry: _is_before(entry, end), _pending(shard, outbox, endpoint.name))
    return sum(_is_wanted(outbox, subscription, entry) for entry in itertools.chain(taken, untaken))


def is_lost(shard: Shard, endpoint: EndpointSettings) -> bool:
    """Whether the consumer group of the endpoint is missing although events wait for it."""
    return bool(Outbox(shard, "operator").groups.lost({endpoint.name: Subscription(endpoint).start}))


def drop(shard: Shard, endpoint: EndpointSettings, end: StreamId, *, letters: bool) -> Iterator[int]:
    """
    Acknowledges all events with ids before `end`, and yields how many were wanted, page by page. With `letters` they
    become dead letters. An event in flight may still be sent. After an error, up to one page is left to be taken over.
    """
    name, subscription = endpoint.name, Subscription(endpoint)
    if name.encode() not in streams.groups(shard.client, shard.keys.events):
        return
    outbox = Outbox(shard, "operator")
    outbox.filters.refresh()
    while count := outbox.groups.untaken(name, end, PAGE):
        entries = outbox.read(name, count)
        # If a process has taken some of the counted events, the read went beyond `end`. That process may send later
        # events of a key before these.
        outbox.release(name, [entry for entry in entries if not _is_before(entry, end)])
        old = [entry._replace(deliveries=0) for entry in entries if _is_before(entry, end)]
        yield _drop(outbox, subscription, old, letters=letters)
    outbox.groups.leave(name)
    taken = itertools.takewhile(lambda entry: _is_before(entry, end), _pending(shard, outbox, name))
    while page := list(itertools.islice(taken, PAGE)):
        yield _drop(outbox, subscription, page, letters=letters)


def _drop(outbox: Outbox, subscription: Subscription, entries: Sequence[OutboxEntry], *, letters: bool) -> int:
    """Returns how many wanted events were pending."""
    name = subscription.group
    wanted = [entry for entry in entries if _is_wanted(outbox, subscription, entry)]
    outbox.acknowledge(name, [entry.id for entry in entries if entry not in wanted])
    if letters:
        return len(outbox.give_up(name, wanted, DROPPED, owner=b""))
    return outbox.acknowledge(name, [entry.id for entry in wanted])


def _is_before(entry: OutboxEntry, end: StreamId) -> bool:
    return StreamId.parse(entry.id) < end


def _is_wanted(outbox: Outbox, subscription: Subscription, entry: OutboxEntry) -> bool:
    return not entry.pairs or outbox.filters.wanted(subscription, entry)


def _pending(shard: Shard, outbox: Outbox, name: str) -> Iterator[OutboxEntry]:
    """The pending events of an endpoint, without fields if an event was trimmed."""
    previous: bytes | None = None
    while page := outbox.pending(name, previous):
        found = streams.exactly(shard.client, shard.keys.events, (pending.id for pending in page))
        for pending, rows in zip(page, found, strict=True):
            yield OutboxEntry.of(pending.id, pending.deliveries, rows[0][1] if rows else {})
        previous = page[-1].id


class ListedEndpoint(EndpointDocument):
    shard: str
    address: str
    url: str | None = Field(description="Without credentials and query.")
    tenants: list[str] | None = Field(description="null for all tenants.")

    @classmethod
    def of(cls, shard: Shard, status: EndpointDocument, endpoint: EndpointSettings | None) -> "ListedEndpoint":
        """`endpoint`: its settings; None if it is not configured."""
        return cls.made_of(
            status,
            shard=shard.name,
            address=shard.address,
            url=None if endpoint is None else shown_url(endpoint),
            tenants=None if endpoint is None else endpoint.tenants,
        )


class EndpointsDocument(ShardsDocument, title="sweeperd endpoints list --json"):
    endpoints: list[ListedEndpoint]
    truncated: Truncated


class AttemptsDocument(ShardsDocument, title="sweeperd endpoints attempts --json"):
    endpoint: str
    attempts: list[AttemptDocument] = Field(description="Newest first.")
    truncated: Truncated


class StateDocument(Document):
    """Whether an endpoint is paused or muted."""

    paused: bool
    paused_at: Moment | None
    reason: str
    muted_until: Moment | None = Field(description="Until when the receiver wants no requests (Retry-After).")

    @classmethod
    def of(cls, state: EndpointState, **more: Any) -> Self:
        return cls.made_of(state, muted_until=state.muted_until or None, **more)


class ChangedEndpoint(StateDocument):
    shard: str
    changed: bool
    was: StateDocument | None = Field(default=None, description="The state before; only with resume.")
    was_open_on: Count = Field(default=0, description="How many processes had an open circuit; only with resume.")
    due: Count = Field(default=0, description="How many waiting events are due now; only with resume.")


class EndpointChangeDocument(ShardsDocument, title="sweeperd endpoints pause --json, sweeperd endpoints resume --json"):
    endpoint: str
    shards: list[ChangedEndpoint]


class SkippedEvent(Document):
    shard: str
    stream_id: str


class SkipDocument(ShardsDocument, title="sweeperd endpoints skip --json"):
    endpoint: str
    event: Argument
    skipped: list[SkippedEvent] = Field(
        description="Empty if no process has taken the event, it has ended, or the endpoint does not want it."
    )


class DroppedBacklog(Document):
    shard: str
    before: Moment = Field(description="Events that were added before are dropped.")
    found: Count = Field(description="How many events waited when the operator was asked.")
    dropped: Count


class DropDocument(ShardsDocument, title="sweeperd endpoints drop --json"):
    endpoint: str
    dead_letters: bool = Field(description="Whether each dropped event is a dead letter.")
    shards: list[DroppedBacklog]
