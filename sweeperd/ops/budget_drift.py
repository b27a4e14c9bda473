"""
What each budget has reserved, held against what its reservations hold: one picture of a ledger that never stands still.

A sum over a long walk is not a sum of any moment, and a difference of two numbers that were read at different times is
no drift. So nothing here compares such numbers. First, before the walk begins, `reserved` is read together with the
server's TIME, in one script: that is the moment T. Then the walk may take as long as it likes, because a reservation
says when it began (`created_at`) and when it ended (`committed_at`, `released_at`, `expired_at`), by the same clock and
in the same atomic step that changed the budget. A reservation that is found ACTIVE and began before T held its amount
at T. So did one that has ended since, and one that began after T did not, however late the walk comes by. Every
reservation that held at T was there when the walk began and stays there until it comes by, because what has ended stays
readable for an audit; and SCAN returns all that is there from its beginning to its end.

Where a reservation's part in T cannot be told, it is counted as a possibility and never as a fact, so for each budget
there is a least and a most that can have been held at T. Such cases are: it began or ended in the very millisecond of
T; it does not say when; it has no state that says whether it holds; SCAN may have returned it twice. Only `reserved`
outside of what is possible is a drift. Busy budgets would often be read in a millisecond in which something happened,
so T is taken three times, and the drift has to fit all of the three.

What was reserved for what cannot be read (amount, unit or scopes) is counted nowhere; how many such reservations there
are is told beside the findings, for they may be what a budget holds too much for.

Memory holds a few numbers for each budget, and a filter of fixed size.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sweeperd.store.keys import Keys

#: How many moments are looked at.
MOMENTS = 3
#: Bits of the filter for each key of the database, and how many bits it has at least and at most: 32 MiB.
_BITS_EACH, _BITS_LEAST, _BITS_MOST = 16, 1 << 20, 1 << 28


class Seen:
    """Which ids were seen before. It may be wrong about one that was not, never about one that was (a Bloom filter)."""

    def __init__(self, expected: int) -> None:
        bits = min(max(expected * _BITS_EACH, _BITS_LEAST), _BITS_MOST)
        self._mask = (1 << (bits - 1).bit_length()) - 1
        self._bits = bytearray((self._mask + 1) // 8)

    def add(self, entry: bytes) -> bool:
        """Take it in. Returns whether it may have been in already."""
        digest = hashlib.blake2b(entry, digest_size=16).digest()
        before = True
        for start in range(0, 16, 4):
            place = int.from_bytes(digest[start : start + 4], "big") & self._mask
            byte, bit = place >> 3, 1 << (place & 7)
            if not self._bits[byte] & bit:
                before = False
                self._bits[byte] |= bit
        return before


@dataclass(slots=True)
class _Moment:
    """One budget at one moment."""

    at_ms: int
    reserved: int
    least: int = 0
    most: int = 0


@dataclass(slots=True)
class _Budget:
    moments: list[_Moment] = field(default_factory=list)
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Difference:
    """
    `reserved` of one budget less what its reservations hold: at least and at most. `reserved` and `held` are as of
    `at_ms` on the server's clock; `held` is the least.
    """

    least: int
    most: int
    reserved: int
    held: int
    at_ms: int

    @property
    def is_drift(self) -> bool:
        """Whether it cannot be nothing."""
        return not self.least <= 0 <= self.most

    def meets(self, other: "Difference") -> "Difference | None":
        """What both allow, as of the other's moment; None where that is nothing: something has changed in between."""
        least, most = max(self.least, other.least), min(self.most, other.most)
        return Difference(least, most, other.reserved, other.held, other.at_ms) if least <= most else None


class BudgetDrift:
    """The budgets of one walk. First every budget's `reserved` comes in, then every reservation."""

    def __init__(self, keys: Keys, expected: int) -> None:
        self._keys = keys
        self._budgets: dict[bytes, _Budget] = {}
        self._seen = Seen(expected)
        #: The first and the last moment, ms; None before there is one.
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        #: ACTIVE reservations whose amount, unit or scopes cannot be read; at most a few of these twice.
        self.unreadable = 0

    def __len__(self) -> int:
        return len(self._budgets)

    def __contains__(self, key: bytes) -> bool:
        return key in self._budgets

    def reserved(self, at_ms: int, budgets: Iterable[tuple[bytes, bytes]]) -> None:
        """What these had reserved at that moment, as reconcile_budgets.lua tells it."""
        self.first_ms = at_ms if self.first_ms is None else min(self.first_ms, at_ms)
        self.last_ms = at_ms if self.last_ms is None else max(self.last_ms, at_ms)
        for key, text in budgets:
            if text == b"":
                self._budgets.pop(key, None)
                continue
            budget = self._budgets.setdefault(key, _Budget())
            if text == b"?":
                budget.readable = False
            else:
                budget.moments.append(_Moment(at_ms, int(text)))

    def held(self, entry: bytes, holding: Sequence[bytes]) -> None:
        """What a reservation holds, as reconcile_look.lua tells it."""
        if len(holding) == 1:
            self.unreadable += 1
            return
        began, ended, amount_text, unit, *scopes = holding
        amount = int(amount_text)
        once = not self._seen.add(entry)
        from_ms = int(began) if began else None
        until_ms = int(ended) if ended not in (b"", b"?") else None
        for scope in scopes:
            budget = self._budgets.get(self._keys.budget(scope, unit))
            for moment in budget.moments if budget else ():
                at = moment.at_ms
                if (from_ms is not None and from_ms > at) or (until_ms is not None and until_ms < at):
                    continue
                moment.most += amount
                surely_began = from_ms is not None and from_ms < at
                surely_holds = ended == b"" or (until_ms is not None and until_ms > at)
                if once and surely_began and surely_holds:
                    moment.least += amount

    def differences(self) -> Mapping[bytes, Difference | None]:
        """For each budget; None where it cannot be read, or where its moments contradict each other."""
        return {key: _difference(budget) for key, budget in self._budgets.items()}


def _difference(budget: _Budget) -> Difference | None:
    if not budget.readable or not budget.moments:
        return None
    least = max(moment.reserved - moment.most for moment in budget.moments)
    most = min(moment.reserved - moment.least for moment in budget.moments)
    last = budget.moments[-1]
    return Difference(least, most, last.reserved, last.least, last.at_ms) if least <= most else None
