"""Plays the demo's story: tenants reserve budget, and only some of them come back in time."""

import contextlib
import functools
import queue
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sweeperd.demo.screen import Screen
from sweeperd.ledger import Ledger, ReservationExpired

#: Seconds between reservations.
STEP = 0.12

BUDGETS = {
    "tenant:acme": 10_000,
    "tenant:acme/workspace:prod": 8_000,
    "tenant:acme/workspace:prod/agent:writer": 5_000,
    "tenant:acme/workspace:prod/agent:coder": 5_000,
    "tenant:globex": 6_000,
    "tenant:globex/workspace:search": 6_000,
    "tenant:initech": 9_000,
    "tenant:initech/workspace:billing": 9_000,
}
UNITS = {"acme": "TOKENS", "globex": "TOKENS", "initech": "CENTS"}


def unit(scope: str) -> str:
    return UNITS[scope.partition("/")[0].removeprefix("tenant:")]


def levels(scope: str) -> list[str]:
    """The scopes that `tenant:a/team:b` is charged in: `tenant:a` and `tenant:a/team:b`."""
    parts = scope.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


WRITER, CODER = "tenant:acme/workspace:prod/agent:writer", "tenant:acme/workspace:prod/agent:coder"
SEARCH, BILLING = "tenant:globex/workspace:search", "tenant:initech/workspace:billing"


@dataclass(frozen=True)
class Plan:
    """A reservation and its fate; times are in seconds."""

    name: str
    scope: str
    amount: int
    ttl: float
    grace: float
    #: When the owner comes back, if ever.
    after: float | None = None
    #: The amount to commit then; None releases.
    used: int | None = None
    #: When the owner extends the reservation, and by how much.
    longer: tuple[float, float] | None = None

    @property
    def tenant(self) -> str:
        return self.scope.partition("/")[0].removeprefix("tenant:")

    @property
    def unit(self) -> str:
        return unit(self.scope)


#: One starts every STEP seconds.
PLANS = (
    Plan("acme-1", WRITER, 800, 4.0, 1.0, after=1.2, used=620),
    Plan("globex-1", SEARCH, 500, 1.2, 1.0),
    Plan("initech-1", BILLING, 900, 1.5, 1.0),
    Plan("acme-2", CODER, 600, 1.5, 1.5),
    Plan("globex-2", SEARCH, 400, 4.0, 1.0, after=1.5),
    Plan("initech-2", BILLING, 750, 1.2, 2.0, after=2.6, used=510),
    Plan("acme-3", WRITER, 450, 2.0, 1.5),
    Plan("globex-3", SEARCH, 700, 3.0, 1.0),
    Plan("initech-3", BILLING, 1200, 3.2, 1.0),
    # Would expire without the extension.
    Plan("acme-4", CODER, 300, 2.0, 1.0, after=4.0, used=275, longer=(1.0, 3.0)),
    Plan("globex-4", SEARCH, 350, 3.0, 1.5),
    Plan("initech-4", BILLING, 640, 3.8, 1.0),
    Plan("acme-5", WRITER, 700, 3.6, 1.5),
    Plan("globex-5", SEARCH, 900, 5.0, 1.0, after=2.8, used=415),
    Plan("initech-5", BILLING, 980, 4.3, 1.0),
    Plan("acme-6", CODER, 550, 4.2, 1.5),
    Plan("globex-6", SEARCH, 250, 5.0, 1.0),
    Plan("initech-6", BILLING, 860, 5.0, 1.0, after=3.2),
    Plan("acme-7", WRITER, 400, 4.8, 1.5),
    Plan("globex-7", SEARCH, 620, 5.0, 1.5),
    Plan("initech-7", BILLING, 330, 5.7, 1.0),
    Plan("acme-8", CODER, 500, 5.5, 1.5),
    Plan("globex-8", SEARCH, 480, 6.0, 1.2),
)
DUE, EXPIRED, WEBHOOK = "due", "expired", "webhook"


@dataclass(frozen=True)
class News:
    """What the daemon or the receiver reports about a reservation."""

    kind: str
    name: str
    lag_ms: int = 0


class Play:
    """Carries out the plans on time, and prints each step and the news."""

    def __init__(self, screen: Screen, ledger: Ledger, news: "queue.SimpleQueue[News]") -> None:
        self._screen = screen
        self._ledger = ledger
        self._news = news
        #: Tenant -> remaining budget as last printed.
        self._left = {tenant: BUDGETS[f"tenant:{tenant}"] for tenant in UNITS}
        #: Reservation -> end of its grace, monotonic.
        self._ends: dict[str, float] = {}
        #: Webhooks that arrived before the log line about their expiry.
        self._early: list[News] = []
        self._shown: set[tuple[str, str]] = set()
        self.plans = {plan.name: plan for plan in PLANS}
        self.expected = dict.fromkeys(self.plans, "EXPIRED")
        self.charged: Counter[str] = Counter()
        self.longest_lag_ms = 0
        steps: list[tuple[float, Callable[[], None]]] = []
        for number, plan in enumerate(PLANS):
            steps.append((number * STEP, functools.partial(self._reserve, plan)))
            if plan.longer is not None:
                after, by = plan.longer
                steps.append((number * STEP + after, functools.partial(self._extend, plan, by)))
            if plan.after is not None:
                steps.append((number * STEP + plan.after, functools.partial(self._return, plan)))
        self._steps = sorted(steps, key=lambda step: step[0])
        self._started = time.monotonic()

    @property
    def expiring(self) -> set[str]:
        """The reservations whose owners never come back."""
        return {name for name, state in self.expected.items() if state == "EXPIRED"}

    def step(self) -> bool:
        """Do what is due, and print the news. Returns whether the story is over."""
        while self._steps and self._steps[0][0] <= time.monotonic() - self._started:
            self._steps.pop(0)[1]()
        self._print_news()
        return not self._steps

    def _reserve(self, plan: Plan) -> None:
        self._ledger.reserve(
            plan.tenant,
            levels(plan.scope),
            plan.unit,
            plan.amount,
            ttl=timedelta(seconds=plan.ttl),
            grace=timedelta(seconds=plan.grace),
            idempotency_key=plan.name,
        )
        self._ends[plan.name] = time.monotonic() + plan.ttl + plan.grace
        text = f"{plan.amount:,} {plan.unit} for {plan.ttl} s"
        self._line("reserved", plan.name, text, self._change(plan.tenant, -plan.amount))

    def _extend(self, plan: Plan, by: float) -> None:
        try:
            self._ledger.extend(plan.tenant, plan.name, timedelta(seconds=by), idempotency_key=plan.name)
        except ReservationExpired:
            self._line("too late", plan.name, "extended after its deadline")
            return
        self._ends[plan.name] += by
        self._line("extended", plan.name, f"by {by} s: still working")

    def _return(self, plan: Plan) -> None:
        used = plan.used or 0
        late = plan.longer is None and plan.after is not None and plan.after > plan.ttl
        try:
            if plan.used is None:
                self._ledger.release(plan.tenant, plan.name, idempotency_key=plan.name)
            else:
                self._ledger.commit(plan.tenant, plan.name, used, idempotency_key=plan.name)
        except ReservationExpired:
            # On a busy machine the owner may be slow, and the reservation expires.
            self._line("too late", plan.name, "its owner is back after the grace")
            return
        change = self._change(plan.tenant, plan.amount - used)
        if plan.used is None:
            self.expected[plan.name] = "RELEASED"
            self._line("released", plan.name, "not needed", change)
        else:
            self.expected[plan.name] = "COMMITTED"
            self.charged.update(dict.fromkeys(levels(plan.scope), used))
            text = f"{'in grace: ' if late else ''}used {used:,} of {plan.amount:,}"
            self._line("committed", plan.name, text, change)

    def _line(self, label: str, name: str, text: str, change: str = "") -> None:
        self._screen.line(label, f"{name:<11}{text:<27}{change}")

    def _change(self, tenant: str, change: int) -> str:
        before = self._left[tenant]
        self._left[tenant] += change
        return f"{tenant} {before:,} -> {self._left[tenant]:,}"

    def _print_news(self) -> None:
        news, self._early = self._early, []
        with contextlib.suppress(queue.Empty):
            while True:
                news.append(self._news.get_nowait())
        for item in news:
            if item.kind == DUE and (DUE, item.name) not in self._shown:
                self._shown.add((DUE, item.name))
                grace = max(0.0, self._ends[item.name] - time.monotonic())
                self._line(DUE, item.name, f"deadline passed; in grace for {grace:.1f} s")
        expired = [item for item in news if item.kind == EXPIRED]
        for item in expired:
            self._shown.add((EXPIRED, item.name))
            self.longest_lag_ms = max(self.longest_lag_ms, item.lag_ms)
            self._line(EXPIRED, item.name, "its owner never came back")
        for tenant in sorted({self.plans[item.name].tenant for item in expired}):
            remaining = self._ledger.budget(f"tenant:{tenant}", UNITS[tenant]).remaining
            if back := remaining - self._left[tenant]:
                text = f"{back:+,} {UNITS[tenant]} on each level"
                self._line("budget back", tenant, text, self._change(tenant, back))
        for item in news:
            if item.kind == WEBHOOK and (EXPIRED, item.name) not in self._shown:
                self._early.append(item)
            elif item.kind == WEBHOOK:
                self._line(WEBHOOK, item.name, "received, signature verified")
