"""Judges a soak. Each verdict is a function of numbers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from proof.soak.census import Census, Moment
from proof.soak.faults import FaultType
from proof.soak.inflict import Inflicted
from proof.soak.receivers import Received
from proof.soak.samples import Windows, within
from proof.soak.stage import CONCURRENCY
from sweeperd.ledger import Balance
from tests.support.traffic.load import LedgerCall, Tally

#: S1: the daemon's memory at the end is less than this many times that at the start.
MEMORY_GROWTH = 1.25
#: S2: the same for the average latency of the ledger's calls.
LATENCY_GROWTH = 3.0
#: S3: keys for each operation, at most. An operation has one reservation, and a record of its reserve, of its commit or
#: release, and of its extension if there is one; an abandoned one has the first alone.
RESERVATION_KEYS, IDEMPOTENCY_KEYS = 1.1, 2.1

MIB = 1024 * 1024
#: Of these a process loses what it has in hand, or cannot acknowledge it in time. Redis is shared by all of them.
HANDS_LOST = {FaultType.KILL: 1, FaultType.PAUSE: 1, FaultType.REDIS_KILL: 3}


@dataclass(frozen=True)
class Verdict:
    """One line of the table."""

    name: str
    #: What was to hold, in words.
    claim: str
    #: The numbers.
    found: str
    holds: bool


def memory(points: Sequence[tuple[float, float]], windows: Windows) -> Verdict:
    """S1, from the medians of the first and the last window. `points`: seconds since the start, bytes."""
    claim = f"a replica's memory at the end < {MEMORY_GROWTH} x its start"
    before, after = (median(within(points, window) or [0.0]) for window in (windows.first, windows.last))
    return _growth("S1", claim, before, after, MEMORY_GROWTH, (1 / MIB, "MiB"))


def latency(calls: Sequence[LedgerCall], windows: Windows, noise: float = 0.0) -> Verdict:
    """
    S2, from the averages of the first and the last window. An average below `noise` seconds is never too long: other
    work on the machine may triple a millisecond.
    """
    claim = f"average ledger call in the last {windows.length:.0f} s < {LATENCY_GROWTH:g} x the first's"
    if noise:
        claim += f", or < {1000 * noise:g} ms"
    before, after = (fmean(within(calls, window) or [0.0]) for window in (windows.first, windows.last))
    return _growth("S2", claim, before, after, LATENCY_GROWTH, (1000, "ms"), noise)


def _growth(
    name: str, claim: str, before: float, after: float, most: float, unit: tuple[float, str], noise: float = 0.0
) -> Verdict:
    """Without measurements, which are above 0, nothing holds."""
    if not before or not after:
        return Verdict(name, claim, "not measured", holds=False)
    scale, text = unit
    found = f"{before * scale:.2f} {text}, then {after * scale:.2f} {text}: {after / before:.2f} x"
    return Verdict(name, claim, found, holds=after < max(most * before, noise))


def keys(operations: int, at_end: Census) -> Verdict:
    """S3. `operations` are the accepted reserves: a refused one must leave no key."""
    reservation_keys, idempotency_keys = sum(at_end.reservations.values()), at_end.idempotency_keys
    return Verdict(
        "S3",
        f"an operation leaves 1 to {RESERVATION_KEYS} reservation keys and 1 to {IDEMPOTENCY_KEYS} idempotency keys",
        f"{operations} operations, {reservation_keys} and {idempotency_keys} keys",
        # Both outlive a run, so fewer than one each would mean that they were not found.
        holds=operations > 0
        and operations <= reservation_keys <= RESERVATION_KEYS * operations
        and operations <= idempotency_keys <= IDEMPOTENCY_KEYS * operations,
    )


def index(during: Sequence[Moment], at_end: Census) -> Verdict:
    """S4, at each moment and at the end. The index is empty by then."""
    without_hash = sum(one.without_hash for one in during) + at_end.without_hash
    without_entry = sum(one.without_entry for one in during) + at_end.without_entry
    seen = sum(one.entries for one in during)
    return Verdict(
        "S4",
        "each index entry has its ACTIVE hash, each ACTIVE hash its entry; none at the end",
        f"{len(during)} looks at {seen} entries: {without_hash} without hash, {without_entry} hashes without entry; "
        f"{at_end.entries} left",
        holds=seen > 0 and without_hash == without_entry == at_end.entries == 0,
    )


def events(counts: Mapping[str, int]) -> Verdict:
    """S5. `counts`: the expiries as each party counts them."""
    return Verdict(
        "S5",
        "all count the same expiries, and there are some",
        ", ".join(f"{name} {count}" for name, count in counts.items()),
        holds=len(set(counts.values())) == 1 and all(count > 0 for count in counts.values()),
    )


def books(budgets: Sequence[Balance], spent: Mapping[str, int]) -> Verdict:
    """Each budget adds up, holds nothing, and was charged what the ledger answered to the load (by scope)."""
    wrong = []
    for budget in budgets:
        scope = budget.scope
        if budget.remaining != budget.allocated - budget.spent - budget.reserved - budget.debt:
            wrong.append(f"{scope} does not add up")
        if budget.reserved:
            wrong.append(f"{scope} holds {budget.reserved}")
        if budget.spent + budget.debt != spent.get(scope, 0):
            wrong.append(f"{scope}: {budget.spent} spent and {budget.debt} debt, charged were {spent.get(scope, 0)}")
    return Verdict(
        "books",
        "each budget: remaining = allocated - spent - reserved - debt; reserved = 0; spent + debt = what was charged",
        some(wrong) or f"{len(budgets)} budgets, {sum(budget.spent for budget in budgets)} spent",
        holds=bool(budgets) and not wrong,
    )


def answers(tally: Tally) -> Verdict:
    """The load got the answers that it had to get; otherwise the other verdicts say nothing."""
    return Verdict(
        "calls",
        "no call failed, and a call that was sent twice got its first answer again",
        f"{tally.errors} failed, {tally.differing} of {tally.repeated} answered otherwise"
        + (f": {some(tally.error_texts)}" if tally.error_texts else ""),
        holds=tally.repeated > 0 and tally.errors == tally.differing == 0,
    )


def order(calls: int, faults: Sequence[str]) -> Verdict:
    """An order of all calls and expiries explains every answer."""
    return Verdict(
        "order",
        "for each reservation and each budget an order exists that explains all answers, expiries included",
        some(faults) or f"{calls} calls, expiries and readings",
        holds=calls > 0 and not faults,
    )


def settled(unmet: Sequence[str]) -> Verdict:
    """After the load all came to rest in time. `unmet` names what did not."""
    return Verdict("rest", "all came to rest after the load", "; ".join(unmet) or "in time", holds=not unmet)


@dataclass(frozen=True)
class Delivered:
    """What an endpoint has accepted, compared with what it was due."""

    endpoint: str
    #: Reservations whose events are in the streams, and that it did not accept.
    missing: Collection[str]
    #: Accepted reservations that no stream has an event of.
    strangers: int
    #: Reservations whose event came under two ids.
    two_ids: int
    #: Events that were accepted again, each time counted.
    repeated: int
    #: How many of them the faults explain, at most.
    bound: int

    @property
    def holds(self) -> bool:
        """Whether it got everything that it was due and nothing else."""
        wrong = len(self.missing) + self.strangers + self.two_ids
        return not wrong and self.repeated <= self.bound

    def __str__(self) -> str:
        return (
            f"{self.endpoint}: {len(self.missing)} missing{f' ({some(sorted(self.missing))})' * bool(self.missing)}, "
            f"{self.strangers + self.two_ids} wrong, {self.repeated} again (at most {self.bound})"
        )


def delivered(
    endpoint: str, due: Collection[str], got: Mapping[str, Collection[str]], repeated: int, bound: int
) -> Delivered:
    """`due`: the reservations whose events are in the streams; `got`: what was accepted, with the ids of the events."""
    strangers, two_ids = len(got.keys() - set(due)), sum(len(ids) > 1 for ids in got.values())
    return Delivered(endpoint, set(due) - got.keys(), strangers, two_ids, repeated, bound)


def most_repeated(inflicted: Sequence[Inflicted], batch_size: int) -> int:
    """
    How many events may come again at an endpoint. A process has two requests for each of its connections in hand at
    most. It loses them with its life, or when it stands still until another process takes over.
    """
    return batch_size * 2 * CONCURRENCY * sum(HANDS_LOST.get(done.fault.type, 0) for done in inflicted)


def endpoints(found: Sequence[Delivered]) -> Verdict:
    """Every event at every endpoint, and no more repetitions than the faults explain."""
    return Verdict(
        "events",
        "each event was accepted by each endpoint, under one id, and again only where a fault explains it",
        "; ".join(map(str, found)),
        holds=bool(found) and all(one.holds for one in found),
    )


def behaved(batches: Received, fails: Received, hangs: Received, moves: Received) -> Verdict:
    """The receivers were as bad as they should have been."""
    share = fails.refused / max(1, fails.requests)
    return Verdict(
        "bad",
        "one endpoint got batches, one refused a third of its requests, one hung, one moved",
        f"{batches.batches} of {batches.requests} requests with several events; {fails.refused} of {fails.requests} "
        f"refused; {hangs.hung} of {hangs.requests} hung; {moves.requests} requests to the one that moved",
        holds=batches.batches > 0 and 0.2 < share < 0.45 and hangs.hung > 0 and moves.requests > 0,
    )


def moments(taken: Sequence[Moment], shards: Collection[str]) -> Verdict:
    """S4 and the books, at each moment."""
    per_shard = Counter(moment.shard for moment in taken)
    counts = {
        "entries without hash": sum(moment.without_hash for moment in taken),
        "hashes without entry": sum(moment.without_entry for moment in taken),
        "negative budgets": sum(moment.negative for moment in taken),
        "budgets that do not add up": sum(moment.unbalanced for moment in taken),
        "budgets that hold something else": sum(moment.drifted for moment in taken),
    }
    entries = sum(moment.entries for moment in taken)
    wrong = [f"{count} {name}" for name, count in counts.items() if count]
    return Verdict(
        "while",
        "at each moment: index and hashes one to one, no negative number, each budget adds up to what is held",
        f"{len(taken)} moments, {entries} entries: {', '.join(wrong) or 'nothing wrong'}",
        holds=all(per_shard[shard] for shard in shards) and entries > 0 and not wrong,
    )


def all_faults(inflicted: Sequence[Inflicted], planned: Mapping[FaultType, int]) -> Verdict:
    """Every fault was carried out, and had its effect."""
    effects = Counter(done.fault.type for done in inflicted if done.effect)
    troubles = [f"{done.fault.type} at {done.fault.at:.0f} s: {done.trouble}" for done in inflicted if done.trouble]
    return Verdict(
        "faults",
        "each fault was carried out and had its effect",
        some(troubles) or ", ".join(f"{type_} {effects[type_]}" for type_ in planned),
        holds=bool(planned) and not troubles and dict(effects) == dict(planned),
    )


def alive(exits: Mapping[str, int | None]) -> Verdict:
    """No replica ended by itself, and each ends as it should at the end. `exits`: the exit code of each at SIGTERM."""
    return Verdict(
        "alive",
        "no replica ended by itself, and each stopped with exit code 0",
        ", ".join(f"{name}: {code}" for name, code in exits.items()),
        holds=bool(exits) and all(code == 0 for code in exits.values()),
    )


def some(texts: Sequence[str], most: int = 4) -> str:
    """The first few, and how many more there are."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return "; ".join([*texts[:most], *more])
