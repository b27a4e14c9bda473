"""Stores the circuits of every process by endpoint, for operators and for other processes."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import cast

import redis

from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.document import Note
from sweeperd.outbox.announcements import Entry
from sweeperd.store.errors import is_server_trouble
from sweeperd.store.scripts import Call, Script, batches
from sweeperd.store.shard import Shard
from sweeperd.text import decode

#: How many notes one command writes, while other clients wait.
NOTES_COUNT = 250


class CircuitNote(Note):
    """The published circuit of one process. Times are ms on Redis's clock."""

    #: The name of the process in the consumer groups; empty if an earlier version wrote the note.
    process: str = ""
    #: When the note was published.
    at: int = 0
    #: When the next probe is due; 0 while the circuit is closed.
    probe_at: int = 0
    #: How many deliveries in a row have failed, and the reason of the last failure. If the circuit is closed, the
    #: reason is why Redis keeps the process from delivering.
    failures: int = 0
    reason: str = ""
    #: When the last delivery succeeded; 0 for never.
    delivered_at: int = 0
    #: Events delivered per second, and the window in seconds; a window of 0.0 means not known yet.
    rate: float = 0.0
    rate_window: float = 0.0


@dataclass(frozen=True, slots=True)
class CircuitState:
    """The circuits of one endpoint in all living processes."""

    #: The notes of the processes, open circuits first.
    notes: tuple[CircuitNote, ...] = ()

    @property
    def processes(self) -> int:
        return len(self.notes)

    @property
    def rate(self) -> float:
        """Events per second, summed over the processes."""
        return round(sum(note.rate for note in self.notes), 2)

    @property
    def rate_window(self) -> float:
        """The longest window of the processes' rates, seconds; 0.0 if no rate is known."""
        return max((note.rate_window for note in self.notes), default=0.0)

    @property
    def open_on(self) -> int:
        return sum(note.probe_at > 0 for note in self.notes)

    @property
    def open(self) -> bool:
        return self.open_on > 0

    @property
    def failures(self) -> int:
        """The most consecutive failures of a process with an open circuit, else 0."""
        return max((note.failures for note in self.notes if note.probe_at), default=0)

    @property
    def reason(self) -> str:
        """Why a delivery failed; empty while all circuits are closed."""
        return next((note.reason for note in self.notes if note.probe_at), "")

    @property
    def stalled(self) -> str:
        """On how many processes Redis prevents deliveries, and why; empty if on none."""
        found = [note.reason for note in self.notes if note.reason and not note.probe_at]
        return f"cannot deliver on {len(found)} of {self.processes}: {found[0]}" if found else ""


class CircuitStateStore:
    """
    `sweeperd:circuits`. Each process has its own circuits and publishes them every few seconds in the field
    `<endpoint>@<process>`. The field `<endpoint>` is when an operator last closed the circuit of every process, and
    `failing:<endpoint>` what was last announced of the endpoint, and when.
    """

    def __init__(self, shard: Shard, timing: Timing = DEFAULT_TIMING) -> None:
        self._timing = timing
        self._set_field = Script("delivery/set_field")
        self._announce = Script("delivery/announce")
        self._client = shard.client
        self._key = shard.keys.circuits
        self._announcing = [self._key, shard.keys.endpoints, shard.keys.events]
        self._clock = shard.clock

    def read(self, endpoint: str) -> CircuitState:
        """The circuits of the living processes. Raises redis.RedisError."""
        return self._living(self._notes(self._fields(), f"{endpoint}@").values())

    def read_all(self) -> dict[str, CircuitState]:
        """The circuits of the living processes by endpoint, with one command. Raises redis.RedisError."""
        return self.read_announced()[0]

    def read_announced(self) -> tuple[dict[str, CircuitState], dict[str, str]]:
        """`read_all`, and what was last announced by endpoint, as of the same moment."""
        notes, fields = dict[str, list[CircuitNote]](), self._fields()
        for field, note in self._notes(fields).items():
            notes.setdefault(decode(field.partition(b"@")[0]), []).append(note)
        announced = {decode(field[8:]): decode(text) for field, text in fields.items() if field.startswith(b"failing:")}
        return {endpoint: self._living(found) for endpoint, found in notes.items()}, announced

    def announce(self, endpoint: str, before: str, event: Entry, *, failing: bool) -> bool:
        """Note it and add the event, unless the note is no longer `before`, or the endpoint is paused or muted."""
        call = Call(self._announcing, [endpoint, before, "failing" if failing else "recovered", *event])
        return bool(self._announce.run(self._client, call))

    def _living(self, notes: Collection[CircuitNote]) -> CircuitState:
        # A process that misses a beat may be dead, so a later success of another process overrules its open circuit. A
        # note from the future was written before the clock was set back.
        now, success = self._clock.now_ms(), max((note.delivered_at for note in notes), default=0)
        living = [
            note
            for note in notes
            if abs(now - note.at)
            < 1000 * (self._timing.note_every * (1.5 if success > note.at and note.probe_at else 3))
        ]
        return CircuitState(tuple(sorted(living, key=lambda note: (-note.probe_at, note.process))))

    def write(self, endpoint: str, note: CircuitNote) -> None:
        """Publish a note. A refused write is ignored, because only operators miss it. Raises redis.RedisError."""
        self.write_all({endpoint: note})

    def write_all(self, notes: Mapping[str, CircuitNote]) -> None:
        """`write` for many endpoints."""
        for some in batches(list(notes.items()), NOTES_COUNT):
            fields = [part for name, note in some for part in (f"{name}@{note.process}", note.model_dump_json())]
            self._change(functools.partial(self._set, *fields))

    def remove(self, endpoint: str, process: str) -> None:
        """Remove the note of a process that shuts down. Raises redis.RedisError."""
        self._change(lambda: self._client.hdel(self._key, f"{endpoint}@{process}"))

    def remove_stale(self) -> None:
        """Remove the notes of dead processes. Raises redis.RedisError."""
        oldest = self._clock.now_ms() - self._timing.note_kept * 1000
        stale = [field for field, note in self._notes(self._fields()).items() if note.at < oldest]
        if stale:
            self._change(lambda: self._client.hdel(self._key, *stale))

    def close(self, endpoint: str) -> None:
        """Close the circuit in all processes within seconds. Raises redis.RedisError."""
        self._set(endpoint, str(self._clock.now_ms()))

    def _fields(self) -> dict[bytes, bytes]:
        return cast(dict[bytes, bytes], self._client.hgetall(self._key))

    @staticmethod
    def _notes(fields: Mapping[bytes, bytes], prefix: str = "") -> dict[bytes, CircuitNote]:
        """The notes by field. An unreadable note counts as outdated."""
        named = {field: value for field, value in fields.items() if b"@" in field and field.startswith(prefix.encode())}
        return {field: CircuitNote.parse(value) or CircuitNote() for field, value in named.items()}

    def _set(self, *fields: str) -> None:
        self._set_field.run(self._client, Call([self._key], fields))

    @staticmethod
    def _change(change: Callable[[], object]) -> None:
        try:
            change()
        except redis.ResponseError as error:
            if is_server_trouble(error):
                raise
