"""What must hold at the end of a soak. Each verdict is a pure function of numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from proof.soak.census import IndexLook
from proof.soak.samples import Windows, within
from sweeperd.ledger import Balance
from tests.support.traffic.load import LedgerCall, Tally

#: S1: the daemon's memory at the end is less than so many times that at the start.
MEMORY_GROWTH = 1.25
#: S2: the same for the average latency of the ledger's calls.
LATENCY_GROWTH = 3.0
#: S3: keys for each operation, at most. An operation has one reservation, and a record of its reserve, of its commit or
#: release, and of its extension if there is one; an abandoned one has the first alone.
RESERVATION_KEYS, IDEMPOTENCY_KEYS = 1.1, 2.1

MIB = 1024 * 1024


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
    """S1, from the medians of the first window and of the last tenth. `points`: seconds since the start, bytes."""
    start, end = within(points, windows.first), within(points, windows.last_tenth)
    claim = f"daemon's memory at the end < {MEMORY_GROWTH} x its start"
    if not start or not end:
        return Verdict("S1", claim, "no samples", holds=False)
    before, after = median(start), median(end)
    # A platform that does not report a process's memory gives NaN, and every comparison with NaN fails.
    return Verdict(
        "S1",
        claim,
        f"{before / MIB:.1f} MiB, then {after / MIB:.1f} MiB: {after / before:.2f} x",
        holds=after < MEMORY_GROWTH * before,
    )


def latency(calls: Sequence[LedgerCall], windows: Windows, noise: float = 0.0) -> Verdict:
    """
    S2, from the averages of the first and the last window. An average below `noise` seconds is never too long: what
    else goes on on the machine may triple a millisecond.
    """
    claim = f"average ledger call in the last {windows.length:.0f} s < {LATENCY_GROWTH:g} x the first's"
    if noise:
        claim += f", or < {1000 * noise:g} ms"
    start, end = within(calls, windows.first), within(calls, windows.last)
    if not start or not end:
        return Verdict("S2", claim, "no calls", holds=False)
    before, after = fmean(start), fmean(end)
    return Verdict(
        "S2",
        claim,
        f"{1000 * before:.2f} ms, then {1000 * after:.2f} ms: {after / before:.2f} x",
        holds=after < max(LATENCY_GROWTH * before, noise),
    )


def keys(operations: int, reservation_keys: int, idempotency_keys: int) -> Verdict:
    """S3. `operations` are the accepted reserves: what was refused must leave no key."""
    return Verdict(
        "S3",
        f"an operation leaves 1 to {RESERVATION_KEYS} reservation keys and 1 to {IDEMPOTENCY_KEYS} idempotency keys",
        f"{operations} operations, {reservation_keys} and {idempotency_keys} keys",
        # Both are kept for longer than a run lasts, so fewer than one each would mean that they were not found.
        holds=operations > 0
        and operations <= reservation_keys <= RESERVATION_KEYS * operations
        and operations <= idempotency_keys <= IDEMPOTENCY_KEYS * operations,
    )


def index(during: Sequence[IndexLook], at_end: IndexLook) -> Verdict:
    """S4, at each reading and at the end; and by then the index is empty."""
    looks = [*during, at_end]
    without_hash = sum(one.without_hash for one in looks)
    without_entry = sum(one.without_entry for one in looks)
    seen = sum(one.entries for one in during)
    return Verdict(
        "S4",
        "each index entry has its ACTIVE hash, each ACTIVE hash its entry; none at the end",
        f"{len(during)} looks at {seen} entries: {without_hash} without hash, {without_entry} hashes without entry; "
        f"{at_end.entries} left",
        holds=seen > 0 and without_hash == without_entry == at_end.entries == 0,
    )


def events(counts: Mapping[str, int]) -> Verdict:
    """S5. `counts` are the expiries as each of those who must agree counts them."""
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
    """The load got the answers that it had to get; without them the other verdicts say nothing."""
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


def some(texts: Sequence[str], most: int = 4) -> str:
    """The first few, and how many more there are."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return "; ".join([*texts[:most], *more])
