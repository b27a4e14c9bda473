"""Announces each daemon on its shards, so that all know which of sweeping and delivery nobody does."""

import contextlib
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import redis

from sweeperd.document import Note
from sweeperd.errors import RedisUnavailable
from sweeperd.store.errors import is_refused
from sweeperd.store.lease import process_name
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: Seconds between two announcements; after which a silent daemon counts as dead; after which its note is removed.
ANNOUNCE_EVERY, DEAD_AFTER, REMOVED_AFTER = 10.0, 35.0, 3600


class ProcessNote(Note):
    """The announcement of a daemon: a field of `sweeperd:processes`, JSON."""

    #: Host, process id and a random part.
    process: str = ""
    #: ms on Redis's clock.
    at: int = 0
    sweeps: bool = False
    delivers: bool = False


@dataclass(frozen=True, slots=True)
class Processes:
    """The daemons that are alive."""

    #: None if the user may not read the announcements.
    living: tuple[ProcessNote, ...] | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The duties that no daemon has, of `sweeps` and `delivers`."""
        if self.living is None:
            return ()
        return tuple(duty for duty in ("sweeps", "delivers") if not any(getattr(note, duty) for note in self.living))


def read_processes(shard: Shard, now: int) -> Processes:
    """`now`: ms on Redis's clock."""
    try:
        notes = _notes(shard).values()
    except redis.RedisError as error:
        if not is_refused(error):
            raise
        return Processes()
    # A note from the future is older than a change of the clock: a living daemon soon writes the next one.
    living = (note for note in notes if abs(now - note.at) < 1000 * DEAD_AFTER)
    return Processes(tuple(sorted(living, key=lambda note: note.process)))


def _notes(shard: Shard) -> dict[bytes, ProcessNote]:
    """By field. An unreadable note is dated 0, so its daemon counts as dead."""
    fields = cast(dict[bytes, bytes], shard.client.hgetall(shard.keys.processes))
    return {field: ProcessNote.parse(value) or ProcessNote() for field, value in fields.items()}


class ProcessAnnouncer:
    """Announces one daemon on one shard. One thread calls `update`, another may read `missing`."""

    def __init__(self, shard: Shard, *, sweeps: bool, delivers: bool) -> None:
        self._shard = shard
        self._set_field = Script("delivery/set_field")
        # After a reload, two daemons of one process overlap.
        self._field = f"{process_name()}-{secrets.token_hex(4)}"
        self._note = ProcessNote(process=process_name(), sweeps=sweeps, delivers=delivers)
        self._next = 0.0
        #: The duties that no daemon had at the last announcement.
        self.missing: tuple[str, ...] = ()

    def update(self) -> None:
        """Call this every few seconds. If Redis refuses the commands, the next call tries again."""
        if time.monotonic() < self._next:
            return
        with contextlib.suppress(RedisUnavailable, redis.RedisError):
            now = self._shard.read_clock()
            dead = (field for field, each in _notes(self._shard).items() if abs(now - each.at) > 1000 * REMOVED_AFTER)
            self._remove(dead)
            note = self._note.model_copy(update={"at": now})
            call = Call([self._shard.keys.processes], [self._field, note.model_dump_json()])
            self._set_field.run(self._shard.client, call)
            self._next = time.monotonic() + ANNOUNCE_EVERY
            self.missing = read_processes(self._shard, now).missing

    def leave(self) -> None:
        with contextlib.suppress(RedisUnavailable, redis.RedisError):
            self._remove([self._field.encode()])

    def _remove(self, fields: Iterable[bytes]) -> None:
        if found := list(fields):
            self._shard.client.hdel(self._shard.keys.processes, *found)
