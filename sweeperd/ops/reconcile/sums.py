"""
Compares the counters that a configured kind declares in `sums` with its hashes.

A walk reads the hashes first and the counters afterwards, so work in between makes both differ. A difference is a
finding only if AGREEING walks in a row agree on the counter, the sum, and the entries behind the sum, each with its
amount and its deadline. One script reads whether an entry is active, its amount, and the counter: if the counter
differs beside two of its entries, the walk does not agree. If nothing is suspect, one walk is enough.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from sweeperd.config.kinds import SumSettings
from sweeperd.config.templates import Word, parse_word
from sweeperd.ops.reconcile.counters import Counters
from sweeperd.ops.reconcile.faults import Fault, WalkStage
from sweeperd.ops.reconcile.report import Finding, Named
from sweeperd.ops.reconcile.subjects import CONFIRM, ConfiguredKind
from sweeperd.store.scripts import Script, batches, run_commands
from sweeperd.sweep.kind import Outcome
from sweeperd.text import integer, whole

#: How many walks have to agree on a sum. One walk may see a difference if an entry takes the place of a similar one;
#: that all of them see the same difference is improbable.
AGREEING = 5
#: Key and field.
Counted = tuple[bytes, bytes]


class _Sum(NamedTuple):
    """A counter in one walk: its value (None: not a number), the sum over the hashes, and the entries behind it."""

    holds: int | None
    held: int
    #: The sum of the fingerprints of the entries.
    entries: int
    #: Whether the counter kept its value during the walk.
    steady: bool


class SumCounters(Counters):
    def __init__(self, subject: ConfiguredKind, declared: Sequence[SumSettings], script: Script) -> None:
        super().__init__()
        self._subject = subject
        self._script = script
        self._throttle = subject.throttle
        self._client = subject.shard.client
        self._prefix = subject.shard.keys.prefix
        self._sums = declared
        #: Hashes that are not judged, because no entry of the kind was seen alive. They may hold a part of any counter.
        self._held = 0
        # Hashes, index, walks for the sums, and a search for the counters of each sum.
        self.passes = 2 + AGREEING + len(self._sums)

    def drifts(self) -> Iterator[Finding]:
        first = self._walk(WalkStage.COUNTERS, None)
        self.count = len(first)
        if self._held:
            self.unjudged = len(first)
            return
        self.unjudged = sum(1 for each in first.values() if each.holds is None)
        suspects = {name: each for name, each in first.items() if each.holds not in (None, each.held)}
        for _ in range(AGREEING - 1):
            if not suspects:
                return
            again = self._walk(WalkStage.AGAIN, suspects)
            agreed = {name: each for name, each in suspects.items() if each.steady and again.get(name) == each}
            self.unjudged += len(suspects) - len(agreed)
            suspects = agreed
        for (key, name), each in sorted(suspects.items()):
            difference = (each.holds or 0) - each.held
            bounds = (difference, difference)
            yield Finding(Fault.SUM_DRIFT, key, str(each.holds or 0), str(each.held), name, bounds)

    def _walk(self, stage: WalkStage, only: Collection[Counted] | None) -> dict[Counted, _Sum]:
        held: dict[Counted, tuple[int, int]] = {}
        self.unreadable = Named()
        # The values of each counter in this walk.
        values: dict[Counted, set[bytes | None]] = {name: {value} for name, value in self._values(only or ()).items()}
        for _, ids in self._subject.hashes(stage):
            for part in batches(ids, CONFIRM):
                self._add(part, held, values)
        wanted = only if only is not None else {**held, **dict.fromkeys(self._declared())}
        return {
            name: _Sum(integer(value or b""), *held.get(name, (0, 0)), values.get(name, {value}) == {value})
            for name, value in self._values(wanted).items()
            if value is not None or name in held
        }

    def _add(
        self,
        ids: Sequence[bytes],
        held: dict[Counted, tuple[int, int]],
        values: dict[Counted, set[bytes | None]],
    ) -> None:
        calls = [self._subject.kind.call(entry, "", self._subject.trusted) for entry in ids]
        for entry, (outcome, deadline, *holdings) in zip(ids, self._subject.run(self._script, calls), strict=True):
            active = outcome.decode() not in (Outcome.SKIPPED, Outcome.NOT_FOUND, Outcome.HELD)
            self._held += outcome.decode() == Outcome.HELD
            for key, name, text, value in holdings:
                counted, amount = (key, name), whole(text)
                if key:
                    values.setdefault(counted, set()).add(value)
                if active and amount is None:
                    self.unreadable.add(entry)
                elif active and amount is not None:
                    sum_so_far, entries = held.get(counted, (0, 0))
                    held[counted] = sum_so_far + amount, entries + fingerprint(entry, amount, deadline)

    def _declared(self) -> Iterator[Counted]:
        """The counters that may exist, even if no entry holds a part of them."""
        for declared in self._sums:
            word, name = parse_word(declared.key), parse_word(declared.field)
            if all(isinstance(part, str) for part in name):
                yield from ((key, declared.field.encode()) for key in self._like(word))

    def _like(self, word: Word) -> Iterator[bytes]:
        """The keys that this template can produce, except the entries of the kind."""
        texts = [part if isinstance(part, str) else "" for part in word]
        stem, end = self._prefix + texts[0].encode(), texts[-1].encode()
        if all(texts):
            yield stem
            return
        for _, page in self._subject.keyspace.keys(stem):
            yield from (key for key in page if key.endswith(end) and not self._subject.is_entry(key))

    def _values(self, wanted: Iterable[Counted]) -> dict[Counted, bytes | None]:
        found: dict[Counted, bytes | None] = {}
        for part in batches(list(wanted), CONFIRM):
            with self._throttle.step():
                replies = run_commands(self._client, (("HGET", key, name) for key, name in part))
            for counter, value in zip(part, replies, strict=True):
                if isinstance(value, Exception) and "WRONGTYPE" not in str(value):
                    raise value
                found[counter] = None if isinstance(value, Exception) else value
        return found


def fingerprint(entry: bytes, amount: int, deadline: bytes) -> int:
    """
    64 bits for an entry, its amount and its deadline, which can be added up in any order. Python's `hash` of a tuple is
    too regular: two entries that swap amounts often have the same sum.
    """
    digest = hashlib.blake2b(b"%d %d %b %b" % (amount, len(deadline), deadline, entry), digest_size=8).digest()
    return int.from_bytes(digest, "big")
