"""Lists the quarantine of a kind, and releases entries from it or takes them in."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from pydantic import Field

from sweeperd.config import SweepSettings
from sweeperd.document import Count, Document, Moment, Seconds, ShardsDocument, Text, Truncated
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.reconcile.subjects import UNREADABLE, Reservations
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.scripts import Call, Script, accepted, batches, run_commands
from sweeperd.store.shard import Shard
from sweeperd.sweep.explanation import explain
from sweeperd.sweep.index import IndexEntry, Position, read_page
from sweeperd.sweep.kind import Decision, Kind, Outcome
from sweeperd.text import moment_ms

#: A greater score is not a time; see `moment_ms`.
LAST_MOMENT = 2**53
#: Where a list continues: a score, and how many entries with this score were listed.
_PLACE = re.compile(r"-?(inf|\d{1,20}(\.\d{1,20})?(e\+?\d{1,3})?):\d{1,9}", re.ASCII)
#: Up to how many entries `newest` reads in one call.
READ = 2_000
#: The problem of an entry that is no longer in the quarantine.
NOT_THERE = "not_quarantined"


@dataclass(frozen=True, slots=True)
class SetAside:
    """An entry of the quarantine. A field that the hash lacks is empty."""

    id: bytes
    #: ms on Redis's clock.
    at_ms: int
    #: Empty if the hash was removed or unmarked.
    reason: str
    tenant: bytes = b""
    state: bytes = b""
    #: What the reservation holds in each scope.
    amount: bytes = b""
    unit: bytes = b""


@dataclass(frozen=True, slots=True)
class QuarantineFilter:
    """
    Selects entries by id, or those with this reason and one of these tenants (None: any) that were quarantined up to
    `until_ms` on Redis's clock (None: up to `Quarantine.last_ms`).
    """

    ids: tuple[bytes, ...] | None = None
    reason: str | None = None
    tenants: tuple[bytes, ...] | None = None
    until_ms: float | None = None

    def takes(self, entry: SetAside) -> bool:
        return self.reason in (None, entry.reason) and (self.tenants is None or entry.tenant in self.tenants)


@dataclass(frozen=True, slots=True)
class QuarantineChange:
    """The result for one entry. `problem`: why it stays in quarantine; empty if it was changed."""

    entry: SetAside
    problem: str = ""


class Quarantine:
    """The quarantine of one kind on one shard. `batch`: how many entries are read or changed in one round trip."""

    def __init__(self, shard: Shard, kind: Kind, batch: int) -> None:
        self._shard = shard
        self._kind = kind
        self._length = batch
        self._fields = (kind.tenant, "state", "estimate_amount", "estimate_unit")
        self._requeue = Script("ops/requeue")
        self._dismiss = Script("ops/dismiss")

    def size(self, until_ms: float = math.inf) -> int:
        """How many entries were quarantined up to this moment of Redis's clock."""
        return int(self._shard.client.zcount(self._kind.quarantine, "-inf", until_ms))

    def last_ms(self) -> float:
        """Now on Redis's clock, or the time of the newest entry if the clock was set back."""
        newest: Any = self._shard.client.zrange(
            self._kind.quarantine, LAST_MOMENT, "-inf", desc=True, byscore=True, offset=0, num=1, withscores=True
        )
        return float(max([self._shard.read_clock(), *(at for _, at in newest)]))

    def find(self, wanted: QuarantineFilter) -> Iterator[SetAside]:
        """The selected entries, oldest first, read page by page."""
        for page in self._pages(wanted, lambda _: True):
            yield from page

    def newest(self, wanted: QuarantineFilter, most: int, before: str = "") -> tuple[list[SetAside], str]:
        """
        Up to `most` of the newest entries with the wanted reason and tenant, newest first, and the `before` that
        continues the list; empty at its end. Reads up to READ entries. Raises ValueError if `before` is invalid.
        """
        greatest, _, skipped = before.partition(":")
        if before and not _PLACE.fullmatch(before):
            raise ValueError("before: not a place in a quarantine")
        score, skip = float(greatest or "inf"), int(skipped or 0)
        found, read = list[SetAside](), 0
        while read < READ:
            rows: Any = self._shard.client.zrange(
                self._kind.quarantine, score, "-inf", desc=True, byscore=True, offset=skip, num=most, withscores=True
            )
            read += len(rows)
            entries = [IndexEntry(id_, str(at).encode()) for id_, at in rows]
            for (_, at), entry in zip(rows, self._read(entries), strict=True):
                score, skip = (score, skip + 1) if at == score else (at, 1)
                if wanted.takes(entry):
                    found.append(entry)
                    if len(found) == most:
                        return found, f"{score!r}:{skip}"
            if len(rows) < most:
                return found, ""
        return found, f"{score!r}:{skip}"

    def requeue(self, wanted: QuarantineFilter) -> Iterator[list[QuarantineChange]]:
        """
        Puts entries that are in quarantine now back into the index, page by page. An entry that a sweep would
        quarantine again stays.
        """
        return self._changed(wanted, self._requeue_page)

    def dismiss(self, wanted: QuarantineFilter) -> Iterator[list[QuarantineChange]]:
        """Removes entries from the quarantine, page by page. Their hashes get `dismissed_at`; budgets do not change."""
        return self._changed(wanted, self._dismiss_page)

    def _changed(
        self, wanted: QuarantineFilter, change: Callable[[Sequence[SetAside]], list[QuarantineChange]]
    ) -> Iterator[list[QuarantineChange]]:
        removed: set[bytes] = set()
        for page in self._pages(wanted, lambda entry: entry.id not in removed):
            removed.clear()
            done = change(page)
            removed.update(each.entry.id for each in done if each.problem in ("", NOT_THERE))
            yield done

    def _dismiss_page(self, page: Sequence[SetAside]) -> list[QuarantineChange]:
        key, more = self._kind.entry_key, [self._kind.marks or self._kind.quarantine]
        calls = [Call([key(entry.id), self._kind.quarantine, *more], [entry.id]) for entry in page]
        replies = accepted(self._dismiss.run_many(self._shard.client, calls))
        problems = ("" if reply == b"dismissed" else NOT_THERE for reply in replies)
        return list(map(QuarantineChange, page, problems))

    def _requeue_page(self, page: Sequence[SetAside]) -> list[QuarantineChange]:
        decided = (
            each.decision for each in explain(self._shard, self._kind, [entry.id for entry in page], self._length)
        )
        # A sweep would quarantine these again.
        again = {each.id: each for each in decided if each.outcome in (Outcome.QUARANTINED, Outcome.ERROR)}
        problems = {
            id_: f"{decision.detail} ({decision.why})" if decision.why else decision.detail
            for id_, decision in again.items()
        }
        calls = {entry.id: call for entry in page if (call := self._requeue_call(entry, again.get(entry.id)))}
        replies = self._requeue.run_many(self._shard.client, list(calls.values()))
        for id_, reply in zip(calls, replies, strict=True):
            if id_ in again:
                continue  # a full Redis refuses the new reason, and the old one stays
            if isinstance(reply, Exception):
                if is_server_trouble(reply):
                    raise reply
                problems[id_] = describe(reply)
            elif reply != b"requeued":
                problems[id_] = reply.decode()
        return [QuarantineChange(entry, problems.get(entry.id, "")) for entry in page]

    def _requeue_call(self, entry: SetAside, again: Decision | None) -> Call | None:
        """The call of requeue.lua. None if the entry stays, and its reason is up to date."""
        args: list[bytes | str] = [entry.id, self._kind.deadline or ""]
        if again:
            if again.outcome is Outcome.ERROR or again.detail == entry.reason:
                return None
            args += ["quarantine_reason", again.detail]
            args += ["quarantine_detail", again.why] if again.why else []
        kind = self._kind
        more = [kind.notes or kind.quarantine, kind.marks or kind.quarantine]
        return Call([kind.entry_key(entry.id), kind.index, kind.quarantine, *more], args)

    def _pages(self, wanted: QuarantineFilter, stays: Callable[[SetAside], bool]) -> Iterator[list[SetAside]]:
        """
        The selected entries that are in quarantine now, page by page. `stays` says, when the next page is read, whether
        an entry of the last page is still there.
        """
        if wanted.ids is not None:
            yield from map(self._named, batches(wanted.ids, self._length))
            return
        until = self.last_ms() if wanted.until_ms is None else wanted.until_ms
        position = Position()
        while True:
            page = read_page(self._shard, self._kind.quarantine, until, position, self._length)
            entries = self._read(page)
            chosen = [entry for entry in entries if wanted.takes(entry)]
            if chosen:
                yield chosen
            if len(entries) < self._length:
                return
            staying = [not wanted.takes(entry) or stays(entry) for entry in entries]
            position = position.after(zip(page, staying, strict=True))

    def _named(self, ids: Sequence[bytes]) -> list[SetAside]:
        replies = run_commands(self._shard.client, (("ZSCORE", self._kind.quarantine, id_) for id_ in ids))
        scores = zip(ids, accepted(replies), strict=True)
        return self._read([IndexEntry(id_, str(score).encode()) for id_, score in scores if score is not None])

    def _read(self, entries: Sequence[IndexEntry]) -> list[SetAside]:
        rows = run_commands(
            self._shard.client, (self._kind.reason_command(entry.id, *self._fields) for entry in entries)
        )
        return [_set_aside(entry.id, entry.score, row) for entry, row in zip(entries, rows, strict=True)]


def _set_aside(id_: bytes, score: bytes, row: list[bytes | None] | Exception) -> SetAside:
    at_ms = int(moment_ms(score))
    if isinstance(row, Exception):
        if isinstance(row, redis.ResponseError) and "WRONGTYPE" in str(row):
            return SetAside(id_, at_ms, "WRONG_TYPE")
        raise row
    reason, *more = (value or b"" for value in row)
    return SetAside(id_, at_ms, reason.partition(b" ")[0].decode("utf-8", "backslashreplace"), *more)


def find_foreign(shard: Shard, settings: SweepSettings) -> Iterator[bytes]:
    """The ids of all reservations that another sweeper quarantined. May repeat an id."""
    mark = Fault.FOREIGN_QUARANTINE.value.encode()
    with Reservations(shard, settings) as subject:
        for _, ids in subject.hashes():
            yield from (observation.entry for observation in subject.look(ids, None) if observation.mark == mark)


def find_unreadable(shard: Shard, settings: SweepSettings, ids: Sequence[bytes]) -> set[bytes]:
    """Those of these reservations whose amount, unit or scopes cannot be read."""
    with Reservations(shard, settings) as subject:
        return {each.entry for each in subject.look(ids, 0) if each.holding and each.holding[0] in UNREADABLE}


def adopt(shard: Shard, ids: Sequence[bytes]) -> list[bool]:
    """Takes these reservations into the quarantine. False for those that no other sweeper has marked."""
    keys = shard.keys
    calls = [Call([keys.reservation(each), keys.reservation_index, keys.quarantine], [each]) for each in ids]
    return [reply == b"adopted" for reply in accepted(Script("ops/adopt").run_many(shard.client, calls))]


class SetAsideDocument(Document):
    kind: str
    id: Text
    reason: str
    quarantined_at: Moment | None
    age_seconds: Seconds
    tenant: Text
    amount: Text
    unit: Text
    state: Text

    @classmethod
    def of(cls, kind: str, entry: SetAside, now_ms: int) -> "SetAsideDocument":
        age = max(0.0, (now_ms - entry.at_ms) / 1000)
        return cls.made_of(entry, kind=kind, quarantined_at=entry.at_ms, age_seconds=age)


class QuarantinedShard(Document):
    shard: str
    quarantined: Count = Field(description="All entries of the listed kinds, listed here or not.")
    truncated: Truncated
    entries: list[SetAsideDocument]


class QuarantineDocument(ShardsDocument, title="sweeperd quarantine list --json"):
    shards: list[QuarantinedShard]


class StayingEntry(Document):
    shard: str
    id: str
    reason: str


class QuarantineChangeDocument(
    ShardsDocument, title="sweeperd quarantine requeue --json, sweeperd quarantine dismiss --json"
):
    """The document has `requeued` or `dismissed`, by the command."""

    requeued: Count = 0
    dismissed: Count = 0
    stay: Count = Field(description="How many were not changed.")
    stays: list[StayingEntry]
    locked: dict[str, int] = Field(default={}, description="What the dismissed reservations hold, by unit.")
    unreadable: Count = Field(
        default=0, description="Dismissed reservations that cannot be read: reconcile leaves them out."
    )
    unreadable_ids: list[Text] = Field(default=[], description="The first of their ids.")


class AdoptDocument(ShardsDocument, title="sweeperd quarantine adopt --json"):
    adopted: Count
