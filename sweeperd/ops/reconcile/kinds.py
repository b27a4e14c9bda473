"""
The walk over one configured kind: hashes that the index lost, index entries without a hash, and the sums that the kind
declares. It changes nothing; `mend_kind` mends the index, and no walk changes a sum.

The first sight of a fault is a hint only. A second later a script reads hash, index and quarantine in one step, and
only what it confirms is a finding. Whether a hash is active says the kind's own script, with writes that are not sent.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import redis

from sweeperd.config import Settings
from sweeperd.config.kind_commands import ID, Field, Word, parse_word
from sweeperd.config.kinds import KindSettings
from sweeperd.ops.explain import explain
from sweeperd.ops.reconcile.faults import CONFIRM, SETTLE
from sweeperd.ops.reconcile.keyspace import PAGE, Keyspace, batches
from sweeperd.ops.reconcile.kind_report import KindFault, KindFinding, KindReport, KindStage
from sweeperd.ops.reconcile.report import FINDINGS
from sweeperd.ops.throttle import Throttle
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured_kinds import configured
from sweeperd.sweep.kind import Kind, Outcome

#: The outcomes of a hash that is active.
_ACTIVE = (Outcome.EXPIRED, Outcome.IN_GRACE, Outcome.NOT_DUE)
_ENTRY = Script("ops/reconcile_kind")


#: (stage, keys done so far, keys expected in all)
KindProgress = Callable[[KindStage, int, int], None]
#: Key and field of a counter -> the sum that all active hashes hold of it.
_Sums = Counter[tuple[bytes, bytes]]


def reconcile_kind(
    shard: Shard,
    settings: Settings,
    kind: KindSettings,
    rate: float | None = None,
    limit: int = FINDINGS,
    progress: KindProgress = lambda *_: None,
) -> KindReport:
    """
    Walk one kind on one shard. `rate`: keys per second at most. `limit` findings are kept. `progress` hears of pages.
    Raises RedisUnavailable, redis.RedisError.
    """
    began = time.monotonic()
    with shard.reaching():
        walk = _KindWalk(shard, settings, kind, Throttle(rate), progress)
        findings = [*walk.index_faults(), *walk.sum_faults()]
    found = Counter(finding.fault for finding in findings)
    mendable = tuple(finding.subject for finding in findings if finding.fault.mendable)
    counts = (walk.hashes, walk.entries, walk.unreadable, walk.unjudged)
    return KindReport(kind.name, *counts, found, {}, tuple(findings[:limit]), mendable, time.monotonic() - began)


def mend_kind(shard: Shard, kind: KindSettings, report: KindReport) -> KindReport:
    """
    Mend the index where the report says that it is wrong. Each entry is read and written in one step, so an entry that
    is right by now stays as it is, and counts as mended. Raises RedisUnavailable, redis.RedisError.
    """
    with shard.reaching():
        for part in batches(report.mendable, CONFIRM):
            _checked(shard, kind, part, mend=True)
    mended = {fault: count for fault, count in report.found.items() if fault.mendable}
    findings = (replace(finding, mended=finding.fault.mendable) for finding in report.findings)
    return replace(report, mended=mended, findings=tuple(findings))


def _checked(shard: Shard, kind: KindSettings, ids: Sequence[bytes], *, mend: bool) -> Iterator[KindFinding]:
    keys = shard.keys
    index, quarantine = keys.kind_index(kind.index), keys.kind_quarantine(kind.name)
    # A script may let an entry wait: its score is later than its deadline then.
    late = 0 if kind.script is None else kind.max_wait_ms
    calls = [
        Call([index, quarantine, keys.kind_entry(kind.entry, entry)], [entry, kind.deadline, int(mend), late])
        for entry in ids
    ]
    replies = _ENTRY.run_many(shard.client, calls)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return (
        KindFinding(KindFault(reply[0].decode()), entry, reply[2].decode(), reply[1].decode())
        for entry, reply in zip(ids, replies, strict=True)
        if reply
    )


@dataclass
class _KindWalk:
    shard: Shard
    settings: Settings
    kind: KindSettings
    throttle: Throttle
    progress: KindProgress
    hashes: int = 0
    entries: int = 0
    unreadable: int = 0
    unjudged: int = 0
    _swept: Kind = field(init=False)
    _keyspace: Keyspace = field(init=False)

    def __post_init__(self) -> None:
        keys = self.shard.keys
        self._swept = configured(self.kind, self.settings, keys)
        self._stem, self._end = (part.encode() for part in self.kind.entry)
        self._stem = keys.prefix + self._stem
        self._keyspace = Keyspace(self.shard, self.throttle, self._swept.index, keys.kind_entry(self.kind.entry, b""))

    def index_faults(self) -> Iterator[KindFinding]:
        """The findings about the index, each confirmed by a second read."""
        hints = dict[bytes, None]()
        for page in self._ids(KindStage.HASHES):
            self.hashes += len(page)
            hints.update(dict.fromkeys(self._suspects(page)))
        size = self.shard.client.zcard(self._swept.index)
        for _, page in self._keyspace.index():
            self.entries += len(page)
            self.progress(KindStage.INDEX, self.entries, max(size, self.entries))
            hints.update(dict.fromkeys(self._suspects(page)))
        if hints:
            self.throttle.wait(SETTLE)
        for part in batches(list(hints), CONFIRM):
            self.throttle.begin()
            faults = list(_checked(self.shard, self.kind, part, mend=False))
            lost = [each.subject for each in faults if each.fault is KindFault.LOST]
            active = self._active(lost)
            self.throttle.end(len(part))
            yield from (each for each in faults if each.fault is not KindFault.LOST or each.subject in active)

    def sum_faults(self) -> Iterator[KindFinding]:
        """The counters that differ from the sum of what active hashes hold, by the same amount in two walks."""
        if not self.kind.sums:
            return
        (first, held), (second, held_again) = self._sums(KindStage.SUMS), self._sums(KindStage.AGAIN)
        for counter in sorted(first.keys() | held.keys()):
            before, after = (first.get(counter), held[counter]), (second.get(counter), held_again[counter])
            if before != after or before[0] is None:
                self.unjudged += 1
            elif before[0] != before[1]:
                key, name = counter
                yield KindFinding(KindFault.SUM_DRIFT, key, str(before[0]), str(before[1]), name)

    def _ids(self, stage: KindStage) -> Iterator[list[bytes]]:
        """The ids of all hashes that have the name of an entry, page by page. One may come twice."""
        size = self._keyspace.size()
        for number, (_, page) in enumerate(self._keyspace.keys(self._stem), 1):
            self.progress(stage, number * PAGE, max(size, number * PAGE))
            names = [key for key in page if key.endswith(self._end) and len(key) > len(self._stem) + len(self._end)]
            yield [key[len(self._stem) : len(key) - len(self._end)] for key in names]

    def _suspects(self, ids: Sequence[bytes]) -> Iterator[bytes]:
        """Those of these ids that may have a fault."""
        for part in batches(ids, CONFIRM):
            self.throttle.begin()
            faults = [finding.subject for finding in _checked(self.shard, self.kind, part, mend=False)]
            self.throttle.end()
            yield from faults

    def _active(self, ids: Sequence[bytes]) -> set[bytes]:
        explanations = explain(self.shard, self.settings.sweep, ids, self._swept)
        return {each.decision.id for each in explanations if each.decision.outcome in _ACTIVE}

    # ---- sums

    def _sums(self, stage: KindStage) -> tuple[dict[tuple[bytes, bytes], int | None], _Sums]:
        """What each counter holds (None: no number), and the sums of the active hashes."""
        held, seen = _Sums(), set[bytes]()
        self.unreadable = 0
        for page in self._ids(stage):
            new = [entry for entry in dict.fromkeys(page) if entry not in seen]
            seen.update(new)
            for part in batches(new, CONFIRM):
                self.throttle.begin()
                self._add(part, held)
                self.throttle.end(len(part))
        return self._counters(held), held

    def _add(self, ids: Sequence[bytes], held: _Sums) -> None:
        pipeline, fields = self.shard.client.pipeline(transaction=False), self._fields()
        for entry in ids:
            pipeline.hmget(self._swept.hash_key(entry), fields)
        rows = pipeline.execute(raise_on_error=False)
        explanations = explain(self.shard, self.settings.sweep, ids, self._swept)
        for entry, values, explanation in zip(ids, rows, explanations, strict=True):
            outcome = explanation.decision.outcome
            if isinstance(values, redis.ResponseError) or outcome in (Outcome.SKIPPED, Outcome.NOT_FOUND):
                continue
            row = {name.encode(): value or b"" for name, value in zip(fields, values, strict=True)}
            for declared in self.kind.sums:
                names = [_filled(parse_word(text), entry, row) for text in (declared.key, declared.field)]
                amount = row.get(declared.of.encode(), b"")
                if None in names or not amount.isdigit():
                    self.unreadable += 1
                else:
                    key, name = cast(list[bytes], names)
                    held[self.shard.keys.prefix + key, name] += int(amount)

    def _fields(self) -> list[str]:
        """The fields of a hash that the sums need."""
        words = [parse_word(text) for declared in self.kind.sums for text in (declared.key, declared.field)]
        named = [part.name for word in words for part in word if isinstance(part, Field) and part.name != ID]
        return list(dict.fromkeys([*named, *(declared.of for declared in self.kind.sums)]))

    def _counters(self, held: _Sums) -> dict[tuple[bytes, bytes], int | None]:
        wanted = set(held)
        for declared in self.kind.sums:
            word, name = parse_word(declared.key), parse_word(declared.field)
            if all(isinstance(part, str) for part in name):
                wanted |= {(key, declared.field.encode()) for key in self._like(word)}
        found: dict[tuple[bytes, bytes], int | None] = {}
        for key, field_name in wanted:
            value = self._value(key, field_name)
            if value is not None or (key, field_name) in held:
                found[key, field_name] = _number(value)
        return found

    def _value(self, key: bytes, name: bytes) -> bytes | None:
        try:
            return cast(bytes | None, self.shard.client.hget(key, name.decode()))
        except redis.ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return None

    def _like(self, word: Word) -> Iterator[bytes]:
        """The keys that this template can name, but no entry of the kind."""
        texts = [part if isinstance(part, str) else "" for part in word]
        stem, end = self.shard.keys.prefix + texts[0].encode(), texts[-1].encode()
        if all(texts):
            yield stem
            return
        for _, page in self._keyspace.keys(stem):
            yield from (key for key in page if key.endswith(end) and not self._is_entry(key))

    def _is_entry(self, key: bytes) -> bool:
        return key.startswith(self._stem) and key.endswith(self._end)


def _filled(word: Word, entry: bytes, row: Mapping[bytes, bytes]) -> bytes | None:
    """The text of a template; None where a field is missing or empty."""
    parts = [
        (entry if part.name == ID else row.get(part.name.encode(), b"")) if isinstance(part, Field) else part.encode()
        for part in word
    ]
    return b"".join(parts) if all(parts) else None


def _number(value: bytes | None) -> int | None:
    text = (value or b"").removeprefix(b"-")
    return int(value or b"") if text.isdigit() and len(text) <= 19 else None
