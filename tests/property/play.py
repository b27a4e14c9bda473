"""Plays random ledger operations on one Redis while a sweeper runs."""

import enum
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import redis
from hypothesis import strategies as st

from sweeperd.config import RedisSettings, SweepSettings
from sweeperd.ledger import AsyncLedger, Extended, Ledger, LedgerError, OveragePolicy
from sweeperd.store import Shard
from sweeperd.sweep import Decision, Outcome
from tests.support.blocking import blocking
from tests.support.books import ALWAYS, Books, Broken, Property, check, read
from tests.support.builders import make_sweeper, reservations_kind
from tests.support.harness import eventually, server_time
from tests.support.servers import Server

UNIT, TENANT = "TOKENS", "t"
#: Scope -> allocated, overdraft limit. Tiny, so that they run out; the last level has none at all.
BUDGETS = {"tenant:t": (12, 0), "tenant:t/a": (9, 0), "tenant:t/b": (7, 3)}
PATHS = (
    ("tenant:t",),
    ("tenant:t", "tenant:t/a"),
    ("tenant:t", "tenant:t/b"),
    ("tenant:t", "tenant:t/a", "tenant:t/a/unbudgeted"),
    ("tenant:t/b", "tenant:t/b"),
)
THRESHOLDS = (20, 80, 100, 130)
SLOTS = 3
#: ms.
LONGEST_WAIT, LONGEST_GRACE = 20, 10


class Action(enum.StrEnum):
    """What a client can do, and what happens without it."""

    RESERVE = "reserve"
    COMMIT = "commit"
    RELEASE = "release"
    EXTEND = "extend"
    SETTLE = "settle"
    EVENT = "event"
    WAIT = "wait"
    SWEEP = "sweep"


@dataclass(frozen=True)
class Step:
    """One thing that is done. What an action has no use for is ignored."""

    action: Action
    #: Which of the shared reservations: a reserve puts its own there, the others take what is there.
    slot: int
    amount: int
    #: The TTL, the time by which a deadline is moved, or how long to wait.
    milliseconds: int
    grace_ms: int
    path: Sequence[str]
    policy: OveragePolicy
    #: The answer is thrown away, and the call made again.
    retried: bool


steps = st.lists(
    st.builds(
        Step,
        action=st.sampled_from([*Action, Action.RESERVE, Action.RESERVE, Action.COMMIT, Action.RELEASE]),
        slot=st.integers(0, SLOTS - 1),
        amount=st.integers(0, 5),
        milliseconds=st.sampled_from([1, 5, 20, 2000]),
        grace_ms=st.sampled_from([0, 1, LONGEST_GRACE]),
        path=st.sampled_from(PATHS),
        policy=st.sampled_from(OveragePolicy),
        retried=st.booleans(),
    ),
    min_size=5,
    max_size=25,
)


class World:
    """An empty Redis with a few budgets, a ledger (`asynchronous`: an AsyncLedger) and a sweeper."""

    def __init__(self, client: redis.Redis, server: Server, *, asynchronous: bool = False) -> None:
        client.flushall()
        self.client = client
        self.shard = Shard(RedisSettings.model_validate({"url": server.url}))
        self.ledger = blocking(lambda: AsyncLedger(self.shard)) if asynchronous else Ledger(self.shard)
        for scope, (allocated, overdraft_limit) in BUDGETS.items():
            self.ledger.open_budget(scope, UNIT, allocated, overdraft_limit, thresholds=THRESHOLDS)
        self.slots: list[bytes] = [b"none"] * SLOTS
        self.expired = 0
        settings = SweepSettings.model_validate({"batch_size": 3, "pipeline_depth": 2})
        kind = reservations_kind(self.shard.keys, settings)
        self.sweeper = make_sweeper(self.shard, kind, settings, self._count, threading.Event())

    def play(self, step: Step, key: str, calls: "Calls") -> None:
        """Do one step. A refusal is an answer like any other; the same call again must get the first one's answer."""
        ledger, entry = self.ledger, self.slots[step.slot]
        duration = timedelta(milliseconds=step.milliseconds)
        match step.action:
            case Action.WAIT:
                until = server_time(self.client) + min(step.milliseconds, LONGEST_WAIT)
                eventually(lambda: server_time(self.client) > until)
            case Action.SWEEP:
                self.sweeper.tick()
            case Action.RESERVE:
                answer = calls(
                    lambda: ledger.reserve(
                        TENANT,
                        step.path,
                        UNIT,
                        step.amount,
                        ttl=duration,
                        grace=timedelta(milliseconds=step.grace_ms),
                        idempotency_key=key,
                        overage_policy=step.policy,
                        max_extensions=2,
                    ),
                    step,
                )
                if answer is not None:
                    self.slots[step.slot] = answer.reservation_id.encode()
            case Action.COMMIT:
                calls(lambda: ledger.commit(TENANT, entry, step.amount, idempotency_key=key), step)
            case Action.RELEASE:
                calls(lambda: ledger.release(TENANT, entry, idempotency_key=key), step)
            case Action.EXTEND:
                calls(lambda: ledger.extend(TENANT, entry, duration, idempotency_key=key), step)
            case Action.SETTLE:
                calls(lambda: ledger.settle(TENANT, entry, step.amount, idempotency_key=key), step)
            case Action.EVENT:
                policy = step.policy
                calls(
                    lambda: ledger.event(
                        TENANT, step.path, UNIT, step.amount, idempotency_key=key, overage_policy=policy
                    ),
                    step,
                )

    def conclude(self, properties: Collection[Property] = frozenset(Property)) -> None:
        """Check what holds at any time; then let every deadline and grace pass, sweep once, and check all."""
        books = read(self.client)
        check(books, ALWAYS & set(properties))
        self._let_time_pass(books)
        self.sweeper.tick()
        books = read(self.client)
        check(books, properties)
        # A settlement expires what is overdue and not swept yet, with its event, in the same millisecond.
        settled = sum(
            b"settled_at" in row and row[b"settled_at"] == row.get(b"expired_at") for row in books.reservations.values()
        )
        if Property.TOLD_ONCE in properties and not self.expired <= len(books.told) <= self.expired + settled:
            raise Broken(Property.TOLD_ONCE, f"{self.expired} counted, {len(books.told)} told")

    def _let_time_pass(self, books: Books) -> None:
        """Until every deadline and grace is over. Where that would take long, the deadline is moved instead."""
        latest = server_time(self.client) + LONGEST_WAIT
        for entry, row in books.reservations.items():
            if row[b"state"] == b"ACTIVE" and int(row[b"expires_at"]) > latest:
                self.client.hset(self.shard.keys.reservation(entry), "expires_at", latest)
                self.client.zadd(self.shard.keys.reservation_index, {entry: latest})
        eventually(lambda: server_time(self.client) > latest + LONGEST_GRACE)

    def close(self) -> None:
        self.ledger.close()
        self.shard.close()

    def _count(self, decisions: Sequence[Decision], _trace_id: str) -> None:
        self.expired += sum(decision.outcome is Outcome.EXPIRED for decision in decisions)


#: Makes a step's call, once or as a retry does; returns the answer, None for a refusal.
Calls = Callable[[Callable[[], Any], Step], Any]


def _answer(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LedgerError:
        return None


def one_after_the_other(call: Callable[[], Any], step: Step) -> Any:
    """A retry comes when the first call is done."""
    first = _answer(call)
    if not step.retried:
        return first
    again = _answer(call)
    # A refusal is not kept, and what was refused may succeed later.
    if first is not None and again != first:
        raise Broken(Property.ONE_TO_ONE, f"{step}: {first}, and then {again}")
    return again


def run(world: World, traffic: Sequence[Step]) -> None:
    """One client, one step after the other."""
    for number, step in enumerate(traffic):
        world.play(step, f"key {number}", one_after_the_other)


def run_at_once(world: World, clients: Sequence[Sequence[Step]], pool: ThreadPoolExecutor) -> None:
    """Each client in a thread, each retry together with its first call, and a sweeper that never rests."""
    over = threading.Event()

    def at_once(call: Callable[[], Any], step: Step) -> Any:
        rival = pool.submit(_answer, call) if step.retried else None
        first = _answer(call)
        if rival is None:
            return first
        second = rival.result()
        if None not in (first, second) and _lasting(first) != _lasting(second):
            raise Broken(Property.ONE_TO_ONE, f"{step}: {first} and {second}")
        return first if second is None else second

    def client(name: int, traffic: Sequence[Step]) -> None:
        for number, step in enumerate(traffic):
            # The sweeper's thread is the only one that sweeps: a Sweeper is not shared.
            if step.action is not Action.SWEEP:
                world.play(step, f"key {name} {number}", at_once)

    def sweep() -> None:
        while not over.is_set():
            world.sweeper.tick()

    sweeping = pool.submit(sweep)
    done = [pool.submit(client, name, traffic) for name, traffic in enumerate(clients)]
    try:
        for each in done:
            each.result()
    finally:
        over.set()
        sweeping.result()


def _lasting(answer: Any) -> Any:
    """The part of an answer that a repetition has too: that of an `extend` counts the extensions of its own moment."""
    return replace(answer, extension_count=0) if isinstance(answer, Extended) else answer
