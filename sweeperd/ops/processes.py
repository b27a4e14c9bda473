"""Announces each daemon on its shards, so that all know what each of them does, and what nobody does."""

import contextlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import redis
from pydantic import Field

from sweeperd import __version__
from sweeperd.document import Count, Document, Moment, Note, Seconds
from sweeperd.errors import RedisUnavailable
from sweeperd.outbox.groups import is_waiting
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group, is_refused
from sweeperd.store.lease import process_name
from sweeperd.store.scripts import Call, Script, run_commands
from sweeperd.store.shard import Shard
from sweeperd.text import decode

#: Seconds between two announcements; after which a silent daemon counts as dead; after which its note is removed.
ANNOUNCE_EVERY, DEAD_AFTER, REMOVED_AFTER = 10.0, 35.0, 3600
#: What a consumer group has after the name of a process.
_UNIQUE = re.compile("-[0-9a-f]{8}$")


class ProcessNote(Note):
    """The announcement of a daemon: a field of `sweeperd:processes`, JSON."""

    #: Host, process id and a random part.
    process: str = ""
    #: ms on Redis's clock.
    at: int = 0
    sweeps: bool = False
    delivers: bool = False
    version: str = ""
    #: The first announcement, ms; 0 if unknown.
    since: int = 0
    kinds: tuple[str, ...] = ()


class ProcessDocument(Document):
    """A daemon, as of its last heartbeat."""

    process: str = Field(description="Host, process id and a random part.")
    role: str = Field(description="all, sweep or deliver.")
    version: str = Field(description="Empty if unknown.")
    since: Moment | None = Field(description="When it started.")
    heartbeat_at: Moment = Field(validation_alias="at", description="Its last heartbeat; one is due every 10 s.")
    heartbeat_age_seconds: Seconds
    silent: bool = Field(description="Whether it counts as dead: its last heartbeat is more than 35 s old.")
    sweeps: bool
    delivers: bool
    kinds: list[str] = Field(description="The kinds that it sweeps.")
    in_hand: Count = Field(description="Events that it has taken and not yet settled, of all endpoints.")

    @classmethod
    def of(cls, note: ProcessNote, now: int, in_hand: int) -> "ProcessDocument":
        # A note from the future is older than a change of the clock: a living daemon soon writes the next one.
        age = abs(now - note.at) / 1000
        role = "all" if note.sweeps and note.delivers else "sweep" if note.sweeps else "deliver"
        more = {"since": note.since or None, "heartbeat_age_seconds": age, "silent": age >= DEAD_AFTER}
        return cls.made_of(note, role=role, in_hand=in_hand, **more)


@dataclass(frozen=True, slots=True)
class Processes:
    """The daemons that have announced themselves and did not leave."""

    #: Sorted by name. None if the user may not read the announcements.
    known: tuple[ProcessDocument, ...] | None = None

    @property
    def silent(self) -> tuple[ProcessDocument, ...]:
        """The daemons that count as dead, until their notes are removed."""
        return tuple(each for each in self.known or () if each.silent)

    @property
    def missing(self) -> tuple[str, ...]:
        """The duties that no living daemon has, of `sweeps` and `delivers`."""
        if self.known is None:
            return ()
        living = [each for each in self.known if not each.silent]
        return tuple(duty for duty in ("sweeps", "delivers") if not any(getattr(each, duty) for each in living))


def read_processes(shard: Shard, now: int) -> Processes:
    """`now`: ms on Redis's clock."""
    try:
        notes = sorted(_notes(shard).values(), key=lambda note: (note.process, -abs(now - note.at)))
        in_hand = _in_hand(shard) if notes else Counter[str]()
    except redis.RedisError as error:
        if not is_refused(error):
            raise
        return Processes()
    known = [ProcessDocument.of(note, now, in_hand[note.process]) for note in notes if note.process]
    # A daemon that a reload replaced may have been unable to leave. Its process is not silent.
    last = {each.process: each for each in known}
    found = [each for each in known if not each.silent or each is last[each.process]]
    replaced = _replaced(found)
    return Processes(tuple(each for each in found if each.process not in replaced))


def _replaced(known: Sequence[ProcessDocument]) -> set[str]:
    """
    The silent daemons that another one, with all of their duties, has replaced since: each replaces one, even if it
    died later. The last one that died comes first, and the one with the fewest duties replaces it.
    """
    found = set[str]()
    new = sorted(known, key=lambda each: (each.sweeps + each.delivers, each.since or 0))
    for dead in sorted((each for each in known if each.silent), key=lambda each: -each.heartbeat_at):
        for each in new:
            able = each.sweeps >= dead.sweeps and each.delivers >= dead.delivers
            if able and each.since is not None and each.since > dead.heartbeat_at:
                found.add(dead.process)
                new.remove(each)
                break
    return found


def _in_hand(shard: Shard) -> Counter[str]:
    """Process -> how many events it has in hand, in all consumer groups."""
    key, counts = shard.keys.events, Counter[str]()
    busy = [name for name, row in streams.groups(shard.client, key).items() if row["pending"]]
    for reply in run_commands(shard.client, (("XPENDING", key, name) for name in busy)):
        if isinstance(reply, redis.ResponseError) and is_missing_group(reply):
            continue  # it was removed in the meantime
        if isinstance(reply, Exception):
            raise reply
        for owner in reply["consumers"]:
            if not is_waiting(owner["name"]):
                counts[_UNIQUE.sub("", decode(owner["name"]))] += owner["pending"]
    return counts


def _notes(shard: Shard) -> dict[bytes, ProcessNote]:
    """By field. An unreadable note is dated 0, so its daemon counts as dead."""
    fields = cast(dict[bytes, bytes], shard.client.hgetall(shard.keys.processes))
    return {field: ProcessNote.parse(value) or ProcessNote() for field, value in fields.items()}


class ProcessAnnouncer:
    """Announces one daemon on one shard. One thread calls `update`, another may read `seen`."""

    def __init__(self, shard: Shard, *, sweeps: bool, delivers: bool, kinds: Sequence[str] = ()) -> None:
        self._shard = shard
        self._set_field = Script("delivery/set_field")
        # After a reload, two daemons of one process overlap.
        self._field = f"{process_name()}-{secrets.token_hex(4)}"
        self._note = ProcessNote(
            process=process_name(), sweeps=sweeps, delivers=delivers, version=__version__, kinds=tuple(kinds)
        )
        self._next = 0.0
        #: All daemons at the last announcement.
        self.seen = Processes()

    def adopt(self, before: "ProcessAnnouncer") -> None:
        """Take over since when the process runs, after a reload."""
        self._note = self._note.model_copy(update={"since": before._note.since})

    def update(self) -> None:
        """Call this every few seconds. If Redis refuses the commands, the next call tries again."""
        if time.monotonic() < self._next:
            return
        with contextlib.suppress(RedisUnavailable, redis.RedisError):
            now = self._shard.read_clock()
            dead = (field for field, each in _notes(self._shard).items() if abs(now - each.at) > 1000 * REMOVED_AFTER)
            self._remove(dead)
            self._note = self._note.model_copy(update={"at": now, "since": self._note.since or now})
            call = Call([self._shard.keys.processes], [self._field, self._note.model_dump_json()])
            self._set_field.run(self._shard.client, call)
            self._next = time.monotonic() + ANNOUNCE_EVERY
            self.seen = read_processes(self._shard, now)

    def leave(self) -> None:
        with contextlib.suppress(RedisUnavailable, redis.RedisError):
            self._remove([self._field.encode()])

    def _remove(self, fields: Iterable[bytes]) -> None:
        if found := list(fields):
            self._shard.client.hdel(self._shard.keys.processes, *found)
