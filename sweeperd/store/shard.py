"""One Redis with its key prefix: the connection, the names of the keys, the server's clock."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import redis
from redis.exceptions import (
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)

from sweeperd import redis_url
from sweeperd.config import DEFAULT_SHARD, RedisSettings, Settings
from sweeperd.errors import RedisUnavailable
from sweeperd.store.client import connect

#: A reply of one of these kinds is about the server, not about the command that it answers.
SERVER_TROUBLE = (
    redis.ConnectionError,
    redis.TimeoutError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    ReadOnlyError,
    TryAgainError,
)
#: The same, where redis-py has no class for it, or where the server wraps what a script met in another error: it became
#: a replica, lost its primary or too many replicas, or has given away the slot, or a part of it, to another node.
_TROUBLE_CODES = (
    "READONLY",
    "MASTERDOWN",
    "NOREPLICAS",
    "UNBLOCKED",
    "access a non local key in a cluster node",
    "while the cluster is down",
)
#: The user's rights do not suffice. Rights may end at some keys, so one entry that is refused says nothing of others.
REFUSED = (AuthorizationError, NoPermissionError)


class Keys:
    """Every key name, built from the prefix; no other module holds one."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix.encode()

    def reservation(self, reservation_id: bytes) -> bytes:
        """HASH: one reservation. The index holds the bare id, the name of the hash carries `res_`."""
        return self.prefix + b"reservation:res_" + reservation_id

    @property
    def reservation_index(self) -> bytes:
        """ZSET: bare reservation id -> expires_at, ms."""
        return self.prefix + b"reservation:ttl"

    @property
    def budget_stem(self) -> bytes:
        """What comes before `<scope>:<unit>` in the name of a budget's HASH."""
        return self.prefix + b"budget:"

    def budget(self, scope: bytes, unit: bytes) -> bytes:
        """HASH: one budget."""
        return self.budget_stem + scope + b":" + unit

    def idempotency(self, tenant: bytes, operation: str, key: bytes) -> bytes:
        """STRING: what the ledger answered to this operation under this idempotency key."""
        # Tenants and keys may hold colons. With the tenant's length told, no two of them run into one name.
        return self.prefix + b"idem:%b:%d:%b:%b" % (operation.encode(), len(tenant), tenant, key)

    @property
    def events(self) -> bytes:
        """STREAM: one entry for each expiry; the outbox."""
        return self.prefix + b"sweeperd:events"

    @property
    def dead_letters(self) -> bytes:
        """STREAM: deliveries that were given up on."""
        return self.prefix + b"sweeperd:dead-letters"

    @property
    def quarantine(self) -> bytes:
        """ZSET: bare id -> ms when it was set aside."""
        return self.prefix + b"sweeperd:quarantine"

    @property
    def endpoints(self) -> bytes:
        """HASH: endpoint name -> what all replicas must know of it, JSON."""
        return self.prefix + b"sweeperd:endpoints"

    @property
    def circuits(self) -> bytes:
        """HASH: endpoint name -> what the process whose circuit is open says of it, JSON."""
        return self.prefix + b"sweeperd:circuits"

    @property
    def ticks(self) -> bytes:
        """HASH: the last tick, by whom, and how much has expired in all."""
        return self.prefix + b"sweeperd:ticks"

    @property
    def reconcile(self) -> bytes:
        """HASH: `last`: when the daemon's last walk ended and what it counted, `report`: all that it told; JSON."""
        return self.prefix + b"sweeperd:reconcile"

    def lease(self, job: str) -> bytes:
        """STRING: the token of the process that does this job now."""
        return self.prefix + b"sweeperd:lease:" + job.encode()


class Clock:
    """
    Redis's clock, read between readings: the last TIME plus what the monotonic clock has counted since. The host's
    idea of the time takes no part in it.
    """

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def set(self, now_ms: int) -> None:
        """Take a reading of the server's TIME, in ms."""
        self._offset_ms = now_ms - time.monotonic() * 1000

    def now_ms(self) -> int:
        """Milliseconds since the epoch. Raises RuntimeError before the first reading."""
        if self._offset_ms is None:
            raise RuntimeError("the server's clock has not been read yet")
        return int(self._offset_ms + time.monotonic() * 1000)


class Shard:
    """
    One Redis: its client, its keys, its clock.

    The client neither retries nor waits: the next tick is the retry, and a command that was sent twice in silence would
    make the counts lie.
    """

    def __init__(self, settings: RedisSettings, prefix: str = "", name: str = DEFAULT_SHARD) -> None:
        self.name = name
        self.keys = Keys(prefix)
        self.clock = Clock()
        self.socket_timeout = settings.socket_timeout.total_seconds()
        url = settings.url.get_secret_value()
        place = redis_url.parse(url)
        self.address = place.shown
        self.client: redis.Redis = connect(
            place,
            url,
            prefix,
            connect_timeout=settings.connect_timeout.total_seconds(),
            socket_timeout=self.socket_timeout,
        )

    @property
    def origin(self) -> bytes:
        """
        What tells its reservations from those of the same id on other shards: it is part of each event's id. The
        default shard's name is no part of it, so that the first of several shards can go on as before under that name.
        """
        return self.keys.prefix if self.name == DEFAULT_SHARD else self.name.encode() + b"\0" + self.keys.prefix

    def read_clock(self) -> int:
        """The server's TIME in ms since the epoch; also sets `clock` by it. Raises redis.RedisError."""
        seconds, micros = self.client.time()
        now = seconds * 1000 + micros // 1000
        self.clock.set(now)
        return now

    @contextlib.contextmanager
    def reaching(self) -> Iterator[None]:
        """Turn the trouble that a Redis can be in into RedisUnavailable; what is a bug stays what it is."""
        try:
            yield
        except redis.RedisError as error:
            if not is_server_trouble(error) and not isinstance(error, REFUSED):
                raise
            self.forget_connections_if_demoted(error)
            raise RedisUnavailable(f"{self.address}: {describe(error)}") from error

    def forget_connections_if_demoted(self, error: Any) -> None:
        """
        READONLY means that this server was a primary and is a replica now. The connection is healthy and would go on
        failing for ever, so it is dropped, and the next one asks again who the primary is.
        """
        if "READONLY" in str(error) or isinstance(error, ReadOnlyError):
            self.client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close every connection."""
        self.client.close()


def open_shards(settings: Settings) -> list[Shard]:
    """All shards of these settings; nothing connects before it is used."""
    return [
        Shard(settings.redis.model_copy(update={"url": shard.url}), shard.prefix, shard.name)
        for shard in settings.all_shards
    ]


def is_server_trouble(error: Any) -> bool:
    """Whether this error is about the server as a whole. Redis 6.2 wraps what a script meets: `ERR ... -READONLY`."""
    return isinstance(error, SERVER_TROUBLE) or (
        isinstance(error, redis.ResponseError) and any(code in str(error) for code in _TROUBLE_CODES)
    )


def is_full(error: Any) -> bool:
    """Whether Redis refused the command because it is at maxmemory."""
    return isinstance(error, OutOfMemoryError) or (isinstance(error, redis.ResponseError) and "OOM" in str(error))


def describe(error: BaseException) -> str:
    """One line about an error of Redis."""
    return " ".join(str(error).split()) or type(error).__name__
