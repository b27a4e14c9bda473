"""A lease: which of several replicas does a job now. It saves work; correctness never rests on it."""

import secrets
import time

import redis

from sweeperd.lua import Call, Script
from sweeperd.shard import Shard, is_full

#: How long a lease outlives a holder that died, seconds.
TTL = 15.0


class Lease:
    """`sweeperd:lease:<job>`: held while the job runs, released when it ends."""

    def __init__(self, shard: Shard, job: str) -> None:
        self._client = shard.client
        self._key = shard.keys.lease(job)
        self._token = secrets.token_hex(8)
        self._renew = Script("lease_renew")
        self._release = Script("lease_release")
        self._renew_at = 0.0

    def acquire(self) -> bool:
        """
        Take the lease, or keep the one that could not be released. True too where Redis is full and refuses it: the
        sweep is what frees memory, so it goes on without. Raises redis.RedisError.
        """
        self._renew_at = time.monotonic() + TTL / 3
        try:
            return bool(self._client.set(self._key, self._token, nx=True, px=int(TTL * 1000))) or self._extend()
        except redis.ResponseError as error:
            if is_full(error):
                return True
            raise

    def renew(self) -> None:
        """Make it last, once a third of its time has gone; call it as often as you like. Raises redis.RedisError."""
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + TTL / 3
            self._extend()

    def release(self) -> None:
        """Let go of it, where it is still held. Raises redis.RedisError."""
        self._release.run(self._client, Call([self._key], [self._token]))

    def _extend(self) -> bool:
        return bool(self._renew.run(self._client, Call([self._key], [self._token, int(TTL * 1000)])))
