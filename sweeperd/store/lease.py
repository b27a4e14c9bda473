"""
Elects the one process that does a job, by a lease in Redis. A lease only saves work. Correctness may rely on it only if
the script that writes compares its token.

A lease expires `ttl` after the job's last progress, so that a hanging process is replaced.
"""

import contextlib
import functools
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import redis

from sweeperd.config.types import milliseconds
from sweeperd.progress import Progress, working
from sweeperd.store.errors import is_full, is_wrong_type
from sweeperd.store.operations import Operation, Request
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode

#: The token of the lease of the Cycles services: the same for all replicas, so that each can renew another's lease.
CYCLES_TOKEN = "sweeperd"  # noqa: S105 - no secret
#: The text after the process's name in a token: 16 hex digits, and the longest TTL of the lease, ms.
_UNIQUE = re.compile("-[0-9a-f]{16}(:[0-9]+)?$")
#: How long the end of a job waits for a running renewal, seconds. A slower renewal does no harm.
LAST_RENEWAL = 1.0
#: For this share of `linger`, a lease that was left to lapse counts as held without a command.
KEPT = 0.4


@functools.cache
def process_name() -> str:
    """Host, process id and a random part, because containers may share both: `sweeper-1-4711-9f3a61`."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def holder(shard: Shard, job: str) -> str:
    """The process that holds the lease of the job; empty if there is none. Raises redis.RedisError."""
    try:
        token = shard.client.get(shard.keys.lease(job))
    except redis.ResponseError as error:
        if is_wrong_type(error):
            return ""  # the key is not a lease
        raise
    return _UNIQUE.sub("", decode(token)) if isinstance(token, bytes) else ""


class Lease:
    """
    `sweeperd:lease:<job>`: held and renewed while the job runs and makes progress, released when the job ends. If a
    holder dies or hangs, another process can take the lease after `ttl`.

    With `linger`, a recurring job may keep its lease between runs: after `leave_to_lapse` the end of the job doesn't
    release it, and it expires unless the job starts again within `linger`.

    `on_lost` is called each time the lease is lost while the job runs: it was deleted, another process holds it, or it
    expired because this process or its Redis stalled.
    """

    def __init__(
        self,
        shard: Shard,
        job: str,
        ttl: timedelta,
        on_lost: Callable[[], None] = lambda: None,
        linger: timedelta | None = None,
    ) -> None:
        self._linger_ms = milliseconds(linger or ttl)
        #: When the lease was last set to expire after `linger` (monotonic), and whether the end of the job leaves it.
        self._lingers_from, self._left = -math.inf, False
        self._client = shard.client
        self._name = f"lease-{job}-{shard.name}"
        self._key = shard.keys.lease(job)
        self._ttl = ttl.total_seconds()
        self._ttl_ms = milliseconds(ttl)
        self._on_lost = on_lost
        # The token tells operators the holder of the lease, and other processes its TTL.
        self._token = f"{process_name()}-{secrets.token_hex(8)}:{self._ttl_ms}"
        self._others_ttl_ms = self._ttl_ms
        self._renew = Script("lease/renew")
        self._release = Script("lease/release")
        self._owned = False

    @property
    def token(self) -> str | None:
        """The value of the key since `acquire`; None if Redis was full. A script may compare it before it writes."""
        return self._token if self._owned else None

    def acquire(self, *, briefly: bool = False) -> bool:
        """
        Take the lease, or keep one that could not be released. Also True if Redis is full and refuses the lease: the
        sweep continues without one. False if the key has another type. Raises redis.RedisError.

        `briefly`: for a job that will end soon. The lease first gets the TTL `linger`, so `leave_to_lapse` needs no
        command at the end. While the lease still lingers, no command is needed now either.
        """
        now = time.monotonic()
        if briefly and self._left and now - self._lingers_from < KEPT * self._linger_ms / 1000:
            return self._owned
        self._lingers_from, self._left = now if briefly else -math.inf, False
        ttl_ms = self._linger_ms if briefly else self._ttl_ms
        try:
            # This process's own lease may expire between the first two.
            self._owned = self._take(ttl_ms) or self._extend(ttl_ms) or self._take(ttl_ms)
        except redis.ResponseError as error:
            if is_wrong_type(error):
                self._owned = False
                return False
            if not is_full(error):
                raise
            self._owned = self._extend(ttl_ms)
            return True
        return self._owned

    def hold(self) -> Operation[bool]:
        """
        Take or renew the lease, in a round trip that others share. Call it while the job makes progress. Returns
        whether the lease is held; raises redis.RedisError. If Redis is full, a free lease cannot be taken.
        """
        taken, renewed = yield [
            Request(("SET", self._key, self._token, "NX", "PX", self._ttl_ms)),
            Request.of(self._renew, Call([self._key], [self._token, self._ttl_ms])),
        ]
        for reply in (taken, renewed):
            if isinstance(reply, Exception) and not is_full(reply):
                raise reply
        return int(renewed) > 0

    @property
    def holder_ttl(self) -> timedelta:
        """The TTL of another process's lease, as stored by that process; else this process's TTL."""
        return timedelta(milliseconds=self._others_ttl_ms)

    def adopt(self, before: "Lease") -> None:
        """Continue the lease of the daemon before a reload, unless the TTL has changed."""
        if before._ttl_ms != self._ttl_ms:
            return
        self._token, self._owned = before._token, before._owned
        self._lingers_from, self._left = before._lingers_from, before._left
        before._left = False

    def close(self) -> None:
        """Release a lease that was left to lapse, unless another daemon has adopted it."""
        if self._left:
            self._left = False
            with contextlib.suppress(redis.RedisError):  # the lease expires by itself
                self.release()

    def is_of_another(self, token: bytes | None) -> bool:
        return token is not None and token != self._token.encode()

    def leave_to_lapse(self) -> None:
        """Keep the lease at the end of the running job. Only with `linger`."""
        self._left = self._owned

    def runs_out(self) -> bool:
        """Whether the key has a TTL, so that the lease expires by itself. Raises redis.RedisError."""
        return int(self._client.pttl(self._key)) >= 0

    @contextlib.contextmanager
    def kept(self) -> Iterator[threading.Event]:
        """
        Renew the acquired lease while the block runs and makes progress, then release it. Yields an event that is set
        when the lease is lost.

        A separate thread renews, so that no round trip of the job is too long for the lease.
        """
        lost, ended = threading.Event(), threading.Event()
        self._left = False
        if not self._owned:
            yield lost  # Redis is full: there is no lease to renew or lose
            return
        with working() as job:
            renewals = threading.Thread(target=self._keep, args=(job, lost, ended), name=self._name, daemon=True)
            try:
                renewals.start()
            except RuntimeError:
                # The system is out of threads. Another replica may have some.
                with contextlib.suppress(redis.RedisError):
                    self.release()
                raise
            try:
                yield lost
            finally:
                self._end(renewals, lost, ended)

    def release(self) -> bool:
        """Release the lease. Returns True if it was still held. Raises redis.RedisError."""
        return bool(self._release.run(self._client, Call([self._key], [self._token])))

    def _end(self, renewals: threading.Thread, lost: threading.Event, ended: threading.Event) -> None:
        ended.set()
        renewals.join(LAST_RENEWAL)
        self._left = self._left and not lost.is_set()
        # A lease that cannot be released expires by itself.
        with contextlib.suppress(redis.RedisError):
            if not lost.is_set() and not self._let_go():
                self._on_lost()

    def _keep(self, job: Progress, lost: threading.Event, ended: threading.Event) -> None:
        brief = self._lingers_from > -math.inf
        wait = self._linger_ms / 3000 if brief else self._ttl / 3
        vouched = -math.inf
        while not ended.wait(wait):
            wait = self._ttl / 10  # leaves time for a few retries
            moved_at = job.moved_at
            if moved_at == vouched:
                continue  # the job hangs
            left_ms = max(1, int(self._ttl_ms - 1000 * (time.monotonic() - moved_at)))
            try:
                # If the brief lease has expired by now, this process takes it again unless another was faster.
                kept = self._extend(left_ms) or (brief and self._take(left_ms))
            except redis.RedisError:
                continue
            vouched, brief, self._lingers_from, wait = moved_at, False, -math.inf, self._ttl / 3
            # A reply after the end may be about a released lease.
            if not kept and not ended.is_set():
                lost.set()
                self._on_lost()
                return

    def _let_go(self) -> bool:
        """Release the lease, or leave it to lapse. Returns True if it was still held, as far as is known."""
        if not self._left:
            return self.release()
        if self._lingers_from > -math.inf:
            return True
        self._lingers_from = time.monotonic()
        return self._extend(self._linger_ms)

    def _take(self, ttl_ms: int) -> bool:
        """Take the lease if it is free. Returns True if taken."""
        return bool(self._client.set(self._key, self._token, nx=True, px=ttl_ms))

    def _extend(self, ttl_ms: int) -> bool:
        """Renew the lease for `ttl_ms` if it is still held. Returns True if held."""
        reply = int(self._renew.run(self._client, Call([self._key], [self._token, ttl_ms])))
        self._others_ttl_ms = -reply if reply < 0 else self._ttl_ms
        return reply > 0
