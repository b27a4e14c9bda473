"""Which process this is, as other replicas and operators see it."""

import contextlib
import functools
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import redis

from sweeperd.config.types import milliseconds
from sweeperd.store.errors import is_full, is_wrong_type
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode


@functools.cache
def process_name() -> str:
    """
    Host, process id and a random part: `sweeper-1-4711-9f3a61`. Containers on the network of their host have its name,
    and each of them may have the process id 1.
    """
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


# ----
# A lease: which of several processes does a job now. It saves work. Correctness rests on it only where the script that
# writes compares the lease's token.


#: What follows the process's name in a token: 16 hex digits.
_UNIQUE = re.compile("-[0-9a-f]{16}$")
#: How long to wait at the end of the job for a renewal that is under way, seconds. It does no harm if it lasts longer.
LAST_RENEWAL = 1.0


def holder(shard: Shard, job: str) -> str:
    """Which process does the job just now; empty where none does. Raises redis.RedisError."""
    try:
        token = shard.client.get(shard.keys.lease(job))
    except redis.ResponseError as error:
        if is_wrong_type(error):
            return ""  # it is no lease
        raise
    return _UNIQUE.sub("", decode(token)) if isinstance(token, bytes) else ""


#: The token of the lease of the Cycles services: one for all replicas, so that each can renew what another one took.
CYCLES_TOKEN = "sweeperd"  # noqa: S105 - no secret


class Lease:
    """
    `sweeperd:lease:<job>`: held and renewed while the job runs, released when it ends. A holder that died is
    replaced when `ttl` is over.

    `on_lost` is called once for each time that the lease turns out to have gone while the job ran: it was deleted, it
    is another's, or it ran out because this process or its Redis stood still.
    """

    def __init__(self, shard: Shard, job: str, ttl: timedelta, on_lost: Callable[[], None] = lambda: None) -> None:
        self._client = shard.client
        self._name = f"lease-{job}-{shard.name}"
        self._key = shard.keys.lease(job)
        self._ttl = ttl.total_seconds()
        self._ttl_ms = milliseconds(ttl)
        self._on_lost = on_lost
        # Operators read it: it says who holds the lease.
        self._token = f"{process_name()}-{secrets.token_hex(8)}"
        self._renew = Script("lease/renew")
        self._release = Script("lease/release")
        self._owned = False

    @property
    def token(self) -> str | None:
        """
        What the key holds since the last `acquire`; None where Redis was full. A script that compares the two writes
        only while the lease lasts.
        """
        return self._token if self._owned else None

    def acquire(self) -> bool:
        """
        Take the lease, or keep the one that could not be released. True too where Redis is full and refuses it: the
        sweep is what frees memory, so it goes on without. False where the key holds no token but another type of value.
        Raises redis.RedisError.
        """
        try:
            self._owned = bool(self._client.set(self._key, self._token, nx=True, px=self._ttl_ms)) or self._extend()
        except redis.ResponseError as error:
            if is_wrong_type(error):
                self._owned = False
                return False
            if not is_full(error):
                raise
            self._owned = self._extend()
            return True
        return self._owned

    def runs_out(self) -> bool:
        """Whether the key has a TTL, so that the lease ends by itself. Raises redis.RedisError."""
        return int(self._client.pttl(self._key)) >= 0

    @contextlib.contextmanager
    def kept(self) -> Iterator[threading.Event]:
        """
        Renew what was acquired while the block lasts, and release it then. Yields what is set once it is lost.

        A thread of its own renews, so that it lasts however long one round trip of the job takes.
        """
        lost, ended = threading.Event(), threading.Event()
        if not self._owned:
            yield lost  # Redis is full: there is nothing to keep, and nothing to lose
            return
        renewals = threading.Thread(target=self._keep, args=(lost, ended), name=self._name, daemon=True)
        try:
            renewals.start()
        except RuntimeError:
            # The system gives no more threads. Another replica may have some.
            with contextlib.suppress(redis.RedisError):
                self.release()
            raise
        try:
            yield lost
        finally:
            ended.set()
            renewals.join(LAST_RENEWAL)
            # Where it cannot be given back it runs out by itself.
            with contextlib.suppress(redis.RedisError):
                if not lost.is_set() and not self.release():
                    self._on_lost()

    def release(self) -> bool:
        """Let go of it. Returns whether it was still held. Raises redis.RedisError."""
        return bool(self._release.run(self._client, Call([self._key], [self._token])))

    def _keep(self, lost: threading.Event, ended: threading.Event) -> None:
        wait = self._ttl / 3
        while not ended.wait(wait):
            try:
                kept = self._extend()
            except redis.RedisError:
                wait = self._ttl / 10  # there is time for a few more tries
                continue
            wait = self._ttl / 3
            # An answer that comes after the end may be about a lease that was released.
            if not kept and not ended.is_set():
                lost.set()
                self._on_lost()
                return

    def _extend(self) -> bool:
        """Make it last from now on, where it is still held. Returns whether it is."""
        return bool(self._renew.run(self._client, Call([self._key], [self._token, self._ttl_ms])))
