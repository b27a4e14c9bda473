"""
Compares budgets with what their reservations hold, under traffic.

A sum over a long walk is not the sum at any moment, so it cannot be compared with a number read at another time. Before
the walk, a script therefore reads `reserved` together with the server's TIME: the moment T. The walk may then take
long, because a reservation says when it began (`created_at`) and ended (`committed_at`, `released_at`, `expired_at`),
by the same clock and in the same atomic step that changed the budget. It held its amount at T if it began before T and
is ACTIVE, or ended after T. Every such reservation is found: it still exists, because an ended reservation stays
readable for an audit, and SCAN returns every key that exists throughout. A walk that takes longer than half that time,
by the sweep's settings and the TTLs of ended reservations, judges nothing.

An amount that may or may not have been held at T counts as possible, so each budget has a least and a most: the
reservation began or ended in the millisecond of T; a time is missing or in the future (the clock was set back); the
state is unclear; SCAN may have returned it twice. Only a `reserved` outside this range is a drift. T is taken three
times, and a drift has to fit all three, because a busy budget changes often within a millisecond.

A drift is reported if two walks, each with its own moments, agree. This covers writers that break the rules: the clock
is set back, a service uses another clock, or a hash is removed as soon as its reservation ends.

A reservation whose amount cannot be read may hold any amount of its budgets, and one whose unit or scopes cannot be
read, of any budget. Such a budget is only judged if `reserved` is less than the readable reservations certainly hold.
Once an operator has dismissed such a reservation, it is left out, as if it held nothing. A CLOSED budget is not judged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sweeperd.config import SweepSettings
from sweeperd.ops.reconcile.bloom import BloomFilter
from sweeperd.ops.reconcile.counters import Counters
from sweeperd.ops.reconcile.faults import Fault, WalkStage
from sweeperd.ops.reconcile.report import Finding, Named
from sweeperd.ops.reconcile.subjects import SCRIPT_BATCH, UNREADABLE, Observation, Reservations
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call, Script, batches
from sweeperd.store.shard import Shard

#: How many moments of each budget are read, and the seconds between two: more than the server's clock tick of 1 ms.
MOMENTS, MOMENT_PAUSE = 3, 0.002
#: Why a budget is not judged.
_TOO_LONG = (
    "the walk took longer than ended reservations are sure to stay readable; try without --rate, or at a quiet hour"
)
_INEXACT = "too much happened during the walks: the difference is not exact"
#: The results of a budget that was judged.
DRIFT, NO_DRIFT = "drift", "no drift"


@dataclass(slots=True)
class _Moment:
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
    The bounds of `reserved` minus what reservations hold. `reserved` and `held`, the least, are those of the moment
    `at_ms` on the server's clock.
    """

    least: int
    most: int
    reserved: int
    held: int
    at_ms: int

    @property
    def is_drift(self) -> bool:
        """Whether the bounds exclude 0."""
        return not self.least <= 0 <= self.most

    @property
    def is_exact(self) -> bool:
        return self.least == self.most

    def meets(self, other: "Difference") -> "Difference | None":
        """
        The bounds of both, at the other's moment. None if they do not overlap, because something changed, or if only
        one is a drift. One of them may be wrong after the clock was set back, so a vague walk confirms no exact amount.
        """
        if self.is_drift is not other.is_drift or self.most < other.least or other.most < self.least:
            return None
        least, most = min(self.least, other.least), max(self.most, other.most)
        return Difference(least, most, other.reserved, other.held, other.at_ms)


class BudgetDrift:
    """The budgets of one walk: call `reserved` for all budgets, then `held` for all reservations."""

    def __init__(self, keys: Keys, expected: int, only: bytes | None = None) -> None:
        """`only`: reservations that cannot hold a part of this budget do not count as unreadable."""
        self._keys = keys
        self._only = only
        self._budgets: dict[bytes, _Budget] = {}
        self._seen = BloomFilter(expected)
        #: The first and the last moment, ms; None before the first.
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self.closed: set[bytes] = set()
        #: ACTIVE reservations whose amount, unit or scopes cannot be read, and those that an operator dismissed.
        self.unreadable, self.left_out = Named(), Named()
        #: The budgets of unreadable reservations, and whether one of them may hold any budget.
        self._unread: set[bytes] = set()
        self._unread_anywhere = False

    def __len__(self) -> int:
        return len(self._budgets)

    def __contains__(self, key: bytes) -> bool:
        return key in self._budgets

    def reserved(self, at_ms: int, budgets: Iterable[tuple[bytes, bytes]]) -> None:
        """Adds `reserved` of these budgets at this moment, as reconcile_budgets.lua returns it."""
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
        """Adds the amounts of a reservation, as reconcile_look.lua returns them."""
        if holding[0] in UNREADABLE:
            budgets = {self._keys.budget(scope, holding[1]) for scope in holding[2:]}
            if self._only is not None and budgets and self._only not in budgets:
                return
            if holding[0] == UNREADABLE[1]:
                self.left_out.add(entry)
                return
            self.unreadable.add(entry)
            self._unread_anywhere |= not budgets
            self._unread |= budgets
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

    def unread(self, key: bytes) -> bool:
        """Whether an unreadable reservation may hold a part of this budget."""
        return self._unread_anywhere or key in self._unread

    def differences(self) -> Mapping[bytes, Difference | None]:
        """By budget; None if budget or reservations cannot be read, or if the moments contradict each other."""
        return {key: self._difference(key, budget) for key, budget in self._budgets.items()}

    def _difference(self, key: bytes, budget: _Budget) -> Difference | None:
        if not budget.readable or not budget.moments:
            return None
        least = max(moment.reserved - moment.most for moment in budget.moments)
        most = min(moment.reserved - moment.least for moment in budget.moments)
        if least > most or (self.unread(key) and most >= 0):
            return None
        last = budget.moments[-1]
        return Difference(least, most, last.reserved, last.least, last.at_ms)


class BudgetCounters(Counters):
    #: Budgets, reservations, index, and the reservations again for suspects.
    passes = 4

    def __init__(self, subject: Reservations) -> None:
        super().__init__()
        self._subject = subject
        self._throttle = subject.throttle
        self._client = subject.shard.client
        self._keys = subject.shard.keys
        self._reserved = Script("ops/reconcile_budgets")
        self._drift = BudgetDrift(self._keys, subject.size)
        self._first: Mapping[bytes, Difference | None] | None = None

    def begin(self) -> None:
        """Reads the moments of all budgets, before the walk over the reservations."""
        for _, page in self._subject.keys(WalkStage.BUDGETS, self._keys.budget_stem):
            self._read(self._drift, [key for key in page if key not in self._drift])
        self.since_ms = self._drift.first_ms

    def add(self, observation: Observation) -> None:
        self._drift.held(observation.entry, observation.holding)

    def end(self) -> None:
        self._first = self._differences(self._drift)

    def drifts(self) -> Iterator[Finding]:
        """The drifts that a second walk confirms."""
        drift = self._drift
        if self._first is None:
            self.begin()
            self._hold(drift, WalkStage.COUNTERS)
            self.end()
        first = self._first or {}
        self.count, self.closed = len(drift), len(drift.closed)
        self.unreadable, self.left_out = drift.unreadable, drift.left_out
        self.unjudged = sum(1 for each in first.values() if each is None or (not each.is_drift and not each.is_exact))
        suspects = {key: each for key, each in first.items() if each is not None and each.is_drift}
        if not suspects:
            return
        again = BudgetDrift(self._keys, self._subject.size)
        self._read(again, list(suspects))
        self._hold(again, WalkStage.AGAIN)
        second = self._differences(again)
        for key, suspect in suspects.items():
            if key not in again:
                continue  # the budget was removed or CLOSED
            other = second.get(key)
            met = suspect.meets(other) if other else None
            if met and met.is_drift:
                bounds = (met.least, met.most)
                yield Finding(Fault.BUDGET_DRIFT, key, str(met.reserved), str(met.held), b"reserved", bounds)
            else:
                self.unjudged += 1

    def judge(self, budget: bytes) -> "BudgetRepair":
        agreed: Difference | None = None
        for _ in range(2):
            drift = BudgetDrift(self._keys, self._subject.size, budget)
            self._read(drift, [budget])
            if drift.closed:
                return _not_judged("it is CLOSED")
            if not len(drift):
                return _not_judged("there is no such budget")
            self._hold(drift, WalkStage.COUNTERS)
            if drift.unread(budget):
                unread = drift.unreadable
                return _not_judged(f"{unread} of its reservations cannot be read; repair or dismiss them first", unread)
            if self._took_too_long(drift):
                return _not_judged(_TOO_LONG)
            found = drift.differences()[budget]
            met = agreed.meets(found) if agreed and found else found
            if met is None:
                return _not_judged("too much happened during the walks, or it cannot be read")
            agreed = met
        if agreed is None or not agreed.is_exact:
            return _not_judged(_INEXACT)
        return BudgetRepair(DRIFT if agreed.is_drift else NO_DRIFT, agreed, left_out=drift.left_out)

    def _read(self, drift: BudgetDrift, budgets: Sequence[bytes]) -> None:
        for part in batches(list(dict.fromkeys(budgets)), SCRIPT_BATCH):
            for _ in range(MOMENTS):
                with self._throttle.step():
                    at, *reserved = self._reserved.run(self._client, Call(part, []))
                    drift.reserved(int(at), zip(part, reserved, strict=True))
                self._throttle.wait(MOMENT_PAUSE)

    def _hold(self, drift: BudgetDrift, stage: WalkStage) -> None:
        for _, ids in self._subject.hashes(stage):
            for observation in self._subject.look(ids, drift.first_ms):
                if observation.holding:
                    drift.held(observation.entry, observation.holding)

    def _differences(self, drift: BudgetDrift) -> Mapping[bytes, Difference | None]:
        """The result of a walk that has just ended; all None if it took too long."""
        differences = drift.differences()
        return dict.fromkeys(differences) if self._took_too_long(drift) else differences

    def _took_too_long(self, drift: BudgetDrift) -> bool:
        """Whether hashes may have been removed before the walk read them, or the server's clock was set back."""
        if drift.first_ms is None or drift.last_ms is None:
            return False  # there are no budgets
        latest = drift.first_ms + self._subject.retention_ms // 2
        return not drift.last_ms <= self._subject.shard.read_clock() <= latest


@dataclass(frozen=True, slots=True)
class BudgetRepair:
    """
    The result for a budget, with the difference if it was judged. `result` is DRIFT before a repair, then `repaired`,
    NO_DRIFT, `NO_BUDGET`, `CLOSED`, `INVALID_BUDGET`, `OUT_OF_BOUNDS`, or says why nothing was changed.
    """

    result: str
    difference: Difference | None = None
    #: The reservations that prevent a judgement, and the dismissed ones that the judgement leaves out.
    unreadable: Named = field(default_factory=Named)
    left_out: Named = field(default_factory=Named)


def _not_judged(reason: str, unreadable: Named | None = None) -> BudgetRepair:
    return BudgetRepair(f"not judged: {reason}", unreadable=unreadable or Named())


def judge_budget(shard: Shard, settings: SweepSettings, budget: bytes, throttle: Throttle) -> BudgetRepair:
    """
    Walks twice for a budget. There is a difference only if both walks agree on an exact number, and all reservations of
    the budget are readable. Raises Interrupted.
    """
    with shard.reaching(), Reservations(shard, settings, throttle) as subject:
        return BudgetCounters(subject).judge(budget)
