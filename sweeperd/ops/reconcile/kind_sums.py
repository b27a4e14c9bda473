"""
Compares the counters that a kind declares in `sums` with what its active hashes hold.

A walk reads the hashes one after the other and the counters after them, so that work in between makes both differ. A
difference is a finding only where AGREEING walks in a row agree on the counter, on the sum, and on the entries that
make it up. The further walks are left out where nothing is suspect.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import redis

from sweeperd.config.kinds import ID, Field, SumSettings, Word, parse_word
from sweeperd.ops.reconcile.faults import CONFIRM
from sweeperd.ops.reconcile.keyspace import batches
from sweeperd.ops.reconcile.kind_reader import KindReader
from sweeperd.ops.reconcile.kind_report import KindFault, KindFinding, KindStage
from sweeperd.sweep.kind import Outcome
from sweeperd.text import whole

#: How many walks have to agree. An entry that comes and goes while another one like it takes its place can look like a
#: difference in one walk; that it does so in each of them, unseen, is improbable.
AGREEING = 5

#: Key and field.
Counted = tuple[bytes, bytes]
_Row = Mapping[bytes, bytes]


class _Sum(NamedTuple):
    """One counter in one walk: what it holds (None: no number), what the hashes hold, and which ones these were."""

    holds: int | None
    held: int
    #: The sum of their fingerprints.
    entries: int


class SumComparison:
    """All sums of one kind."""

    def __init__(self, reader: KindReader) -> None:
        self._reader = reader
        self._client = reader.shard.client
        self._prefix = reader.shard.keys.prefix
        self._sums = reader.kind.sums
        #: Amounts of active hashes that cannot be read; and counters that hold no number, or on which walks disagree.
        self.unreadable = 0
        self.unjudged = 0

    def drifts(self) -> Iterator[KindFinding]:
        """The counters that are not the sum. Raises RedisUnavailable, redis.RedisError, Interrupted."""
        if not self._sums:
            return
        first = self._walk(KindStage.SUMS, None)
        self.unjudged = sum(1 for each in first.values() if each.holds is None)
        suspects = {name: each for name, each in first.items() if each.holds not in (None, each.held)}
        for _ in range(AGREEING - 1):
            if not suspects:
                return
            again = self._walk(KindStage.AGAIN, suspects)
            agreed = {name: each for name, each in suspects.items() if again.get(name) == each}
            self.unjudged += len(suspects) - len(agreed)
            suspects = agreed
        for (key, name), each in sorted(suspects.items()):
            yield KindFinding(KindFault.SUM_DRIFT, key, str(each.holds), str(each.held), name)

    def _walk(self, stage: KindStage, only: Collection[Counted] | None) -> dict[Counted, _Sum]:
        """One walk; `only`: for these counters."""
        held: dict[Counted, tuple[int, int]] = {}
        for _, page in self._reader.hashes(stage):
            for part in batches(page, CONFIRM):
                self._reader.throttle.begin()
                self._add(part, held, only)
                self._reader.throttle.end()
        wanted = list(only) if only is not None else list({**held, **dict.fromkeys(self._declared())})
        values = self._values(wanted)
        return {
            name: _Sum(_number(value), *held.get(name, (0, 0)))
            for name, value in values.items()
            if value is not None or name in held
        }

    def _add(
        self, ids: Sequence[bytes], held: dict[Counted, tuple[int, int]], only: Collection[Counted] | None
    ) -> None:
        holdings = self._holdings(ids)
        if only is not None:
            holdings = {
                entry: [each for each in found if each and each[0] in only] for entry, found in holdings.items()
            }
            holdings = {entry: found for entry, found in holdings.items() if found}
        for explanation in self._reader.explained(list(holdings)):
            if explanation.decision.outcome in (Outcome.SKIPPED, Outcome.NOT_FOUND):
                continue
            entry = explanation.decision.id
            for holding in holdings[entry]:
                if holding is None:
                    self.unreadable += 1
                    continue
                name, amount = holding
                sum_so_far, entries = held.get(name, (0, 0))
                held[name] = sum_so_far + amount, entries + fingerprint(entry, amount)

    def _holdings(self, ids: Sequence[bytes]) -> dict[bytes, list[tuple[Counted, int] | None]]:
        """What each of these hashes holds of each sum; None where it cannot be read."""
        pipeline, fields = self._client.pipeline(transaction=False), self._fields()
        for entry in ids:
            pipeline.hmget(self._reader.swept.hash_key(entry), fields)
        found: dict[bytes, list[tuple[Counted, int] | None]] = {}
        for entry, values in zip(ids, pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(values, redis.ResponseError):
                continue  # no hash
            if isinstance(values, Exception):
                raise values
            row = {name.encode(): value or b"" for name, value in zip(fields, values, strict=True)}
            found[entry] = [self._holding(declared, entry, row) for declared in self._sums]
        return found

    def _holding(self, declared: SumSettings, entry: bytes, row: _Row) -> tuple[Counted, int] | None:
        key, name = (_filled(parse_word(text), entry, row) for text in (declared.key, declared.field))
        amount = whole(row.get(declared.of.encode(), b""))
        if key is None or name is None or amount is None:
            return None
        return (self._prefix + key, name), amount

    def _fields(self) -> list[str]:
        """The fields of a hash that the sums need."""
        words = [parse_word(text) for declared in self._sums for text in (declared.key, declared.field)]
        named = [part.name for word in words for part in word if isinstance(part, Field) and part.name != ID]
        return list(dict.fromkeys([*named, *(declared.of for declared in self._sums)]))

    def _declared(self) -> Iterator[Counted]:
        """The counters that there may be, also without an entry that holds something of them."""
        for declared in self._sums:
            word, name = parse_word(declared.key), parse_word(declared.field)
            if all(isinstance(part, str) for part in name):
                yield from ((key, declared.field.encode()) for key in self._like(word))

    def _like(self, word: Word) -> Iterator[bytes]:
        """The keys that this template can name, but no entry of the kind."""
        texts = [part if isinstance(part, str) else "" for part in word]
        stem, end = self._prefix + texts[0].encode(), texts[-1].encode()
        if all(texts):
            yield stem
            return
        for _, page in self._reader.keyspace.keys(stem):
            yield from (key for key in page if key.endswith(end) and not self._reader.is_entry(key))

    def _values(self, wanted: Sequence[Counted]) -> dict[Counted, bytes | None]:
        found: dict[Counted, bytes | None] = {}
        for start in range(0, len(wanted), CONFIRM):
            part = wanted[start : start + CONFIRM]
            self._reader.throttle.begin()
            pipeline = self._client.pipeline(transaction=False)
            for key, name in part:
                pipeline.hget(key, cast(str, name))
            replies = pipeline.execute(raise_on_error=False)
            self._reader.throttle.end()
            for counter, value in zip(part, replies, strict=True):
                if isinstance(value, Exception) and "WRONGTYPE" not in str(value):
                    raise value
                found[counter] = None if isinstance(value, Exception) else value
        return found


def fingerprint(entry: bytes, amount: int) -> int:
    """
    64 bits that stand for an entry and what it holds. Those of many are added up, in any order. `hash` of a tuple will
    not do: it is so regular that two entries that exchange their amounts often come to the same sum.
    """
    digest = hashlib.blake2b(b"%d %b" % (amount, entry), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _filled(word: Word, entry: bytes, row: _Row) -> bytes | None:
    """The text of a template; None where a field is missing or empty."""
    parts = [
        (entry if part.name == ID else row.get(part.name.encode(), b"")) if isinstance(part, Field) else part.encode()
        for part in word
    ]
    return b"".join(parts) if all(parts) else None


def _number(value: bytes | None) -> int | None:
    if value is None:
        return None
    number = whole(value.removeprefix(b"-"))
    return -number if number is not None and value.startswith(b"-") else number
