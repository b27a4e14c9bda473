"""Reads the entries of a kind for a walk, and detects their faults."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import redis

from sweeperd.config import Settings, SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.errors import KindRefused
from sweeperd.ops.reconcile.faults import Fault, WalkStage
from sweeperd.ops.reconcile.keyspace import PAGE, Keyspace
from sweeperd.ops.reconcile.report import Finding
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.store.errors import describe
from sweeperd.store.scripts import Call, Script, ScriptPipeline, accepted, batches, run_commands
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Budgets, Kind, Outcome
from sweeperd.sweep.proof import may_be_trusted
from sweeperd.sweep.reservations import reservations
from sweeperd.text import decode

#: Reservations that one script reads (0.1 to 0.2 ms of Redis's time), and that one round trip reads.
SCRIPT_BATCH, BATCH = 5, 50
#: Entries that one round trip checks.
CONFIRM = 50

#: (stage, keys done so far, keys expected in all)
WalkProgress = Callable[[WalkStage, int, int], None]

#: The mark of a hash that is not judged, because no entry of its kind was seen alive.
HELD = Outcome.HELD.value.encode()
#: The first word of a holding that cannot be read; the second one says that it is left out, because it was dismissed.
UNREADABLE = (b"unreadable", b"left_out")


class Observation(NamedTuple):
    """An entry with a hint of a fault, or with amounts."""

    entry: bytes
    #: A fault, `dismissed`, `foreign_expiry`, `held`, or empty.
    mark: bytes
    #: The amounts of the entry, as reconcile_look.lua returns them.
    holding: Sequence[bytes] = ()
    #: Like `Finding.evidence`, or why the entry would be held; empty if unknown.
    evidence: str = ""


def finding_of(entry: bytes, reply: Sequence[Any]) -> Finding:
    """The fault in a reply of reconcile_entry.lua."""
    fault, wanted, score = (text.decode() for text in reply[:3])
    return Finding(Fault(fault), entry, score, wanted, ttl_ms=reply[3] if reply[3:] else None)


def _observation(finding: Finding) -> Observation:
    return Observation(finding.subject, finding.fault.value.encode(), evidence=finding.evidence)


class Subject(abc.ABC):
    """
    The entries of one kind on one shard, throttled. Methods raise Interrupted, and KindRefused if the kind's script is
    broken.
    """

    #: Kinds with a key pattern that is at least as specific: their hashes may match this kind's pattern too.
    closer: Sequence[Kind] = ()

    def __init__(self, shard: Shard, kind: Kind, throttle: Throttle | None) -> None:
        self.shard = shard
        self.kind = kind
        self.throttle = throttle or Throttle()
        self.progress: WalkProgress = lambda *_: None
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @cached_property
    def keyspace(self) -> Keyspace:
        return Keyspace(self.shard, self.throttle, self.kind.index, self.kind.entry_key(b""))

    @cached_property
    def size(self) -> int:
        """The number of keys in the database when the walk begins."""
        return self.keyspace.size()

    def is_entry(self, key: bytes) -> bool:
        """Whether `key` names a hash of this kind and not of a more specific one."""
        return self.kind.names(key) and key != self.kind.index and not any(kind.names(key) for kind in self.closer)

    def keys(self, stage: WalkStage, stem: bytes, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """Like `Keyspace.keys`, with progress."""
        return self._with_progress(stage, self.keyspace.keys(stem, cursor))

    def hashes(self, stage: WalkStage = WalkStage.HASHES, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """The ids of all keys of entries: the cursor of the next page (0: none), and a page. May repeat an id."""
        if self.kind.form == "member":
            yield 0, []
            return
        for following, page in self.keys(stage, self.kind.stem, cursor):
            yield (
                following,
                [key[len(self.kind.stem) : len(key) - len(self.kind.end)] for key in page if self.is_entry(key)],
            )

    def index(self, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """The ids in the index, paged like `hashes`."""
        return self._with_progress(WalkStage.INDEX, self.keyspace.index(cursor))

    def orphans(self, ids: Sequence[bytes]) -> Iterator[Observation]:
        """The index entries without a hash."""
        found = list[bytes]()
        for part in batches(ids, CONFIRM):
            with self.throttle.step():
                commands = (("EXISTS", self.kind.entry_key(entry)) for entry in part)
                there = accepted(run_commands(self.shard.client, commands))
            found += [entry for entry, exists in zip(part, there, strict=True) if not exists]
        yield from self.faults(found)

    def faults(self, ids: Sequence[bytes]) -> Iterator[Observation]:
        return (_observation(finding) for finding in self.check(ids))

    def check(self, ids: Sequence[bytes], *, mend: Mapping[bytes, str] = MappingProxyType({})) -> list[Finding]:
        """
        The faults of these ids. One script reads and judges an entry, and repairs it if its evidence is still that of
        `mend`.
        """
        rows = self.rows(ids, mend)
        return [finding_of(entry, reply) for entry, reply in rows if reply and reply[0] != HELD]

    def rows(
        self, ids: Sequence[bytes], mend: Mapping[bytes, str] = MappingProxyType({}), otherwise: str = ""
    ) -> Iterator[tuple[bytes, Sequence[Any]]]:
        """The ids with the replies of the kind's `index_check`. `otherwise`: `?` or `+`, for all that is not mended."""
        for part in batches(ids, CONFIRM):
            calls = [self.entry_call(entry, mend.get(entry, otherwise)) for entry in part]
            yield from zip(part, self.run(self.kind.index_check, calls, len(part) if mend else 0), strict=True)

    @abc.abstractmethod
    def entry_call(self, entry: bytes, mend: str = "") -> Call:
        """The call of the kind's `index_check`; `mend`: `?`, `+` or the evidence of the fault to repair."""

    def run(self, script: Script, calls: Sequence[Call], keys: int = 0) -> list[Any]:
        """One step of the throttle that visits this many keys. Raises redis.RedisError even if only one call fails."""
        self.throttle.begin()
        replies, micros = script.run_timed(self.shard.client, calls)
        self.throttle.end(keys, None if micros is None else micros / 1_000_000)
        return accepted(replies)

    @abc.abstractmethod
    def look(self, ids: Sequence[bytes], since_ms: int | None) -> Iterator[Observation]:
        """The entries with a hint, or with an amount that they held after `since_ms` (None: amounts are not read)."""

    def _with_progress(
        self, stage: WalkStage, pages: Iterator[tuple[int, list[bytes]]]
    ) -> Iterator[tuple[int, list[bytes]]]:
        for number, page in enumerate(pages, 1):
            done, is_last = number * PAGE, not page[0]
            self.progress(stage, done, done if is_last else max(self.size, done))
            yield page


class Reservations(Subject):
    """The reservations, which hold amounts of budgets. Their hashes are read on a separate connection."""

    def __init__(self, shard: Shard, settings: SweepSettings, throttle: Throttle | None = None) -> None:
        super().__init__(shard, reservations(shard.keys, settings), throttle)
        self._grace_ms = milliseconds(settings.grace)
        #: How long an ended reservation stays readable, ms: the least of the settings and the TTLs read so far, because
        #: other writers may have other settings.
        self.retention_ms = milliseconds(settings.audit_retention)
        self._pipeline = self._opened.enter_context(ScriptPipeline(Script("ops/reconcile_look"), shard.client))

    def look(self, ids: Sequence[bytes], since_ms: int | None) -> Iterator[Observation]:
        args = [self._grace_ms, "" if since_ms is None else since_ms]
        for some in batches(ids, BATCH):
            parts = list(batches(some, SCRIPT_BATCH))
            self.throttle.begin()
            self._pipeline.send(
                [
                    Call([self.kind.index, self.kind.quarantine, *map(self.kind.entry_key, part)], [*args, *part])
                    for part in parts
                ]
            )
            replies, micros, _ = self._pipeline.receive()
            self.throttle.end(busy=None if micros is None else micros / 1_000_000)
            for part, reply in zip(parts, accepted(replies), strict=True):
                *observations, retention = reply
                if retention:
                    self.retention_ms = min(self.retention_ms, int(retention))
                yield from (Observation(entry, *seen) for entry, seen in zip(part, observations, strict=True) if seen)

    def entry_call(self, entry: bytes, mend: str = "") -> Call:
        return Call(
            [self.kind.index, self.kind.quarantine, self.kind.entry_key(entry)], [entry, mend, "", 0, self._grace_ms]
        )


class ConfiguredKind(Subject):
    """One of `[[kinds]]`, whose script, in a dry run, says whether a hash is active."""

    def __init__(self, shard: Shard, kind: Kind, throttle: Throttle | None = None, others: Sequence[Kind] = ()) -> None:
        super().__init__(shard, kind, throttle)
        least = len(kind.stem + kind.end)
        self.closer = [each for each in others if len(each.stem + each.end) >= least]

    @cached_property
    def trusted(self) -> bool:
        """Whether an entry was seen alive, so that what the script skips has ended."""
        return may_be_trusted(self.shard, self.kind)

    def look(self, ids: Sequence[bytes], since_ms: int | None) -> Iterator[Observation]:  # noqa: ARG002
        for entry, reply in self.rows(ids):
            if reply and reply[0] == HELD:
                yield Observation(entry, HELD, evidence=decode(reply[1]))
            elif reply and (finding := finding_of(entry, reply)).fault is not Fault.ORPHAN:
                yield _observation(finding)

    def entry_call(self, entry: bytes, mend: str = "") -> Call:
        decide = self.kind.call(entry, "", self.trusted)
        field = self.kind.deadline or "score"
        return Call(decide.keys, [*decide.args, mend, field, self.kind.max_wait_ms, self.kind.grace_ms])

    def run(self, script: Script, calls: Sequence[Call], keys: int = 0) -> list[Any]:
        """Raises KindRefused if the script fails for each entry or was killed: otherwise no entry would seem active."""
        if self.kind.broken:
            raise KindRefused(f"{self.kind.name}: not walked: {self.kind.broken}")
        try:
            return super().run(script, calls, keys)
        except redis.ResponseError as error:
            if self.kind.breaks(error):
                raise KindRefused(f"{self.kind.name}: not walked: {describe(error)}") from error
            raise


def subject_of(shard: Shard, settings: Settings, name: str, throttle: Throttle | None = None) -> Subject:
    kinds = kinds_of(settings, shard)
    kind = kinds[name]
    if isinstance(kind.counters, Budgets):
        return Reservations(shard, settings.sweep, throttle)
    others = [each for each in kinds.values() if each is not kind]
    return ConfiguredKind(shard, kind, throttle, others)
