"""Connects to one shard: its server, its keys, and its clock, which makes every decision about time."""

import asyncio
import contextlib
import copy
import time
from collections.abc import Iterator
from typing import Any

import redis
import redis.asyncio

from sweeperd import redis_url
from sweeperd.config import DEFAULT_SHARD, RedisSettings, Settings
from sweeperd.config.types import current_url
from sweeperd.errors import RedisUnavailable
from sweeperd.store.connect import client_options, connect, connect_async, interruptible, sentinels_of
from sweeperd.store.credentials import Credentials
from sweeperd.store.errors import describe, is_demoted, is_refused, is_server_trouble
from sweeperd.store.keys import Keys
from sweeperd.store.memory import ServerMemory
from sweeperd.store.scripts import Command, accepted, micros_of, run_commands, server_clock

#: Connections for everything except senders: sweeps, leases, reader, maintenance, walks, the status page.
SPARE_CONNECTIONS = 20


class Clock:
    """Redis's clock: the last TIME plus the monotonic time since. The host's wall clock is never used."""

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def set(self, now_ms: int) -> None:
        """Take a reading of the server's TIME, in ms."""
        self._offset_ms = now_ms - time.monotonic() * 1000

    def now_ms(self) -> int:
        """Milliseconds since the epoch. Raises RedisUnavailable before the first reading."""
        if self._offset_ms is None:
            raise RedisUnavailable("the server's clock has not been read yet")
        return int(self._offset_ms + time.monotonic() * 1000)


class Shard:
    """
    One Redis: its client, its keys, its clock, its memory.

    The client never retries. The next tick is the retry, and a command that is silently sent twice would make the
    counts wrong.
    """

    def __init__(
        self,
        settings: RedisSettings,
        prefix: str = "",
        name: str = DEFAULT_SHARD,
        connections: int = 100,
        interrupted: bool = False,
    ) -> None:
        """`connections`: for how many threads. `interrupted`: signal handlers may raise in calls of `client`."""
        self.name = name
        self.keys = Keys(prefix)
        self.clock = Clock()
        self.memory = ServerMemory()
        self.socket_timeout = settings.socket_timeout.total_seconds()
        #: How long a command may take, including a new connection and another command before it, seconds.
        self.patience = 2 * (settings.connect_timeout.total_seconds() + self.socket_timeout)
        self._url = current_url(settings.url)
        self._place = redis_url.parse(self._url)
        credentials = Credentials(settings)
        self.address = self._place.shown
        #: Whether the server refused the password at the last attempt to connect.
        self.password_refused = False
        #: How many connections have been opened so far.
        self.opened = 0
        self._options = client_options(
            connect_timeout=settings.connect_timeout.total_seconds(),
            socket_timeout=self.socket_timeout,
            connections=connections,
        ) | ({"credential_provider": credentials} if credentials.needed else {})
        self._own_options = interruptible() if interrupted else {}
        self.client = self._connect()

    def twin(self) -> "Shard":
        """The same shard with its own client, so that neither waits for a connection of the other."""
        twin = copy.copy(self)
        twin.opened = 0
        twin.client = twin._connect()
        return twin

    def async_client(self) -> "redis.asyncio.Redis":
        """A client for asyncio, which the caller closes. Raises ValueError for a Cluster."""
        return connect_async(self._place, self._url, self._options, self._connected_async)

    @property
    def origin(self) -> bytes:
        """
        Distinguishes reservations of the same id on several shards, as a part of each event's id. Leaves out the name
        of the default shard, so that the first of several shards keeps its event ids under that name.
        """
        return self.keys.prefix if self.name == DEFAULT_SHARD else self.name.encode() + b"\0" + self.keys.prefix

    def _connect(self) -> redis.Redis:
        options = self._options | self._own_options
        return connect(self._place, self._url, self.keys.reservation_index, options, self._connected)

    def _connected(self, connection: Any) -> None:
        credentials = connection.credential_provider  # None for a sentinel
        login, runs = (credentials.get_credentials(), credentials.runs) if credentials else (None, {})
        try:
            with self._handshake():
                connection.on_connect()
        except redis.AuthenticationError:
            if credentials is None or not credentials.refuse(runs):
                raise
            login = credentials.get_credentials()
            with self._handshake():
                connection.on_connect()
        _has_logged_in(connection, login)

    async def _connected_async(self, connection: Any) -> None:
        credentials = connection.credential_provider  # None for a sentinel
        login, runs = (await credentials.get_credentials_async(), credentials.runs) if credentials else (None, {})
        try:
            with self._handshake():
                await connection.on_connect()
        except redis.AuthenticationError:
            if credentials is None or not await asyncio.to_thread(credentials.refuse, runs):
                raise
            login = await credentials.get_credentials_async()
            with self._handshake():
                await connection.on_connect()
        _has_logged_in(connection, login)

    @contextlib.contextmanager
    def _handshake(self) -> Iterator[None]:
        try:
            yield
        except redis.AuthenticationError:
            self.password_refused = True
            raise
        except redis.ResponseError as error:
            known, arguments, _ = str(error).partition(", with args beginning with")
            if not arguments:
                raise
            # The error of a server without AUTH repeats the password.
            raise redis.AuthenticationError(known) from None
        self.password_refused = False
        self.opened += 1

    def read_clock(self) -> int:
        """The server's TIME in ms since the epoch; also sets `clock`. Raises redis.RedisError."""
        seconds, micros = self.client.time()
        now = seconds * 1000 + micros // 1000
        self.clock.set(now)
        return now

    def read_with_clock(self, *reads: Command) -> tuple[int, list[Any]]:
        """Like `read_clock`, with these commands in the same round trip, and their replies. Raises redis.RedisError."""
        time_reply, *replies = accepted(run_commands(self.client, [server_clock(self.client), *reads]))
        now = (micros_of(time_reply) or 0) // 1000
        self.clock.set(now)
        return now, replies

    @contextlib.contextmanager
    def reaching(self) -> Iterator[None]:
        """Turn server trouble and missing rights into RedisUnavailable. Other errors are bugs, and stay unchanged."""
        try:
            yield
        except redis.RedisError as error:
            if (unavailable := self.unavailable(error)) is None:
                raise
            raise unavailable from error

    def unavailable(self, error: Exception) -> RedisUnavailable | None:
        """The error for server trouble or a missing right; None for other errors."""
        if not is_server_trouble(error) and not is_refused(error):
            return None
        self.forget_connections_if_demoted(error)
        return RedisUnavailable(f"{self.address}: {describe(error)}")

    def forget_connections_if_demoted(self, error: Any) -> None:
        """
        READONLY means that this server was a primary and is now a replica. The connection is healthy and would fail
        forever, so it is dropped, and the next connection looks up the primary again.
        """
        if is_demoted(error):
            self.client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        for client in (self.client, *sentinels_of(self.client)):
            client.close()


def _has_logged_in(connection: Any, login: Any) -> None:
    if connection.credential_provider:
        connection.login = login
        connection.credential_provider.accept()


def open_shards(settings: Settings) -> list[Shard]:
    """All shards of these settings. They connect on first use."""
    return [
        Shard(settings.redis.model_copy(update={"url": shard.url}), shard.prefix, shard.name, _connections(settings))
        for shard in settings.all_shards
    ]


def files_needed(settings: Settings) -> int:
    """The most files, including sockets, that a daemon with these settings has open at the same time."""
    webhooks = settings.webhooks
    # Each endpoint of a shard keeps a connection open between requests. The HTTP server and Python need the rest.
    of_shard = _connections(settings) + 2 * webhooks.concurrency + len(webhooks.endpoints)
    return len(settings.all_shards) * of_shard + 200


def _connections(settings: Settings) -> int:
    """
    The most connections of one client. A sender needs one only while it saves the state of its endpoint or relays. If
    all endpoints rest at once, these are as many senders as the pool allows.
    """
    webhooks = settings.webhooks
    return 2 * webhooks.concurrency + len(webhooks.endpoints) + 2 * len(settings.kinds) + SPARE_CONNECTIONS
