"""What becomes of each operation: who reserves what for how long, and how it ends."""

from dataclasses import dataclass
from enum import StrEnum
from random import Random

UNIT = "TOKENS"

#: A tenant whose budget is too small for all that it wants to hold at once. It spends nothing, so it can go on only
#: because what it abandons comes back.
LEAN = "lean"
TENANTS = ("acme", "globex", "initech")
#: The share of LEAN's operations.
LEAN_SHARE = 0.05
LEAN_AMOUNT = 1000

#: Scope -> what its budget is opened with. No app `search` has one: scopes without a budget are skipped.
BUDGETS: dict[str, int] = {f"tenant:{LEAN}": 6 * LEAN_AMOUNT} | {
    scope: 10**12
    for tenant in TENANTS
    for scope in (
        f"tenant:{tenant}",
        *(f"tenant:{tenant}/workspace:{workspace}" for workspace in ("prod", "dev")),
        *(f"tenant:{tenant}/workspace:{workspace}/app:chat" for workspace in ("prod", "dev")),
    )
}

#: The share of calls that are sent a second time under the same idempotency key, up to REPEAT_WITHIN_MS later.
REPEATED = 0.05
REPEAT_WITHIN_MS = 3000


class Fate(StrEnum):
    """How an operation is to end."""

    COMMIT = "COMMIT"
    RELEASE = "RELEASE"
    EXTEND_AND_COMMIT = "EXTEND_AND_COMMIT"
    ABANDON = "ABANDON"


SHARES = {Fate.COMMIT: 0.5, Fate.RELEASE: 0.2, Fate.EXTEND_AND_COMMIT: 0.1, Fate.ABANDON: 0.2}


@dataclass(frozen=True)
class Plan:
    """One operation: a reserve, and what follows it. Times are ms from the reserve."""

    tenant: str
    #: From the top.
    scopes: tuple[str, ...]
    amount: int
    ttl_ms: int
    grace_ms: int
    fate: Fate
    #: When it is extended, before its deadline, and by how much; for EXTEND_AND_COMMIT.
    extend_at_ms: float
    extend_by_ms: int
    #: When it is committed or released: any time up to the very end of its grace, so a few come too late.
    end_at_ms: float
    #: What the commit charges, up to `amount`.
    charge: int


def draw(random: Random) -> Plan:
    """The next operation of the mix."""
    tenant = LEAN if random.random() < LEAN_SHARE else random.choice(TENANTS)
    scopes = _scopes(random, tenant)
    amount = LEAN_AMOUNT if tenant == LEAN else random.randint(1, 1000)
    ttl_ms, grace_ms = random.randint(1000, 3000), random.choice((0, random.randint(1, 1000)))
    fate = random.choices(tuple(SHARES), tuple(SHARES.values()))[0]
    extend_at_ms, extend_by_ms = random.uniform(0.2, 0.8) * ttl_ms, random.randint(500, 2000)
    earliest, latest = 0.0, ttl_ms + grace_ms
    if fate is Fate.EXTEND_AND_COMMIT:
        earliest, latest = extend_at_ms, latest + extend_by_ms
    charge = random.choice((amount, random.randint(0, amount)))
    return Plan(
        tenant,
        scopes,
        amount,
        ttl_ms,
        grace_ms,
        fate,
        extend_at_ms,
        extend_by_ms,
        end_at_ms=random.uniform(earliest, latest),
        charge=0 if tenant == LEAN else charge,
    )


def _scopes(random: Random, tenant: str) -> tuple[str, ...]:
    """One to three levels; LEAN has one."""
    top = f"tenant:{tenant}"
    workspace = f"{top}/workspace:{random.choice(('prod', 'dev'))}"
    app = f"{workspace}/app:{random.choice(('chat', 'search'))}"
    return (top, workspace, app)[: 1 if tenant == LEAN else random.randint(1, 3)]
