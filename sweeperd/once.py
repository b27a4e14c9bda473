"""One run for cron: drain what is due, deliver what is in the stream, end."""

import enum
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeperd.audit import Audit
from sweeperd.config import Settings
from sweeperd.delivery import Delivery, DeliveryReport
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.reservation import message, reservations
from sweeperd.shard import Shard
from sweeperd.sweep import Decision, Outcome, Sweeper

log = logging.getLogger(__name__)


class Stage(enum.StrEnum):
    """What the run is busy with."""

    SWEEPING = "sweeping"
    DELIVERING = "delivering"


#: (stage, done so far, expected in all)
Progress = Callable[[Stage, int, int], None]


@dataclass(frozen=True)
class OnceReport:
    """One run in numbers."""

    counts: Counter[Outcome]
    #: False where a signal ended the sweep before all was looked at.
    complete: bool
    delivery: DeliveryReport
    duration_seconds: float

    @property
    def exit_code(self) -> int:
        """0: nothing left behind; 1: entries with errors, or not all looked at; 3: events wait for delivery."""
        if self.counts[Outcome.ERROR] or not self.complete:
            return 1
        return 3 if self.delivery.undelivered else 0

    def as_dict(self) -> dict[str, int | float]:
        """The object that `--json` prints."""
        return {
            "candidates": self.counts.total(),
            **{outcome.value: self.counts[outcome] for outcome in Outcome if outcome is not Outcome.ERROR},
            "errors": self.counts[Outcome.ERROR],
            "delivered": self.delivery.delivered,
            "undelivered": self.delivery.undelivered,
            "dead_lettered": self.delivery.dead_lettered,
            "duration_seconds": round(self.duration_seconds, 6),
        }


def run_once(
    settings: Settings,
    stop: threading.Event,
    progress: Progress = lambda *_: None,
    metrics: Metrics | None = None,
) -> OnceReport:
    """
    Sweep until the end of what is due now, then deliver until nothing is left that can be handed over now. `stop` ends
    it early. Raises RedisUnavailable.
    """
    started = time.monotonic()
    metrics = metrics or Metrics(tenant_label=settings.metrics.tenant_label)
    shard = Shard(settings.redis, settings.keys.prefix)
    audit = Audit(metrics, shard.name)
    try:
        delivery = Delivery(settings, shard, functools.partial(message, shard.keys.prefix), metrics, stop)
        delivery.prepare()
        counts, complete = _sweep(settings, shard, audit, stop, progress)
        _deliver(delivery, progress)
        delivery.maintain()
        report = OnceReport(counts, complete, delivery.report(), time.monotonic() - started)
        log.info("run ended", extra=report.as_dict())
    except Exception as error:
        audit.failed(error, redis_down=isinstance(error, RedisUnavailable), told=True)
        raise
    else:
        return report
    finally:
        shard.close()


def _sweep(
    settings: Settings, shard: Shard, audit: Audit, stop: threading.Event, progress: Progress
) -> tuple[Counter[Outcome], bool]:
    counts: Counter[Outcome] = Counter()

    def observe(decisions: Sequence[Decision], trace_id: str) -> None:
        audit.decided(decisions, trace_id)
        counts.update(decision.outcome for decision in decisions)
        progress(Stage.SWEEPING, counts.total(), due)

    sweeper = Sweeper(shard, reservations(shard.keys, settings.sweep), settings.sweep, observe, stop)
    due = sweeper.backlog().due
    complete = False
    while not complete and not stop.is_set():
        report = sweeper.tick()
        audit.ticked(report)
        complete = report.complete
    audit.measured(sweeper.backlog())
    return counts, complete


def _deliver(delivery: Delivery, progress: Progress) -> None:
    waiting = delivery.report().undelivered
    delivery.start(until_idle=True)
    while not delivery.join(time.monotonic() + 0.2):
        done = sum(endpoint.counts().total() for endpoint in delivery.endpoints)
        progress(Stage.DELIVERING, done, waiting)
    progress(Stage.DELIVERING, waiting, waiting)
