"""The sweep of one kind on one shard: leases, errors, log and metrics, the last tick, and the next deadline."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import redis

from sweeperd import tracing
from sweeperd.config import EXPIRY_SPIKE, SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.context import ShardContext
from sweeperd.errors import KindRefused, RedisUnavailable
from sweeperd.progress import Progress, working
from sweeperd.store.errors import describe
from sweeperd.store.lease import CYCLES_TOKEN, Lease, process_name
from sweeperd.store.scripts import Call, Command, Script, micros_of, server_clock
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Backlog, Decision, Kind, SweepReport
from sweeperd.sweep.sweeper import Sweeper
from sweeperd.sweep.telemetry import ExpiryRates, LastSweepStore, SweepTelemetry, read_last_sweep

log = logging.getLogger(__name__)

#: The TTL that the services of Cycles give to their lease.
TTL = timedelta(seconds=30)
#: Between two renewals of that lease, and between two attempts to take the lease, seconds.
RENEW_EVERY, RETRY_EVERY = 10.0, 1.0
#: After so long without that lease the sweep goes on, seconds.
PATIENCE = 30.0
#: A lease of sweeperd that lasts for so many TTLs without a sweep is not believed any more.
LEASE_PATIENCE = 4
#: Between two looks of a process that does not lead, seconds. So long, too, may a woken tick take to begin.
OTHERS = 1.0
#: Between two readings of the note, and of the clock by the process that leads, seconds.
NEWS = 5.0
#: A process that leads and hangs is replaced within so many TTLs of the lease.
REPLACED = 1.5
#: How long the leading process has for an overdue entry before another process acts, ms.
LEADS_WITHIN = 200
#: How long the leading process keeps the lease of the sweep after a tick. If the process dies, the lease runs out.
LINGER = timedelta(seconds=OTHERS)


@dataclass(frozen=True)
class Failure:
    """
    What an error of a sweep, a walk or a run means. Every error is counted as `error`, makes `--once` exit with 1, and
    keeps no other kind or shard from its work. The daemon tries again at the next tick; a refused kind is only checked
    again, and is walked and, if its script is broken, swept no more until a restart.
    """

    #: `redis`: Redis cannot be worked with for now, and `redis_up` is 0. `refused`: the kind cannot be swept on this
    #: server. `command`: Redis refused a command, because of a key of another type for example. `bug`: a fault of
    #: sweeperd, the only failure that is logged with its traceback.
    sort: Literal["redis", "refused", "command", "bug"]
    #: In one line.
    cause: str
    error: Exception

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """The one decision about an error, for the daemon and for `--once`."""
        match error:
            case RedisUnavailable():
                return cls("redis", str(error), error)
            case KindRefused():
                return cls("refused", str(error), error)
            case redis.ResponseError():
                return cls("command", describe(error), error)
            case _:
                return cls("bug", type(error).__name__, error)

    def log(self, level: int, line: str, fields: Mapping[str, object], text: str = "") -> None:
        """Log the failure; `text` in place of the cause."""
        traceback = self.error if self.sort == "bug" else None
        log.log(level, line, extra={**fields, "error": text or self.cause}, exc_info=traceback)


class CyclesLease:
    """
    `cycles:maintenance:lease:reservation_expiry`, by the rule of the Cycles services: taken with SET NX and a TTL,
    renewed by each process that has the token, never released. When no replica of sweeperd renews the lease any more,
    the lease runs out, and the services sweep again.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._renew = Script("lease/renew")
        #: When the lease was last taken or renewed, monotonic.
        self._renewed_at: float | None = None
        #: Since when the lease has been missing, monotonic.
        self._missing_since = time.monotonic()
        self._warned = False

    def adopt(self, before: "CyclesLease") -> None:
        """Take over the state of the daemon before a reload."""
        self._renewed_at, self._missing_since, self._warned = before._renewed_at, before._missing_since, before._warned

    def hold(self) -> None:
        """Take or renew the lease when due. Call this about every second. Raises RedisUnavailable."""
        now = time.monotonic()
        if self.held and self._renewed_at is not None and now - self._renewed_at < RENEW_EVERY:
            return
        key = self._shard.keys.cycles.lease
        try:
            with self._shard.reaching():
                renewed = self._renew.run(self._shard.client, Call([key], [CYCLES_TOKEN, milliseconds(TTL)]))
                held = renewed or self._shard.client.set(key, CYCLES_TOKEN, nx=True, px=milliseconds(TTL))
        except redis.ResponseError as error:  # Redis is full, or the key has another type
            raise RedisUnavailable(f"{self._shard.address}: {describe(error)}") from error
        if held:
            self._renewed_at, self._warned = now, False
        elif self.held:
            self._renewed_at, self._missing_since = None, now

    def permits(self) -> bool:
        """Whether to sweep now: under the lease, or after 30 s without the lease."""
        now = time.monotonic()
        if self.held:
            return True
        if self._renewed_at is not None:  # the lease was held, and Redis could not be reached since
            self._missing_since = self._renewed_at + TTL.total_seconds()
            self._renewed_at = None
        missing = now - self._missing_since
        if missing < PATIENCE:
            return False
        if not self._warned:
            self._warned = True
            log.warning(
                "the lease of the Cycles services is held by another process, sweeping without it",
                extra={"shard": self._shard.name, "seconds": round(missing)},
            )
        return True

    @contextlib.contextmanager
    def kept(self, stop: threading.Event) -> Iterator[None]:
        """For `--once`: hold the lease during the block, which begins when `permits` allows or `stop` is set."""
        end = threading.Event()
        thread = threading.Thread(target=self._keep, args=(end,), name=f"cycles-lease-{self._shard.name}", daemon=True)
        thread.start()
        try:
            while not self.permits() and not stop.wait(RETRY_EVERY / 10):
                pass
            yield
        finally:
            end.set()
            thread.join(self._shard.socket_timeout)

    def _keep(self, end: threading.Event) -> None:
        while True:
            try:
                self.hold()
            except (RedisUnavailable, redis.RedisError) as error:
                log.warning(
                    "the lease of Cycles waits for redis", extra={"shard": self._shard.name, "error": str(error)}
                )
            if end.wait(RETRY_EVERY):
                return

    @property
    def held(self) -> bool:
        """Whether sweeperd has the lease."""
        return self._renewed_at is not None and time.monotonic() - self._renewed_at < TTL.total_seconds()


class StandBy:
    """
    A holder renews the lease, sweeps, and notes each sweep. If a lease never runs out, because the key has no TTL or is
    no lease at all, every sweep would stop for ever. So if a replica has stood by for 4 TTLs and no sweep was noted
    meanwhile, the replica sweeps without the lease. Correctness never rests on the lease.
    """

    def __init__(self, shard: Shard, kind: Kind, lease: Lease, settings: SweepSettings) -> None:
        self._shard = shard
        self._kind = kind
        self._lease = lease
        self._time_budget = settings.time_budget
        #: When this process began to stand by, monotonic; None while this process holds the lease.
        self._since: float | None = None
        self._warned = False

    def end(self) -> None:
        """This process has the lease."""
        self._since = None
        self._warned = False

    def is_pointless(self) -> bool:
        """Call this when the lease was not acquired: whether to sweep without the lease. Raises redis.RedisError."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        limit = LEASE_PATIENCE * self._lease.holder_ttl
        if now - self._since < limit.total_seconds():
            return False
        # A sweep is noted at the end, and while the lease is renewed a sweep may take the whole time budget.
        limit += self._time_budget if self._lease.runs_out() else timedelta()
        if now - self._since < limit.total_seconds() or self._another_swept_within(limit):
            return False
        if not self._warned:
            log.warning(
                "the lease is held, but its holder does not sweep: sweeping without the lease; delete its key",
                extra={"shard": self._shard.name, "kind": self._kind.name, "seconds": round(now - self._since)},
            )
        self._warned = True
        return True

    def _another_swept_within(self, limit: timedelta) -> bool:
        last = read_last_sweep(self._shard, self._kind)
        if last is None or last.by == process_name():
            return False
        # A note from the future is of a time before the clock of Redis was put right, perhaps of a dead process.
        return 0 <= self._shard.read_clock() - last.at < milliseconds(limit)


@dataclass
class Watch:
    """What is known of one kind between two ticks. A watch is used by the tick and by the lookout in turns."""

    shard: Shard
    kind: Kind
    #: Seconds.
    precision: float
    lease: Lease
    #: When the first known grace ends, ms on the server's clock.
    grace_end_ms: Callable[[], float]
    #: Gets who noted the last tick and when, and says whether it was this process.
    heard: Callable[[bytes | None, bytes | None], bool]
    #: Whether to look at all: not without the lease of the Cycles services.
    allowed: Callable[[], bool]
    #: Whether the last tick ended well, or another process had the lease.
    armed: bool = False
    #: Whether the last note is of this process.
    leads: bool = False
    #: The score up to which each entry was decided; None if unknown.
    seen_ms: int | None = None
    #: The first score after `seen_ms` at the last look.
    head: float = math.inf
    #: Whether a tick was asked for and has not begun; when a tick was asked for last, monotonic.
    woken: bool = False
    woken_at: float = -math.inf
    #: Whether the lease may be another process's, so that each look reads the lease; and since when, monotonic.
    doubtful: bool = False
    doubtful_since: float = 0.0
    #: When to look again, and when the note was read last, monotonic.
    look_at: float = 0.0
    read_at: float = -math.inf

    def begin(self) -> tuple[int | None, int, bool]:
        """
        A tick begins. Returns the score that was seen if the tick was woken, else None; how many ms before now a tick
        over the whole index leaves to woken ticks; and whether the tick will most probably be short.

        If another process led so far, the tick goes over the whole index: only that process knew when graces end.
        """
        seen_ms = self.seen_ms if self.woken and self.leads else None
        steady = self.armed and self.leads
        self.woken = self.armed = False
        return seen_ms, int(2000 * self.precision) if steady and seen_ms is None else 0, steady

    def ended(self, report: SweepReport, *, noted: bool) -> None:
        """A tick has ended without an error; `noted`: for all processes to see."""
        self.leads = self.leads or noted
        if report.seen_ms:
            self.seen_ms, self.doubtful = report.seen_ms, False
            self._arm()

    def stood_by(self) -> None:
        """Another process had the lease."""
        if not self.doubtful:
            self.doubtful, self.doubtful_since = True, time.monotonic()
        self._arm()

    def _arm(self) -> None:
        self.armed, self.woken, self.head = True, False, math.inf
        self.look_at = self.woken_at + self.precision

    @property
    def is_late(self) -> bool:
        """Whether a known moment has passed by the server's clock, as this process keeps that clock."""
        return self._late_ms() > 0

    def questions(self, now: float) -> dict[str, Command]:
        """What to read in a look at this time, monotonic."""
        found: dict[str, Command] = {}
        if self.seen_ms is not None:
            limit = ("BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
            found["head"] = ("ZRANGE", self.kind.index, f"({self.seen_ms}", "+inf", *limit)
        if self.doubtful or now - self.read_at >= NEWS:
            found["note"] = ("HMGET", self.kind.ticks, "by", "at", "seen")
            if self.leads or self.seen_ms is None:
                found["clock"] = server_clock(self.shard.client)
        if self.doubtful:
            found["lease"] = ("GET", self.shard.keys.lease(self.kind.lease_job))
        return found

    def answered(self, answers: Mapping[str, Any], now: float) -> bool:
        """Take in the replies, and plan the next look. Returns whether to begin a tick."""
        self.look_at = now + max(OTHERS, self.precision)
        if any(isinstance(answer, Exception) for answer in answers.values()):
            self.armed = False
            return False
        if "clock" in answers:
            self.shard.clock.set((micros_of(answers["clock"]) or 0) // 1000)
        if "note" in answers:
            self._read(answers["note"])
            self.read_at = now
        if "head" in answers:
            self.head = float(answers["head"][1]) if answers["head"] else math.inf
        held = self.lease.is_of_another(answers.get("lease"))
        return self._plan_leading(now, held) if self.leads else self._plan_other(now, "lease" in answers, held)

    def _read(self, note: Sequence[bytes | None]) -> None:
        by, at, seen = note
        self.leads = self.heard(by, at)
        if not self.leads:
            self.armed = seen is not None
            self.seen_ms = int(seen) if seen is not None and seen.isdigit() else None

    def _plan_leading(self, now: float, held: bool) -> bool:
        late = self._late_ms()
        self.doubtful = held
        if late > 0 and held and now - self.doubtful_since > OTHERS:
            return False
        self.look_at = now + self.precision if late > 0 else now + min(self.precision, (1 - late) / 1000)
        return late > 0 and not held

    def _plan_other(self, now: float, asked: bool, held: bool) -> bool:
        late = self._late_ms()
        if late > LEADS_WITHIN and not asked:
            self.look_at = now
        self.doubtful = late > LEADS_WITHIN
        return late > LEADS_WITHIN and asked and not held

    def _late_ms(self) -> float:
        return self.shard.clock.now_ms() - min(self.head, self.grace_end_ms())


class KindSweep:
    """
    `observe` gets the decisions of each batch after log and metrics. `looks`: a lookout goes by `watch` between two
    runs. Methods raise RedisUnavailable.
    """

    def __init__(
        self,
        context: ShardContext,
        kind: Kind,
        observe: Callable[[Sequence[Decision]], None] = lambda _: None,
        cycles_lease: CyclesLease | None = None,
        *,
        looks: bool = False,
    ) -> None:
        settings, shard = context.settings, context.shard
        self.name = kind.name
        #: Of the run that is under way.
        self.progress = Progress()
        #: A run that makes no progress for so long hangs, seconds: another process has replaced it by then.
        self._longest_silence = REPLACED * settings.sweep.lease_ttl.total_seconds() + shard.patience
        self.telemetry = SweepTelemetry(context.metrics, shard.name, kind)
        #: Whether the lease is kept between two ticks. With a short interval the replicas take turns.
        self._lingers = looks and settings.sweep.interval > LINGER
        self.lease = Lease(shard, kind.lease_job, settings.sweep.lease_ttl, self.telemetry.lost_lease, LINGER)
        self._stand_by = StandBy(shard, kind, self.lease, settings.sweep)
        self._shard = shard
        self._kind = kind
        self._interpreter = context.interpreter
        #: The lease of the Cycles services, if the sweep needs it.
        self.cycles_lease = cycles_lease if kind.cycles else None
        #: Why the kind is not swept any more; empty while the kind is swept.
        self._broken = ""
        #: How many connections the shard had opened when the kind was checked.
        self._checked = -1
        self._observe = observe
        self._measure_every = min(context.timing.maintain_every, 3 * settings.sweep.interval.total_seconds())
        #: When the gauges are set again, monotonic.
        self._measure_at = 0.0
        self._last_sweep = LastSweepStore(shard, kind, settings.sweep.interval.total_seconds())
        spikes_wanted = kind.cycles and EXPIRY_SPIKE in settings.announced
        self._rates = ExpiryRates(shard, settings.cycles) if spikes_wanted else None
        self._sweeper = Sweeper(shard, kind, settings.sweep, self._decided, context.stop)
        self.watch = self._watch(settings.sweep) if looks else None

    def _watch(self, settings: SweepSettings) -> Watch:
        lease, sweeper = self.cycles_lease, self._sweeper
        return Watch(
            self._shard,
            self._kind,
            settings.precision.total_seconds(),
            self.lease,
            lambda: sweeper.grace_end_ms,
            self._last_sweep.heard,
            lambda: lease is None or lease.held,
        )

    @property
    def proven(self) -> bool:
        """Whether an entry of the kind was seen alive, so that nothing is held."""
        return self._sweeper.proven

    def end(self) -> None:
        """The daemon ends: log what was not logged yet, and let go of the lease."""
        self.telemetry.summarize()
        self.lease.close()

    def adopt(self, before: "KindSweep") -> None:
        """Take over the lease of the daemon before a reload."""
        self.lease.adopt(before.lease)

    @property
    def hangs(self) -> bool:
        """Whether the run that is under way makes no progress."""
        return self.progress.silent_for > self._longest_silence

    def run(self, paged: Callable[[], None] = lambda: None) -> str:
        """
        One tick under the lease, or none if another replica has the lease and sweeps. `paged`: see `Sweeper.tick`.
        Returns why the tick failed, or "". Raises KindRefused if the kind cannot be swept on this server, or its script
        is broken.
        """
        with working(self.progress):
            return self._run(paged)

    def _run(self, paged: Callable[[], None]) -> str:
        self.telemetry.begun()
        seen_ms, leave_ms, briefly = self.watch.begin() if self.watch else (None, 0, False)
        if self._broken:
            raise KindRefused(self._broken)
        if self.cycles_lease and not self.cycles_lease.permits():
            self.telemetry.stood_by()
            return ""
        with self._shard.reaching():
            acquired = self.lease.acquire(briefly=briefly and self._lingers)
            alone = not acquired and self._stand_by.is_pointless()
        if acquired:
            self._stand_by.end()
            with self.lease.kept() as lost:
                failure = self.tick(lost.is_set, paged, seen_ms, leave_ms).failure
                if self._lingers and self.watch and self.watch.armed and self.watch.leads:
                    self.lease.leave_to_lapse()
        elif alone:
            failure = self.tick(paged=paged).failure
        else:
            failure = ""
            self.telemetry.stood_by()
            if self.watch:
                self.watch.stood_by()
        if time.monotonic() >= self._measure_at:
            self.measure()
        return failure

    def tick(
        self,
        give_way: Callable[[], bool] = lambda: False,
        paged: Callable[[], None] = lambda: None,
        seen_ms: int | None = None,
        leave_ms: int = 0,
    ) -> SweepReport:
        """
        One tick; see `Sweeper.tick`. Raises KindRefused if the kind cannot be swept on this server, or has broken in
        this tick.
        """
        self.telemetry.begun()
        if self._checked != self._shard.opened:
            # A new connection may lead to another server, or to other rights.
            with self._shard.reaching():
                self._kind.check(self._shard.client)
            self._checked = self._shard.opened

        def page_decided() -> None:
            self.telemetry.paged()
            paged()

        with self._interpreter.sweep(), tracing.tick(self._shard.name, self.name) as span:
            report = self._sweeper.tick(give_way, span.trace_id, page_decided, seen_ms, leave_ms)
            span.mark({f"sweeperd.{outcome.value}": count for outcome, count in report.counts.items()})
            if report.failure:
                span.fail(report.failure)
        woken = seen_ms is not None
        self.telemetry.ticked(report, woken=woken)
        noted = self._last_sweep.note(report, woken=woken, proven=self.proven)
        if self._rates and (spikes := self._rates.record(report.trace_id)):
            self.telemetry.spiked(spikes)
        if report.broken:
            self._broken = f"{self.name}: not swept until sweeperd is restarted: {report.broken}"
            raise KindRefused(self._broken)
        if self.watch:
            self.watch.ended(report, noted=noted)
        return report

    def failed(self, failure: Failure) -> None:
        """Count a tick that failed, and log the failure if it is news: see `Trouble`."""
        self.telemetry.failed(redis_down=failure.sort == "redis")
        if not self.telemetry.trouble.is_news(f"{failure.sort}: {failure.cause}"):
            return
        fields = {"shard": self._shard.name, **self._kind.log_fields}
        match failure.sort:
            case "redis":
                failure.log(logging.ERROR, "sweep failed, the next tick tries again", fields)
            case "refused":
                failure.log(logging.WARNING, "kind refused, it is not swept", fields)
            case _:
                failure.log(logging.ERROR, "sweep failed", fields)

    def backlog(self) -> Backlog:
        """The entries that are due now."""
        return self._sweeper.backlog()

    def measure(self) -> None:
        """Set the gauges."""
        self.telemetry.measured(self.backlog())
        self._measure_at = time.monotonic() + self._measure_every

    def _decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        self.telemetry.decided(decisions, trace_id)
        self._last_sweep.decided(decisions)
        if self._rates:
            self._rates.decided(decisions)
        self._observe(decisions)


def kind_sweeps(
    context: ShardContext,
    observe: Callable[[Sequence[Decision]], None] = lambda _: None,
    cycles_lease: CyclesLease | None = None,
    *,
    looks: bool = False,
) -> list[KindSweep]:
    kinds = kinds_of(context.settings, context.shard).values()
    return [KindSweep(context, kind, observe, cycles_lease, looks=looks) for kind in kinds]
