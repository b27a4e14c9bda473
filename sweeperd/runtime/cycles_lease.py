"""The lease of a Cycles installation's own expiry sweep, held so that its services leave the sweep to sweeperd."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import redis

from sweeperd.config.types import milliseconds
from sweeperd.errors import RedisUnavailable
from sweeperd.store.lease import CYCLES_TOKEN
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: As long as the services of Cycles take it for.
TTL = timedelta(seconds=30)
#: Between two renewals, and between two attempts to take it, seconds.
RENEW_EVERY, RETRY_EVERY = 10.0, 1.0
#: After so long without it the sweep goes on, seconds.
PATIENCE = 30.0


class CyclesLease:
    """
    `cycles:maintenance:lease:reservation_expiry`, by the rule of the services that share it: taken with SET NX and a
    TTL, renewed by each process that has the token. It is never released: it runs out when no replica of sweeperd
    renews it, and then the services sweep again.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._renew = Script("lease/renew")
        #: When it was last taken or renewed, monotonic.
        self._renewed_at: float | None = None
        #: Since when it has been missing, monotonic.
        self._missing_since = time.monotonic()
        self._warned = False

    def adopt(self, before: "CyclesLease") -> None:
        """Take over the state of the daemon before a reload."""
        self._renewed_at, self._missing_since, self._warned = before._renewed_at, before._missing_since, before._warned

    def hold(self) -> None:
        """Take or renew it, when it is time. Call it about every second. Raises RedisUnavailable."""
        now = time.monotonic()
        if self._held and self._renewed_at is not None and now - self._renewed_at < RENEW_EVERY:
            return
        key = self._shard.keys.cycles.lease
        with self._shard.reaching():
            renewed = self._renew.run(self._shard.client, Call([key], [CYCLES_TOKEN, milliseconds(TTL)]))
            held = renewed or self._shard.client.set(key, CYCLES_TOKEN, nx=True, px=milliseconds(TTL))
        if held:
            self._renewed_at, self._warned = now, False
        elif self._held:
            self._renewed_at, self._missing_since = None, now

    def permits(self) -> bool:
        """Whether to sweep now: under the lease, or after 30 s without it."""
        now = time.monotonic()
        if self._held:
            return True
        if self._renewed_at is not None:  # it was held, and Redis could not be reached since
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
        """For a run that is no daemon: hold it during the block, which begins when `permits` says so, or at `stop`."""
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
