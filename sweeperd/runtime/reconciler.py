"""The daemon's own walks over a shard, now and then, one after the other, on one of the replicas."""

import logging
import math
import threading
import time

from sweeperd.config import Settings
from sweeperd.errors import KindRefused, RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.ops.throttle import Interrupted
from sweeperd.runtime.daily_walk import ConfiguredKindWalk, ReservationsWalk, daily_walks
from sweeperd.store.lease import Lease
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: The longest time between two checks whether a walk is due, seconds.
CHECK_EVERY = 60.0
#: How long to wait after a walk that failed, seconds; no longer than the interval.
RETRY = 600.0


class PeriodicReconciler:
    """
    Walks the reservations and each configured kind of one shard once in each `reconcile.interval`, on one of the
    replicas. The end of each last walk is kept in Redis: a daemon that restarts does not walk again too early, and all
    replicas export what it found. The place of an unfinished walk is kept as well: the next one goes on from there,
    while Redis is still the same process.

    The rate rises where `reconcile.rate` would not end all walks within half of the interval.
    """

    def __init__(self, settings: Settings, shard: Shard, metrics: Metrics, stop: threading.Event) -> None:
        assert settings.reconcile.interval  # noqa: S101 - for the type checker
        self._interval = settings.reconcile.interval.total_seconds()
        self._shard = shard
        self._stop = stop
        self._walks = daily_walks(settings, shard, metrics)
        self._lease = Lease(shard, "reconcile", settings.sweep.lease_ttl)
        #: How often `run_if_due` should be called, seconds.
        self.check_every = min(CHECK_EVERY, self._interval / 4)
        self._checked = False

    @property
    def swept(self) -> list[str]:
        """What it walks: reservations, kinds."""
        return [walk.swept for walk in self._walks]

    def run_if_due(self) -> None:
        """Export what is known; walk what is due. Raises RedisUnavailable, redis.RedisError."""
        if self._stop.is_set():
            return
        with self._shard.reaching():
            now = self._shard.read_clock()
            due = [walk for walk in self._walks if self._is_due(walk, now)]
            # Not at the first check: a daemon that starts has more urgent work.
            first, self._checked = not self._checked, True
            if first or not due or not self._lease.acquire():
                return
            with self._lease.kept():
                self._walk_all(due)

    def _is_due(self, walk: ReservationsWalk | ConfiguredKindWalk, now: int) -> bool:
        last = walk.last()
        # The end of a walk in the future comes from a clock that was wrong.
        rested = last and last.finished_at <= now < last.finished_at + self._interval * 1000
        return not rested and time.monotonic() >= walk.wait_until

    def _walk_all(self, due: list[ReservationsWalk | ConfiguredKindWalk]) -> None:
        """A walk that fails keeps no other from being made."""
        within = self._interval / 2 / len(self._walks)
        for walk in due:
            walk.wait_until = time.monotonic() + min(RETRY, self._interval)
            fields = {"shard": self._shard.name, "kind": walk.swept}
            try:
                walk.walk(within, self._stop)
            except Interrupted:
                return
            except RedisUnavailable as error:
                walk.count("error")
                log.warning("reconcile failed, it is tried again later", extra=fields | {"error": str(error)})
            except KindRefused as error:
                walk.count("error")
                walk.wait_until = math.inf  # it would fail, or block Redis, in the same way
                log.warning("kind refused, it is not walked until a restart", extra=fields | {"error": str(error)})
            except Exception:
                walk.count("error")
                log.exception("reconcile failed", extra=fields)
            else:
                walk.wait_until = 0.0
