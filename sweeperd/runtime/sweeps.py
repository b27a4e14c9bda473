"""The sweep of one kind on one shard: leases, errors, log and metrics, the last tick."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import redis

from sweeperd import tracing
from sweeperd.config import EXPIRY_SPIKE, SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.context import ShardContext
from sweeperd.errors import KindRefused, RedisUnavailable
from sweeperd.store.errors import describe
from sweeperd.store.lease import CYCLES_TOKEN, Lease, process_name
from sweeperd.store.scripts import Call, Script
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
        if self._held and self._renewed_at is not None and now - self._renewed_at < RENEW_EVERY:
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
        elif self._held:
            self._renewed_at, self._missing_since = None, now

    def permits(self) -> bool:
        """Whether to sweep now: under the lease, or after 30 s without the lease."""
        now = time.monotonic()
        if self._held:
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
    def _held(self) -> bool:
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
        self._limit = LEASE_PATIENCE * settings.lease_ttl
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
        if now - self._since < self._limit.total_seconds():
            return False
        # A sweep is noted at the end, and while the lease is renewed a sweep may take the whole time budget.
        limit = self._limit + self._time_budget if self._lease.runs_out() else self._limit
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
        return self._shard.read_clock() - last.at_ms < milliseconds(limit)


class KindSweep:
    """`observe` gets the decisions of each batch after log and metrics. Methods raise RedisUnavailable."""

    def __init__(
        self,
        context: ShardContext,
        kind: Kind,
        observe: Callable[[Sequence[Decision]], None] = lambda _: None,
        cycles_lease: CyclesLease | None = None,
    ) -> None:
        settings, shard = context.settings, context.shard
        self.name = kind.name
        self.telemetry = SweepTelemetry(context.metrics, shard.name, kind)
        self.lease = Lease(shard, kind.lease_job, settings.sweep.lease_ttl, self.telemetry.lost_lease)
        self._stand_by = StandBy(shard, kind, self.lease, settings.sweep)
        self._shard = shard
        self._kind = kind
        self._interpreter = context.interpreter
        self._cycles_lease = cycles_lease if kind.cycles else None
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

    def run(self, paged: Callable[[], None] = lambda: None) -> str:
        """
        One tick under the lease, or none if another replica has the lease and sweeps. `paged`: see `Sweeper.tick`.
        Returns why the tick failed, or "". Raises KindRefused if the kind cannot be swept on this server, or its script
        is broken.
        """
        self.telemetry.begun()
        if self._broken:
            raise KindRefused(self._broken)
        if self._cycles_lease and not self._cycles_lease.permits():
            self.telemetry.stood_by()
            return ""
        with self._shard.reaching():
            acquired = self.lease.acquire()
            alone = not acquired and self._stand_by.is_pointless()
        if acquired:
            self._stand_by.end()
            with self.lease.kept() as lost:
                failure = self.tick(lost.is_set, paged).failure
        elif alone:
            failure = self.tick(paged=paged).failure
        else:
            failure = ""
            self.telemetry.stood_by()
        if time.monotonic() >= self._measure_at:
            self.measure()
        return failure

    def tick(
        self, give_way: Callable[[], bool] = lambda: False, paged: Callable[[], None] = lambda: None
    ) -> SweepReport:
        """One tick. Raises KindRefused if the kind cannot be swept on this server, or has broken in this tick."""
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
            report = self._sweeper.tick(give_way, span.trace_id, page_decided)
            span.mark({f"sweeperd.{outcome.value}": count for outcome, count in report.counts.items()})
            if report.failure:
                span.fail(report.failure)
        self.telemetry.ticked(report)
        self._last_sweep.note(report)
        if self._rates and (spikes := self._rates.record(report.trace_id)):
            self.telemetry.spiked(spikes)
        if report.broken:
            self._broken = f"{self.name}: not swept until sweeperd is restarted: {report.broken}"
            raise KindRefused(self._broken)
        return report

    def failed(self, failure: Failure) -> None:
        """Count a tick that failed, and log the failure."""
        self.telemetry.failed(redis_down=failure.sort == "redis")
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
) -> list[KindSweep]:
    """The sweep of each kind on the shard."""
    kinds = kinds_of(context.settings, context.shard).values()
    return [KindSweep(context, kind, observe, cycles_lease) for kind in kinds]
