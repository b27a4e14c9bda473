"""
The subjects of a walk: the reservations, or a configured kind, and how the entries are read. And the reservations that
hold an amount of a budget.
"""

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Annotated, NamedTuple, Self, cast

import redis
from pydantic import BeforeValidator, Field

from sweeperd.config import Settings, SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.document import Document, Text
from sweeperd.errors import KindRefused
from sweeperd.ops.reconcile.keyspace import PAGE, Keyspace, Throttle
from sweeperd.ops.reconcile.report import Fault, Finding, WalkStage
from sweeperd.ops.show import Explanation, explain
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call, Script, ScriptPipeline, accepted, batches
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Budgets, Kind, Outcome
from sweeperd.sweep.reservations import reservations

#: How many reservations one script reads (0.1 to 0.2 ms of Redis's time), and how many one round trip.
SCRIPT_BATCH, BATCH = 5, 50
#: How many entries are checked in one round trip.
CONFIRM = 50

#: (stage, keys done so far, keys expected in all)
WalkProgress = Callable[[WalkStage, int, int], None]

_ENTRY, _ORPHANS = Script("ops/reconcile_entry"), Script("ops/reconcile_orphans")
#: The outcomes of a hash that is not active; what is set aside counts as active.
_INACTIVE = (Outcome.SKIPPED, Outcome.NOT_FOUND)


class Sight(NamedTuple):
    """An entry with a hint of a fault, or with amounts."""

    entry: bytes
    #: A fault, `dismissed`, `foreign_expiry`, or nothing.
    mark: bytes
    #: The amounts of the entry, as reconcile_look.lua replies.
    holding: Sequence[bytes] = ()


class Subject(abc.ABC):
    """
    The entries of one kind on one shard, at the pace of `throttle`. Methods raise RedisUnavailable, redis.RedisError,
    Interrupted, and KindRefused if the kind's script is broken.
    """

    #: The other kinds whose pattern of keys has at least as much text: their hashes may fit this kind too.
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
        """The keys of the shard, on the server that is there now."""
        return Keyspace(self.shard, self.throttle, self.kind.index, self.kind.hash_key(b""))

    @cached_property
    def size(self) -> int:
        """How many keys the database holds when the walk begins."""
        return self.keyspace.size()

    def is_entry(self, key: bytes) -> bool:
        """Whether `key` is the name of an entry's hash, and of no kind with a closer pattern."""
        return self.kind.names(key) and key != self.kind.index and not any(kind.names(key) for kind in self.closer)

    def keys(self, stage: WalkStage, stem: bytes, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """All keys that begin with `stem`, as `Keyspace.keys` gives them, with progress."""
        return self._told(stage, self.keyspace.keys(stem, cursor))

    def hashes(self, stage: WalkStage = WalkStage.HASHES, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """The ids of all hashes: the cursor of the next page (0: none), and a page. An id may come twice."""
        for following, page in self.keys(stage, self.kind.stem, cursor):
            yield (
                following,
                [key[len(self.kind.stem) : len(key) - len(self.kind.end)] for key in page if self.is_entry(key)],
            )

    def index(self, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """The ids in the index, page by page like `hashes`."""
        return self._told(WalkStage.INDEX, self.keyspace.index(cursor))

    def orphans(self, ids: Sequence[bytes]) -> list[bytes]:
        found = []
        for part in batches(ids, CONFIRM):
            with self.throttle.step():
                gone = _ORPHANS.run(self.shard.client, Call([self.kind.hash_key(entry) for entry in part], []))
            found += [part[position] for position in gone]
        return found

    def check(self, ids: Sequence[bytes], *, mend: bool = False) -> list[Finding]:
        """
        The faults of the index about these ids. Each entry is read, and mended if `mend`, in one step. Whether a hash
        of a configured kind is active is not asked.
        """
        found = []
        for part in batches(ids, CONFIRM):
            with self.throttle.step(len(part) if mend else 0):
                replies = _ENTRY.run_many(self.shard.client, [self.entry_call(entry, mend=mend) for entry in part])
            for entry, reply in zip(part, accepted(replies), strict=True):
                if reply:
                    fault, wanted, score = (text.decode() for text in reply)
                    found.append(Finding(Fault(fault), entry, score, wanted))
        return found

    def entry_call(self, entry: bytes, *, mend: bool = False) -> Call:
        keys = [self.kind.index, self.kind.quarantine, self.kind.hash_key(entry)]
        return Call(keys, [entry, int(mend), *self._rule()])

    @abc.abstractmethod
    def _rule(self) -> tuple[str, int]:
        """The last arguments of reconcile_entry.lua."""

    @abc.abstractmethod
    def look(self, ids: Sequence[bytes], since_ms: int | None) -> Iterator[Sight]:
        """
        The entries with a hint or an amount. `since_ms`: an amount that ended before this moment is not held; None: no
        amount is read.
        """

    def confirmed(self, ids: Sequence[bytes]) -> list[Finding]:
        """The faults of these ids now, for entries with a hint."""
        return self.check(ids)

    def _told(self, stage: WalkStage, pages: Iterator[tuple[int, list[bytes]]]) -> Iterator[tuple[int, list[bytes]]]:
        for number, page in enumerate(pages, 1):
            self.progress(stage, number * PAGE, max(self.size, number * PAGE))
            yield page


class Reservations(Subject):
    """The reservations, which hold amounts of budgets. A separate connection reads the hashes."""

    def __init__(self, shard: Shard, settings: SweepSettings, throttle: Throttle | None = None) -> None:
        super().__init__(shard, reservations(shard.keys, settings), throttle)
        self._grace_ms = milliseconds(settings.grace)
        #: How long an ended reservation stays readable, ms: the shortest time by the settings and by the TTLs read so
        #: far, because other writers may have other settings.
        self.retention_ms = milliseconds(settings.audit_retention)
        self._pipeline = self._opened.enter_context(ScriptPipeline(Script("ops/reconcile_look"), shard.client))

    def look(self, ids: Sequence[bytes], since_ms: int | None) -> Iterator[Sight]:
        for some in batches(ids, BATCH):
            parts = list(batches(some, SCRIPT_BATCH))
            self.throttle.begin()
            self._pipeline.send([self._look_call(part, since_ms) for part in parts])
            replies, micros, _ = self._pipeline.receive()
            self.throttle.end(busy=None if micros is None else micros / 1_000_000)
            for part, reply in zip(parts, accepted(replies), strict=True):
                *sights, retention = reply
                if retention:
                    self.retention_ms = min(self.retention_ms, int(retention))
                yield from (Sight(entry, *seen) for entry, seen in zip(part, sights, strict=True) if seen)

    def _look_call(self, ids: Sequence[bytes], since_ms: int | None) -> Call:
        keys = [self.kind.index, self.kind.quarantine, *map(self.kind.hash_key, ids)]
        return Call(keys, [self._grace_ms, "" if since_ms is None else since_ms, *ids])

    def _rule(self) -> tuple[str, int]:
        return "", 0


class ConfiguredKind(Subject):
    """One of `[[kinds]]`. The script of the kind, with no write sent, says whether a hash is active."""

    def __init__(
        self, shard: Shard, kind: Kind, batch: int, throttle: Throttle | None = None, others: Sequence[Kind] = ()
    ) -> None:
        """`batch`: how many entries the kind's script explains in one round trip. `others`: the other kinds."""
        super().__init__(shard, kind, throttle)
        self._batch = batch
        least = len(kind.stem + kind.end)
        self.closer = [each for each in others if len(each.stem + each.end) >= least]

    def look(self, ids: Sequence[bytes], since_ms: int | None) -> Iterator[Sight]:  # noqa: ARG002
        for finding in self.check(ids):
            if finding.fault is not Fault.ORPHAN:
                yield Sight(finding.subject, finding.fault.value.encode())

    def confirmed(self, ids: Sequence[bytes]) -> list[Finding]:
        found = self.check(ids)
        lost = [each.subject for each in found if each.fault is Fault.LOST]
        with self.throttle.step():
            explained = self.explained(lost)
        active = {each.decision.id for each in explained if each.decision.outcome not in _INACTIVE}
        return [each for each in found if each.fault is not Fault.LOST or each.subject in active]

    def explained(self, ids: Sequence[bytes]) -> list[Explanation]:
        """
        The decisions of the kind's script about these ids. If the script fails, the walk ends: else no entry would seem
        active. Raises KindRefused if the script would fail for each entry, or was killed.
        """
        explanations = explain(self.shard, self.kind, ids, self._batch)
        for each in explanations:
            if each.decision.outcome is Outcome.ERROR:
                error = redis.ResponseError(each.decision.detail)
                if self.kind.is_broken_by(error):
                    raise KindRefused(f"{self.kind.name}: not walked: {error}") from error
                raise error
        return explanations

    def _rule(self) -> tuple[str, int]:
        return self.kind.deadline, self.kind.max_wait_ms


def subject_of(shard: Shard, settings: Settings, name: str, throttle: Throttle | None = None) -> Subject:
    kinds = kinds_of(settings, shard)
    kind = kinds[name]
    if isinstance(kind.counters, Budgets):
        return Reservations(shard, settings.sweep, throttle)
    others = [each for each in kinds.values() if each is not kind]
    return ConfiguredKind(shard, kind, settings.sweep.pipeline_depth, throttle, others)


class HolderDocument(Document):
    """A reservation with an amount of the budget."""

    id: Text
    amount: int
    tenant: Text
    state: Text
    created_at: Text = Field(description="As it is stored, ms.")
    expires_at: Text = Field(description="As it is stored, ms.")
    quarantined: Annotated[bool, BeforeValidator(bool)] = Field(validation_alias="quarantined_at")


_HOLDER_FIELDS = ["tenant", "state", "created_at", "expires_at", "quarantined_at"]


def read_budget(shard: Shard, budget: bytes) -> dict[bytes, bytes] | None:
    """The fields of a budget, given by key; None if there is no such hash. Raises redis.RedisError."""
    try:
        return cast(dict[bytes, bytes], shard.client.hgetall(budget)) or None
    except redis.ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        return None


def find_holders(shard: Shard, settings: SweepSettings, budget: bytes) -> Iterator[HolderDocument]:
    """
    The reservations that hold an amount of the budget when read; quarantined ACTIVE reservations hold too. No
    reservation comes twice. Raises RedisUnavailable, redis.RedisError.
    """
    known, now = set[bytes](), shard.read_clock()
    with Reservations(shard, settings) as subject:
        for _, ids in subject.hashes():
            for sight in subject.look(ids, now):
                amount = _amount(shard.keys, budget, sight.holding)
                if amount is not None and sight.entry not in known:
                    known.add(sight.entry)
                    key = subject.kind.hash_key(sight.entry)
                    row = (value or b"" for value in cast(list[bytes | None], shard.client.hmget(key, _HOLDER_FIELDS)))
                    fields = dict(zip(_HOLDER_FIELDS, row, strict=True))
                    yield HolderDocument.model_validate({"id": sight.entry, "amount": amount, **fields})


def _amount(keys: Keys, budget: bytes, holding: Sequence[bytes]) -> int | None:
    """The amount of this budget in a holding of reconcile_look.lua; None if there is none now."""
    if len(holding) < 4 or holding[0] == b"unreadable" or holding[1] not in (b"", b"?"):
        return None
    _, _, amount, unit, *scopes = holding
    mentions = sum(keys.budget(scope, unit) == budget for scope in scopes)
    return int(amount) * mentions if mentions else None
