"""The load: threads that call the ledger at a steady pace, and keep account of what it answered."""

import functools
import heapq
import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple, TypeVar

from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import InsufficientBudget, Ledger, LedgerError, RedisFull, ReservationExpired, Reserved
from tests.support.traffic.history import Call, Recorder
from tests.support.traffic.plan import REPEAT_WITHIN_MS, REPEATED, UNIT, Fate, Plan, draw

#: How many texts of unexpected errors are kept for each thread; all are counted.
ERRORS_KEPT = 5
#: How long a thread's part in the load may take to end, seconds: longer than a call to Redis waits.
JOIN_LIMIT = 30.0
#: How far back `Load.recent` goes, seconds: longer than a reservation of this load lives.
LOOK_BACK = 10.0
#: How long a patient client waits before it sends a call again that has no answer, or for which there was no room,
#: seconds at most.
AGAIN_AFTER = 0.3

Answer = TypeVar("Answer")


class LedgerCall(NamedTuple):
    """One call of the ledger: when it began, in seconds since the load's start, and how many seconds it took."""

    at: float
    seconds: float


@dataclass
class Tally:
    """What the load did and what the ledger answered. Each thread writes its own, so that none waits for another."""

    #: Operations that were started: reserves, without those sent again.
    started: int = 0
    #: Operations that the ledger accepted.
    accepted: int = 0
    #: Operations that it refused for want of budget.
    refused: int = 0
    committed: int = 0
    released: int = 0
    extended: int = 0
    #: Commits, releases and extensions that came after the end, and were refused.
    late: int = 0
    #: Calls that were sent a second time, and those of them that were answered otherwise than the first time.
    repeated: int = 0
    differing: int = 0
    #: Calls without an answer, and calls that a full Redis refused. A patient client sends them again.
    lost: int = 0
    full: int = 0
    #: Calls that ended as none may.
    errors: int = 0
    error_texts: list[str] = field(default_factory=list)
    #: Scope -> what commits charged to its budget, as the ledger answered.
    spent: Counter[str] = field(default_factory=Counter)
    #: The last end of any grace so far, ms on the server's clock.
    last_end: int = 0

    @property
    def abandoned(self) -> int:
        """Accepted operations that no client ended: they have to expire."""
        return self.accepted - self.committed - self.released

    @classmethod
    def of(cls, parts: Iterable["Tally"]) -> "Tally":
        """All of them together."""
        total = cls()
        for part in parts:
            for name in _COUNTS:
                setattr(total, name, getattr(total, name) + getattr(part, name))
            total.error_texts += part.error_texts
            total.spent.update(part.spent)
            total.last_end = max(total.last_end, part.last_end)
        return total


_COUNTS = tuple(name for name, value in vars(Tally()).items() if isinstance(value, int) and name != "last_end")


class Load:
    """
    Starts `rate` operations a second from `threads` threads while the `with` block lasts. Where a call takes long,
    operations that should have begun by then begin as soon as their thread is free, so the rate holds on average.

    What is held when the block ends is abandoned, as by a service that dies. Read `calls` and `tally` after the block.
    """

    def __init__(
        self,
        ledger: Ledger,
        rate: float,
        threads: int,
        seed: int = 1,
        judged: Collection[str] = (),
        *,
        patient: bool = False,
    ) -> None:
        """
        `judged`: the tenants whose calls are recorded. `patient`: a call without an answer, or for which Redis had no
        room, is sent again under its idempotency key until it is answered.
        """
        self._stop = threading.Event()
        self.began = time.monotonic()
        self._workers = [
            _Worker(
                Recorder(ledger, judged),
                Random(seed * 1000 + number),
                number,
                threads,
                rate,
                self.began,
                self._stop,
                patient=patient,
            )
            for number in range(threads)
        ]

    @property
    def calls(self) -> list[LedgerCall]:
        """Every call so far, in the order in which they were made."""
        return sorted(itertools.chain.from_iterable(list(worker.calls) for worker in self._workers))

    @property
    def history(self) -> list[Call]:
        """Every call of the judged tenants, with its answer."""
        return list(itertools.chain.from_iterable(worker.history for worker in self._workers))

    @property
    def tally(self) -> Tally:
        """What all threads did together."""
        return Tally.of(worker.tally for worker in self._workers)

    @property
    def progress(self) -> tuple[int, int]:
        """(operations started, ledger calls made) so far; cheap, and right to within a call for each thread."""
        return (
            sum(worker.tally.started for worker in self._workers),
            sum(len(worker.calls) for worker in self._workers),
        )

    @property
    def lost(self) -> int:
        """Calls without an answer so far; cheap, as `progress` is."""
        return sum(worker.tally.lost for worker in self._workers)

    def recent(self) -> list[bytes]:
        """The ids of the reservations of the last LOOK_BACK seconds."""
        return [reservation_id for worker in self._workers for reservation_id in worker.recent.copy()]

    def __enter__(self) -> "Load":
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for worker in self._workers:
            worker.join(JOIN_LIMIT)
            if worker.is_alive():
                raise RuntimeError(f"a call of the ledger did not end within {JOIN_LIMIT} s")


class _Worker(threading.Thread):
    def __init__(
        self,
        ledger: Recorder,
        random: Random,
        number: int,
        threads: int,
        rate: float,
        began: float,
        stop: threading.Event,
        *,
        patient: bool,
    ) -> None:
        super().__init__(name=f"load-{number}", daemon=True)
        self._patient = patient
        self.tally = Tally()
        self.calls: list[LedgerCall] = []
        self.recent: deque[bytes] = deque(maxlen=math.ceil(LOOK_BACK * rate / threads))
        self._ledger = ledger
        self.history = ledger.calls
        self._random = random
        self._number = number
        #: When this thread's operations begin, seconds on the monotonic clock.
        self._starts = (began + (number + turn * threads) / rate for turn in itertools.count())
        self._began = began
        self._stopped = stop
        self._orders = itertools.count()
        #: What is to be done later: when (monotonic), a tie-breaker, what.
        self._later: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> None:
        start = next(self._starts)
        while True:
            due = min(start, self._later[0][0]) if self._later else start
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                return
            if due == start:
                self._guarded(self._operate)
                start = next(self._starts)
            else:
                self._guarded(heapq.heappop(self._later)[2])

    def _operate(self) -> None:
        """Reserve, and put down what is to follow."""
        plan = draw(self._random)
        name = f"{self._number}-{self.tally.started}"
        self.tally.started += 1
        began = time.monotonic()
        try:
            held = self._ask(
                functools.partial(
                    self._ledger.reserve,
                    plan.tenant,
                    plan.scopes,
                    UNIT,
                    plan.amount,
                    ttl=timedelta(milliseconds=plan.ttl_ms),
                    grace=timedelta(milliseconds=plan.grace_ms),
                    idempotency_key=name,
                )
            )
        except InsufficientBudget:
            self.tally.refused += 1
            return
        self.tally.accepted += 1
        self.tally.last_end = max(self.tally.last_end, held.expires_at + plan.grace_ms)
        self.recent.append(held.reservation_id.encode())
        for at_ms, action in self._steps(plan, held, name):
            self._put_off(began + at_ms / 1000, action)

    def _steps(self, plan: Plan, held: Reserved, name: str) -> Sequence[tuple[float, Callable[[], None]]]:
        """What follows the reserve: when, in ms after it, and what."""
        match plan.fate:
            case Fate.COMMIT:
                return [(plan.end_at_ms, lambda: self._commit(plan, held, name))]
            case Fate.RELEASE:
                return [(plan.end_at_ms, lambda: self._release(plan, held, name))]
            case Fate.EXTEND_AND_COMMIT:
                return [
                    (plan.extend_at_ms, lambda: self._extend(plan, held, name)),
                    (plan.end_at_ms, lambda: self._commit(plan, held, name)),
                ]
            case Fate.ABANDON:
                return []

    def _commit(self, plan: Plan, held: Reserved, name: str) -> None:
        done = self._ask(
            functools.partial(
                self._ledger.commit, plan.tenant, held.reservation_id.encode(), plan.charge, idempotency_key=name
            )
        )
        self.tally.committed += 1
        self.tally.spent.update({balance.scope: done.charged for balance in done.balances})

    def _release(self, plan: Plan, held: Reserved, name: str) -> None:
        self._ask(
            functools.partial(self._ledger.release, plan.tenant, held.reservation_id.encode(), idempotency_key=name)
        )
        self.tally.released += 1

    def _extend(self, plan: Plan, held: Reserved, name: str) -> None:
        by = timedelta(milliseconds=plan.extend_by_ms)
        done = self._ask(
            functools.partial(self._ledger.extend, plan.tenant, held.reservation_id.encode(), by, idempotency_key=name)
        )
        self.tally.extended += 1
        self.tally.last_end = max(self.tally.last_end, done.expires_at + plan.grace_ms)

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """
        Call the ledger. Sometimes the call is sent again later, as by a client that never saw this answer: it must get
        the same one, even if the reservation has ended by then.
        """
        answer = self._timed(call)
        if self._random.random() < REPEATED:
            wait = self._random.uniform(0, REPEAT_WITHIN_MS) / 1000
            self._put_off(time.monotonic() + wait, lambda: self._repeat(call, answer))
        return answer

    def _repeat(self, call: Callable[[], Any], first: Any) -> None:
        self.tally.repeated += 1
        try:
            same = self._timed(call) == first
        except LedgerError:
            same = False
        if not same:
            self.tally.differing += 1

    def _timed(self, call: Callable[[], Answer]) -> Answer:
        while True:
            began = time.monotonic()
            try:
                return call()
            except RedisUnavailable:
                self.tally.lost += 1
                if not self._patient:
                    raise
            except RedisFull:
                self.tally.full += 1
                if not self._patient:
                    raise
            finally:
                self.calls.append(LedgerCall(began - self._began, time.monotonic() - began))
            time.sleep(self._random.uniform(0.1, 1) * AGAIN_AFTER)

    def _put_off(self, until: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (until, next(self._orders), action))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do it. What the ledger may refuse is counted as that, and any other exception as an error."""
        try:
            action()
        except ReservationExpired:
            self.tally.late += 1
        except Exception as error:  # a thread that ends over it would go unnoticed
            self.tally.errors += 1
            if len(self.tally.error_texts) < ERRORS_KEPT:
                self.tally.error_texts.append(f"{type(error).__name__}: {error}")
