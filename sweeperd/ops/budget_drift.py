"""
Compares what each budget has reserved with what its reservations hold, while the ledger changes all the time.

A sum over a long walk is not the sum at any one moment, and the difference of two numbers that were read at different
times is no drift. So such numbers are never compared. Before the walk begins, one script reads `reserved` together with
the server's TIME: that is the moment T. The walk may then take as long as it needs, because a reservation says when it
began (`created_at`) and when it ended (`committed_at`, `released_at`, `expired_at`), by the same clock and in the same
atomic step that changed the budget. A reservation that is ACTIVE when it is read and began before T held its amount at
T. So did one that ended after T; one that began after T did not. Every reservation that held at T existed when the walk
began, and it still exists when the walk reads it, because an ended one stays readable for an audit; and SCAN returns
every key that exists from its beginning to its end. A walk that takes longer than half the shortest such time judges
nothing: those that the settings of the sweep and the TTLs of ended reservations tell.

Where it is not certain whether a reservation held at T, its amount is counted as possible and not as certain, so for
each budget there is a least and a most that can have been held at T. These cases are: it began or ended in the very
millisecond of T; a time is missing, or is after now (the server's clock was set back since); its state does not say
whether it holds; SCAN may have returned it twice. Only a `reserved` outside of that range is a drift. T is taken three
times, and the drift has to fit all three, because much happens within one millisecond of a busy budget.

A reservation whose amount cannot be read may hold any amount of its budgets, and one whose unit or scopes cannot be
read may hold of any budget. Such a budget is not judged, unless its `reserved` is less than what readable reservations
hold for certain. A CLOSED budget is not judged.

Memory holds a few numbers for each budget, and a filter of fixed size.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sweeperd.store.keys import Keys

#: How many moments of each budget are read.
MOMENTS = 3
#: Bits of the filter for each key of the database, and how many bits it has at least and at most: 32 MiB.
_BITS_EACH, _BITS_LEAST, _BITS_MOST = 16, 1 << 20, 1 << 28


class Seen:
    """A Bloom filter of ids: `add` may return True for a new id, and never returns False for a known one."""

    def __init__(self, expected: int) -> None:
        bits = min(max(expected * _BITS_EACH, _BITS_LEAST), _BITS_MOST)
        self._mask = (1 << (bits - 1).bit_length()) - 1
        self._bits = bytearray((self._mask + 1) // 8)

    def add(self, entry: bytes) -> bool:
        """Add an id. Returns whether it may have been added before."""
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
        """Whether 0 is impossible."""
        return not self.least <= 0 <= self.most

    def meets(self, other: "Difference") -> "Difference | None":
        """
        The range that both allow, as of the other's moment. None where there is none: something changed. None too where
        only one of the two is a drift: each walk has to exclude 0 by itself, or what one walk does not know would make
        a mistake of the other exact.
        """
        if self.is_drift is not other.is_drift:
            return None
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
        #: CLOSED budgets.
        self.closed: set[bytes] = set()
        #: ACTIVE reservations whose amount, unit or scopes cannot be read; a few may count twice.
        self.unreadable = 0
        #: The budgets of which an unreadable reservation holds something, and whether any budget may be one of them.
        self._unread: set[bytes] = set()
        self._unread_anywhere = False

    def __len__(self) -> int:
        return len(self._budgets)

    def __contains__(self, key: bytes) -> bool:
        return key in self._budgets

    def reserved(self, at_ms: int, budgets: Iterable[tuple[bytes, bytes]]) -> None:
        """What these budgets had reserved at that moment, as reconcile_budgets.lua replies."""
        self.first_ms = at_ms if self.first_ms is None else min(self.first_ms, at_ms)
        self.last_ms = at_ms if self.last_ms is None else max(self.last_ms, at_ms)
        for key, text in budgets:
            if text in (b"", b"-"):
                self._budgets.pop(key, None)
                if text:
                    self.closed.add(key)
                continue
            budget = self._budgets.setdefault(key, _Budget())
            if text == b"?":
                budget.readable = False
            else:
                budget.moments.append(_Moment(at_ms, int(text)))

    def held(self, entry: bytes, holding: Sequence[bytes]) -> None:
        """What a reservation holds, as reconcile_look.lua replies."""
        if holding[0] == b"unreadable":
            self._hold_unreadable(holding[1:])
            return
        began, ended, amount_text, unit, *scopes = holding
        amount = int(amount_text)
        first_time = not self._seen.add(entry)
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
                if first_time and surely_began and surely_holds:
                    moment.least += amount

    def _hold_unreadable(self, unit_and_scopes: Sequence[bytes]) -> None:
        self.unreadable += 1
        if not unit_and_scopes:
            self._unread_anywhere = True
            return
        unit, *scopes = unit_and_scopes
        self._unread.update(self._keys.budget(scope, unit) for scope in scopes)

    def unread(self, key: bytes) -> bool:
        """Whether a reservation that cannot be read may hold something of this budget."""
        return self._unread_anywhere or key in self._unread

    def differences(self) -> Mapping[bytes, Difference | None]:
        """
        For each budget; None where it is not judged: it or some of its reservations cannot be read, or its moments
        contradict each other.
        """
        return {key: self._judged(key, _difference(budget)) for key, budget in self._budgets.items()}

    def _judged(self, key: bytes, difference: Difference | None) -> Difference | None:
        if difference is None or not self.unread(key) or difference.most < 0:
            return difference
        return None


def _difference(budget: _Budget) -> Difference | None:
    if not budget.readable or not budget.moments:
        return None
    least = max(moment.reserved - moment.most for moment in budget.moments)
    most = min(moment.reserved - moment.least for moment in budget.moments)
    last = budget.moments[-1]
    return Difference(least, most, last.reserved, last.least, last.at_ms) if least <= most else None
