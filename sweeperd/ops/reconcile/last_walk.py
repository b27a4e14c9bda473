"""Keeps the last walk and the cursor of an unfinished one in `sweeperd:reconcile`."""

import contextlib
import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import pydantic
import redis

from sweeperd.document import Document
from sweeperd.ops.reconcile.faults import Fault, WalkStage
from sweeperd.store.errors import is_full
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Kind
from sweeperd.text import decode

# `status` only reads `last`, and the models of a report take a while to import.
if TYPE_CHECKING:
    from sweeperd.ops.reconcile.report import ReconcileReport, WalkedShardDocument

log = logging.getLogger(__name__)
ModelT = TypeVar("ModelT", bound=pydantic.BaseModel)
#: How many findings of a walk are kept. All are counted.
KEPT = 20


class WalkCursor(Document):
    """
    The place where a later walk resumes an unfinished one: JSON. A SCAN cursor is only valid for one run of the server,
    so the server's `run_id` must still be the same.
    """

    run_id: str
    #: When the walk began, ms on Redis's clock, and its duration so far, seconds.
    started_at: int
    seconds: float
    stage: WalkStage
    #: The cursor of SCAN or ZSCAN, depending on the stage.
    position: int
    hashes: int
    entries: int
    dismissed: int = 0
    foreign_expiries: int = 0
    held: int = 0
    held_because: str = ""
    found: dict[Fault, int]
    #: Fault, id in hex, found, expected.
    findings: list[tuple[Fault, str, str, str]]

    def report(self, kind: Kind) -> "ReconcileReport":
        from sweeperd.ops.reconcile.report import Finding, ReconcileReport  # noqa: PLC0415

        tallied = {"hashes", "entries", "dismissed", "foreign_expiries", "held", "held_because"}
        same = self.model_dump(include={*tallied, "started_at"})
        findings = [
            Finding(fault, bytes.fromhex(entry), score, wanted) for fault, entry, score, wanted in self.findings
        ]
        return ReconcileReport(**same, kind=kind, found=Counter(self.found), findings=findings, resumed=True)


class LastWalk(Document):
    """When the last complete walk ended, and what it found that was not mended since: JSON."""

    #: ms on Redis's clock.
    finished_at: int
    found: dict[Fault, int]
    foreign_expiries: int = 0
    #: The first budgets with BUDGET_DRIFT, as `--repair-budget` takes them.
    drifted: tuple[str, ...] = ()

    @classmethod
    def of(cls, shard: Shard, report: "ReconcileReport") -> "LastWalk":
        drifted = tuple(_budget_name(shard, key) for key in report.drifted)
        found = report.found - report.mended
        return cls.made_of(report, finished_at=shard.read_clock(), found=found, drifted=drifted)

    @property
    def total(self) -> int:
        return sum(self.found.values())


class WalkStore:
    """The fields `last`, `report` and `cursor` of one kind, with its suffix; reservations have no suffix."""

    def __init__(self, shard: Shard, suffix: str = "") -> None:
        self._shard = shard
        self._client = shard.client
        self._key = shard.keys.reconcile
        self._suffix = suffix

    def last(self) -> LastWalk | None:
        return self._read("last", LastWalk)

    def report(self) -> "WalkedShardDocument | None":
        """The report of the last complete walk; None if there is none, or if another version wrote it."""
        from sweeperd.ops.reconcile.report import WalkedShardDocument  # noqa: PLC0415

        last, report = self._client.hmget(self._key, f"last{self._suffix}", f"report{self._suffix}")
        try:
            finished_at = LastWalk.model_validate_json(last or b"").finished_at
            more = {"shard": self._shard.name, "address": self._shard.address, "finished_at": finished_at}
            return WalkedShardDocument.model_validate({**json.loads(report or b""), **more})
        except (ValueError, TypeError):
            return None

    def cursor(self) -> WalkCursor | None:
        return self._read("cursor", WalkCursor)

    def write_cursor(self, cursor: WalkCursor) -> None:
        """Stores the cursor of a walk. If Redis is full, it is lost, and the next walk starts over."""
        self._write({"cursor": cursor.model_dump_json()})

    def finish(self, walk: LastWalk, report: "ReconcileReport") -> bool:
        """Stores a complete walk. Returns False if Redis is full."""
        self._client.hdel(self._key, f"cursor{self._suffix}")
        document = report.document(self._shard).model_dump(
            mode="json", exclude_unset=True, exclude={"shard", "address"}
        )
        findings = document["findings"]
        kept = {"findings": findings[:KEPT], "truncated": report.found.total() > KEPT, "started_at": report.started_at}
        return self._write({"last": walk.model_dump_json(), "report": json.dumps(document | kept)})

    def budget_repaired(self, budget: bytes) -> bool:
        """Marks the drift of this budget, if the last walk found one, as mended. Returns False if Redis is full."""
        last, report = self.last(), self._client.hget(self._key, f"report{self._suffix}")
        name = _budget_name(self._shard, budget)
        if last is None or name not in last.drifted:
            return True
        found = {**last.found, Fault.BUDGET_DRIFT: last.found[Fault.BUDGET_DRIFT] - 1}
        drifted = tuple(each for each in last.drifted if each != name)
        fields = {"last": last.model_copy(update={"found": found, "drifted": drifted}).model_dump_json()}
        with contextlib.suppress(ValueError, TypeError, KeyError):  # another version wrote it
            kept = json.loads(report or b"")
            mended = Counter(kept["mended"], **{Fault.BUDGET_DRIFT.value: 1})
            findings = [
                {**each, "mended": True} if each.get("key") == decode(budget) else each for each in kept["findings"]
            ]
            kept |= {"mended": mended, "findings": findings, "remaining": kept["remaining"] - 1}
            fields["report"] = json.dumps(kept)
        return self._write(fields)

    def _read(self, name: str, model: type[ModelT]) -> ModelT | None:
        text = self._client.hget(self._key, name + self._suffix)
        if not isinstance(text, bytes):
            return None
        try:
            return model.model_validate_json(text)
        except ValueError:
            fields = {"shard": self._shard.name, "field": name + self._suffix}
            log.warning("what is kept of a reconcile cannot be read", extra=fields)
            return None

    def _write(self, fields: dict[str, str]) -> bool:
        try:
            self._client.hset(self._key, mapping={name + self._suffix: value for name, value in fields.items()})
        except redis.ResponseError as error:
            if not is_full(error):
                raise
            return False
        return True


def _budget_name(shard: Shard, key: bytes) -> str:
    """`<scope>:<unit>`"""
    return decode(key.removeprefix(shard.keys.budget_stem))
