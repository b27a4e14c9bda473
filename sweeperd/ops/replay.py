"""Having the events of a span of time delivered to one endpoint again: count them, begin, watch, cancel."""

from sweeperd.config import EndpointSettings
from sweeperd.delivery.endpoint_state import CircuitStateStore, EndpointStateStore
from sweeperd.delivery.outbox import Outbox
from sweeperd.delivery.replay import ReplayCount, ReplayFilter, ReplayNote, ReplayProgress, ReplaySpan
from sweeperd.delivery.replay_store import ReplayStore, end_cancelled
from sweeperd.store import streams
from sweeperd.store.shard import Shard
from sweeperd.text import rfc3339


def count_events(shard: Shard, endpoint: EndpointSettings, span: ReplaySpan) -> ReplayNote:
    """Count the events of the span that the endpoint asks for by its settings. Raises redis.RedisError."""
    wanted, count = ReplayFilter(endpoint, span), ReplayCount()
    for entry, fields in streams.read(shard, shard.keys.events, span.first, span.last):
        if wanted.matches(entry, fields):
            count.add(entry)
    return count.note(endpoint.name, span)


def begin(shard: Shard, counted: ReplayNote) -> tuple[str, ReplayNote]:
    """
    Begin the replay of the counted events: `begun`, `running` where another one to this endpoint has not ended, `gone`
    where its first event was trimmed since. Returns that and its note. Raises redis.RedisError.
    """
    note = counted.model_copy(update={"made_at": shard.read_clock()})
    return ReplayStore(shard).begin(note), note


def running(shard: Shard, endpoint: str) -> ReplayNote | None:
    """The replay to this endpoint that has begun and not ended. Raises redis.RedisError."""
    return ReplayStore(shard).read(endpoint)


def cancel(shard: Shard, note: ReplayNote) -> bool:
    """
    End a replay before its end: no more of its events are sent, within seconds. False where it has ended already.
    Raises redis.RedisError.
    """
    store = ReplayStore(shard)
    if not store.cancel(note):
        return False
    end_cancelled(store, Outbox(shard, "operator"), note)
    return True


def progress(shard: Shard, note: ReplayNote) -> ReplayProgress:
    """How far this replay is. Raises redis.RedisError."""
    return ReplayStore(shard).progress(note)


def obstacle(shard: Shard, endpoint: str) -> str:
    """Why nothing of it is sent at this moment; empty where it is sent. Raises redis.RedisError."""
    if EndpointStateStore(shard).read(endpoint).paused:
        return f"{endpoint} is paused: its events wait until `sweeperd endpoints resume {endpoint}`"
    if not CircuitStateStore(shard).read(endpoint).processes:
        return f"no process delivers to {endpoint} at this moment: its events wait for one"
    return ""


def described(note: ReplayNote) -> str:
    """Which events a replay is about, for people: the options that name the same ones."""
    options = [f"--since {rfc3339(note.since_ms)} --until {rfc3339(note.until_ms)}"]
    if note.tenant is not None:
        options.append(f"--tenant {note.tenant}")
    if note.event_type is not None:
        options.append(f"--event-type {note.event_type}")
    return " ".join(options)
