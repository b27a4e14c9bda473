"""Holds the lease of the Cycles services, so that they do not sweep while a replica of sweeperd lives."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import redis

from sweeperd.config.types import milliseconds
from sweeperd.errors import RedisUnavailable
from sweeperd.store.errors import describe
from sweeperd.store.lease import CYCLES_TOKEN
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: The TTL of the Cycles services' lease.
TTL = timedelta(seconds=30)
#: Between two renewals, and between two attempts to take the lease, seconds.
RENEW_EVERY, RETRY_EVERY = 10.0, 1.0
#: The sweep goes on after this long without the lease, seconds.
PATIENCE = 30.0


class CyclesLease:
    """
    `cycles:maintenance:lease:reservation_expiry`, by the rules of the Cycles services: taken with SET NX and a TTL,
    renewed by each process with the token, never released. Once no replica renews it, it runs out, and the services
    sweep again.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._renew = Script("lease/renew")
        #: When the lease was last taken or renewed, and since when it has been missing, monotonic.
        self._renewed_at: float | None = None
        self._missing_since = time.monotonic()
        self._warned = False

    def adopt(self, before: "CyclesLease") -> None:
        self._renewed_at, self._missing_since, self._warned = before._renewed_at, before._missing_since, before._warned

    def hold(self) -> None:
        """Take or renew the lease if that is due. Call this about every second. Raises RedisUnavailable."""
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
        """Whether to sweep now: under the lease, or after PATIENCE without it."""
        now = time.monotonic()
        if self.held:
            return True
        if self._renewed_at is not None:  # it was held, and Redis has not been reached since
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
        """For `--once`: hold the lease during the block, which begins when `permits` or `stop` allow it."""
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
        return self._renewed_at is not None and time.monotonic() - self._renewed_at < TTL.total_seconds()
