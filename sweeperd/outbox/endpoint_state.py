"""The state of each endpoint, shared by all replicas: paused, muted, and the circuit and the rate of each process."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast

import redis

from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.document import Note
from sweeperd.outbox.stream import Announcements
from sweeperd.store import streams
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: The longest window, seconds, and how many events are enough for a shorter window.
WINDOW, COUNTED = 60.0, 2000
#: How far a moment that a process has noted may lie ahead of Redis's clock, ms, though the clock was not set back.
CLOCK_ERROR = 1000
#: If a window is shorter, seconds, there is no rate.
SHORTEST = 0.5


class DeliveryRate:
    """
    The samples of one endpoint in one process: a time (monotonic, seconds) and how many events were delivered so far.
    A single thread adds samples, others may read the rate.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        #: Events per second, and over how many seconds. 0.0 seconds: not known yet.
        self.per_second, self.window_seconds = 0.0, 0.0

    def add(self, now: float, delivered: int) -> None:
        """
        Add a sample. The rate is then over the last WINDOW seconds, or over the last COUNTED events if these took less
        time.
        """
        samples = self._samples
        samples.append((now, delivered))
        while len(samples) > 2 and (now - samples[1][0] >= WINDOW or delivered - samples[1][1] >= COUNTED):
            samples.popleft()
        since, before = samples[0]
        if (window := now - since) >= SHORTEST:
            self.per_second, self.window_seconds = round((delivered - before) / window, 2), round(window, 3)


_CORRECT_MOMENTS = Script("delivery/correct_moments")


def correct_moments(shard: Shard) -> int:
    """
    Correct the stored states and notes that lie ahead of Redis's clock. Returns how far the clock is behind the last
    event or the latest note, ms; 0: not behind. If Redis refuses the correction, the notes stay as they are. Raises
    redis.RedisError.
    """
    keys = shard.keys
    call = Call([keys.events, keys.endpoints, keys.circuits, keys.processes], [CLOCK_ERROR])
    try:
        return max(0, int(_CORRECT_MOMENTS.run(shard.client, call)))
    except redis.ResponseError as error:
        if is_server_trouble(error):
            raise
        log.warning("moments are not corrected", extra={"shard": shard.name, "error": describe(error)})
        return max(0, streams.milliseconds(streams.last_id(shard.client, keys.events)) - shard.read_clock())


class EndpointState(Note):
    """
    Paused, by a 410 or by an operator, or muted by `Retry-After`. Each delivering process reads the state every few
    seconds. Times are ms on Redis's clock.
    """

    #: When and why the endpoint was paused. Nothing is sent until an operator resumes the endpoint.
    paused_at: int | None = None
    reason: str = ""
    #: Until when nothing is sent, because the receiver asked for a pause.
    muted_until: int = 0
    #: How long the mute lasts, ms: if the clock is set back, the mute ends no later than this from then on. 0: unknown.
    mute_ms: int = 0

    @classmethod
    def mute(cls, now_ms: int, seconds: float) -> Self:
        """Nothing is sent for this many seconds from `now_ms` on."""
        mute_ms = int(seconds * 1000)
        return cls(muted_until=now_ms + mute_ms, mute_ms=mute_ms)

    @property
    def paused(self) -> bool:
        """Nothing is sent, and events wait, until an operator resumes the endpoint."""
        return self.paused_at is not None

    def resting(self, now_ms: int) -> bool:
        """Whether the endpoint is paused or muted now."""
        return self.paused or self.muted_until > now_ms


class EndpointStateStore:
    """`sweeperd:endpoints`: the state of each endpoint for all replicas. No entry: neither paused nor muted."""

    def __init__(self, shard: Shard, announcements: Announcements | None = None) -> None:
        self._set_state = Script("delivery/set_state")
        self._client = shard.client
        self._key = shard.keys.endpoints
        self._events = shard.keys.events
        self._announcements = announcements or Announcements(shard.clock)
        self._clock = shard.clock

    def read(self, endpoint: str) -> EndpointState:
        """Raises redis.RedisError."""
        entry = self._client.hget(self._key, endpoint)
        return self._parse(entry) if isinstance(entry, bytes) else EndpointState()

    def write(self, endpoint: str, state: EndpointState) -> EndpointState:
        """
        Write a state for all replicas, at maxmemory too. A mute ends neither a pause nor a longer mute; a state that is
        neither ends a mute. Returns the state now in Redis. Raises redis.RedisError.
        """
        event = self._announcements.disabled(endpoint, state.reason) if state.paused else []
        call = Call([self._key, self._events], [endpoint, state.model_dump_json(), *event])
        return self._parse(self._set_state.run(self._client, call))

    def pause(self, endpoint: str, reason: str) -> EndpointState:
        """Stop sending to an endpoint, on all replicas, until `resume`. Raises redis.RedisError."""
        return self.write(endpoint, EndpointState(paused_at=self._clock.now_ms(), reason=reason))

    def mute(self, endpoint: str, seconds: float) -> EndpointState:
        """Send nothing for so many seconds, on all replicas. Raises redis.RedisError."""
        return self.write(endpoint, EndpointState.mute(self._clock.now_ms(), seconds))

    def resume(self, endpoint: str) -> bool:
        """Send again, on all replicas. False if the endpoint was neither paused nor muted. Raises redis.RedisError."""
        return bool(self._client.hdel(self._key, endpoint))

    def _parse(self, entry: bytes) -> EndpointState:
        # If the entry cannot be read, to wait is better than to send to a paused receiver.
        return EndpointState.parse(entry) or EndpointState(
            paused_at=0, reason=f"the entry in {self._key.decode()} cannot be read"
        )


class CircuitNote(Note):
    """The published circuit of one process. Times are ms on Redis's clock."""

    #: The name of the process in the groups; "": written by an earlier version.
    process: str = ""
    #: When the note was published.
    at: int = 0
    #: When the next probe is due; 0: the circuit is closed.
    probe_at: int = 0
    #: How many deliveries have failed in a row, and why the last delivery failed.
    failures: int = 0
    reason: str = ""
    #: The last delivery; 0: none yet.
    delivered_at: int = 0
    #: Events delivered per second, and over how many seconds; 0.0 seconds: not known yet.
    rate: float = 0.0
    rate_window: float = 0.0


@dataclass(frozen=True, slots=True)
class CircuitState:
    """The circuits of one endpoint over all living processes."""

    #: The notes of the processes, open circuits first.
    notes: tuple[CircuitNote, ...] = ()

    @property
    def processes(self) -> int:
        """How many processes deliver to the endpoint."""
        return len(self.notes)

    @property
    def rate(self) -> float:
        """Events delivered per second by all processes."""
        return round(sum(note.rate for note in self.notes), 2)

    @property
    def rate_window(self) -> float:
        """The longest window, seconds, of the rates of the processes; 0.0 if no rate is known."""
        return max((note.rate_window for note in self.notes), default=0.0)

    @property
    def open_on(self) -> int:
        """How many processes have an open circuit."""
        return sum(note.probe_at > 0 for note in self.notes)

    @property
    def open(self) -> bool:
        """Whether the circuit of some process is open."""
        return self.open_on > 0

    @property
    def failures(self) -> int:
        """The most failures in a row; 0 if no circuit is open."""
        return max((note.failures for note in self.notes if note.probe_at), default=0)

    @property
    def reason(self) -> str:
        """Why a delivery failed; empty if no circuit is open."""
        return next((note.reason for note in self.notes if note.probe_at), "")


class CircuitStateStore:
    """
    `sweeperd:circuits`. Each process has separate circuits, and publishes them here for operators every few seconds, in
    a field `<endpoint>@<process>`. All processes obey the field `<endpoint>`: the time when an operator has closed the
    circuit everywhere.
    """

    def __init__(self, shard: Shard, timing: Timing = DEFAULT_TIMING) -> None:
        self._timing = timing
        self._set_field = Script("delivery/set_field")
        self._client = shard.client
        self._key = shard.keys.circuits
        self._clock = shard.clock

    def read(self, endpoint: str) -> CircuitState:
        """The circuits of living processes. Raises redis.RedisError."""
        notes = list(self._notes(f"{endpoint}@").values())
        # If a process misses a note, the process may be dead: then the success of another process overrules the note. A
        # note from the future is of a time before the clock was set back.
        now, success = self._clock.now_ms(), max((note.delivered_at for note in notes), default=0)
        living = [
            note
            for note in notes
            if abs(now - note.at)
            < 1000 * (self._timing.note_every * (1.5 if success > note.at and note.probe_at else 3))
        ]
        return CircuitState(tuple(sorted(living, key=lambda note: (-note.probe_at, note.process))))

    def write(self, endpoint: str, note: CircuitNote) -> None:
        """Publish a note. If Redis refuses the write, only operators miss the note. Raises redis.RedisError."""
        self._change(lambda: self._set(f"{endpoint}@{note.process}", note.model_dump_json()))

    def remove(self, endpoint: str, process: str) -> None:
        """Remove the note of a process that has ended. Raises redis.RedisError."""
        self._change(lambda: self._client.hdel(self._key, f"{endpoint}@{process}"))

    def remove_stale(self) -> None:
        """Remove the notes of dead processes. Raises redis.RedisError."""
        oldest = self._clock.now_ms() - self._timing.note_kept * 1000
        stale = [field for field, note in self._notes().items() if note.at < oldest]
        if stale:
            self._change(lambda: self._client.hdel(self._key, *stale))

    def close(self, endpoint: str) -> None:
        """Close the circuit on all processes, within seconds. Raises redis.RedisError."""
        self._set(endpoint, str(self._clock.now_ms()))

    def closed_at(self, endpoint: str) -> bytes | None:
        """When an operator last closed the circuit; None: never. Raises redis.RedisError."""
        return cast(bytes | None, self._client.hget(self._key, endpoint))

    def _notes(self, prefix: str = "") -> dict[bytes, CircuitNote]:
        """By field. If a note cannot be read, it is so old that it counts for nothing."""
        fields = cast(dict[bytes, bytes], self._client.hgetall(self._key))
        named = {field: value for field, value in fields.items() if b"@" in field and field.startswith(prefix.encode())}
        return {field: CircuitNote.parse(value) or CircuitNote() for field, value in named.items()}

    def _set(self, field: str, value: str) -> None:
        self._set_field.run(self._client, Call([self._key], [field, value]))

    @staticmethod
    def _change(change: Callable[[], object]) -> None:
        try:
            change()
        except redis.ResponseError as error:
            if is_server_trouble(error):
                raise
