"""
Connects a shard to one server, to the primary that Sentinel names, or to the owner of a slot in a Cluster.

All keys of a shard are in one slot, so the client of a slot is simpler than a client of a whole Cluster, and more
exact. It connects to the owner of the slot, and looks the owner up again when a connection fails or a node names
another one. It resends a command only if a node has refused it (MOVED, ASK), so every command runs once. redis-py's
own RedisCluster also resends commands after a failed connection, when they may already have run.

While a slot migrates from one node to another, key by key, its keys are in two places. A command on one key runs on the
key's node. When a script's keys are on both nodes, Redis refuses the script with TRYAGAIN, or with ASK to redirect it
to the other node. We follow ASK only for scripts on a single key. After ASKING, a key that hasn't arrived yet looks
missing. expire.lua looks up the budgets itself: it would take such budgets for missing, and never release their
reserved amounts. Such a script therefore waits until the slot has migrated.
"""

import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import redis
import redis.asyncio.connection
import redis.asyncio.sentinel
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.connection import Connection, PythonRespSerializer, SSLConnection
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from sweeperd.redis_url import DRIVER, Address, Node, Topology

#: How many times one command is redirected before it is left to the next tick.
REDIRECTS = 5
_SCRIPTS = ("EVAL", "EVALSHA")
#: A node that no longer owns the slot still answers TIME, but refuses this script.
TIME_SCRIPT = "return redis.call('TIME')"


def client_options(*, connect_timeout: float, socket_timeout: float, connections: int) -> dict[str, Any]:
    """
    The options of both clients, as redis-py names them. A client opens connections on demand, up to `connections`; one
    more connection is an error. `max_connections` of the URL overrides `connections`.
    """
    return {
        "protocol": 2,
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": connect_timeout,
        "client_name": "sweeperd",
        "max_connections": connections,
        **DRIVER,
    }


def interruptible() -> dict[str, Any]:
    """
    The option of a client whose calls a signal handler may interrupt with an exception. It packs requests in Python,
    because an exception inside hiredis' `pack_command` sometimes crashes the process. Packing in Python adds 9 µs to a
    reserve with four scopes, 3 % of its CPU time.
    """
    return {"command_packer": PythonRespSerializer(6000, redis.ConnectionPool().get_encoder().encode)}


def connect(
    address: Address, url: str, key: bytes, options: Mapping[str, Any], on_connect: Callable[[Any], None]
) -> redis.Redis:
    """The client of a shard, of which `key` is any key. `on_connect` replaces that of each connection and calls it."""
    ours: dict[str, Any] = {**options, "retry": Retry(NoBackoff(), 0), "redis_connect_func": on_connect}
    given = _given(address.options, options)
    kind = SSLConnection if address.tls else Connection
    if address.topology is Topology.SENTINEL:
        sentinels: Any = _Sentinels([])  # type: ignore[no-untyped-call]
        asking = {"connection_class": kind, **ours, "credential_provider": None, **address.sentinel_options}
        sentinels.sentinels = [redis.Redis.from_pool(_Pool(host=h, port=p, **asking)) for h, p in address.nodes]
        client: redis.Redis = sentinels.master_for(
            address.service, connection_pool_class=_SentinelPool, ssl=address.tls, **ours | given
        )
        return client
    if address.topology is Topology.CLUSTER:
        return ClusterClient.at(SlotOwner(address.nodes, key, kind, ours | given))
    return redis.Redis.from_pool(_Pool(**ours | _given(redis.connection.parse_url(url), options)))


def connect_async(
    address: Address, url: str, options: Mapping[str, Any], on_connect: Callable[[Any], Awaitable[None]]
) -> "AsyncRedis":
    """The same for asyncio; `on_connect` is a coroutine function. Raises ValueError for a Cluster."""
    ours: dict[str, Any] = {**options, "retry": AsyncRetry(NoBackoff(), 0), "redis_connect_func": on_connect}
    given = _given(address.options, options)
    if address.topology is Topology.CLUSTER:
        raise ValueError("a Cluster needs the Ledger without asyncio")
    if address.topology is Topology.SENTINEL:
        kind = redis.asyncio.connection.SSLConnection if address.tls else redis.asyncio.connection.Connection
        sentinels: Any = _AsyncSentinels([])  # type: ignore[no-untyped-call]
        asking = {"connection_class": kind, **ours, "credential_provider": None, **address.sentinel_options}
        sentinels.sentinels = [AsyncRedis.from_pool(_AsyncPool(host=h, port=p, **asking)) for h, p in address.nodes]
        client: AsyncRedis = sentinels.master_for(
            address.service, connection_pool_class=_AsyncSentinelPool, ssl=address.tls, **ours | given
        )
        return client
    return AsyncRedis.from_pool(_AsyncPool(**ours | _given(redis.asyncio.connection.parse_url(url), options)))


def _given(of_url: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The URL's options, without user and password if a provider has them."""
    replaced = ("username", "password") if options.get("credential_provider") else ()
    return {name: value for name, value in of_url.items() if name not in replaced}


def sentinels_of(client: "redis.Redis | AsyncRedis") -> list[Any]:
    """The clients of the sentinels that this client queries for the primary. The caller has to close them."""
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return [] if manager is None else list(manager.sentinels)


def _entered(connection: Any) -> Any:
    """Note on a pooled connection which exception its user is already handling."""
    connection.handled_before = id(sys.exc_info()[1])
    return connection


def _was_interrupted(connection: Any) -> bool:
    """Whether the use of the connection ended in an exception that is no reply: it may have unread replies."""
    before, connection.handled_before = getattr(connection, "handled_before", id(None)), id(None)
    error = sys.exc_info()[1]
    return id(error) != before and error is not None and not isinstance(error, redis.ResponseError)


def _has_old_login(connection: Any) -> bool:
    """Whether the connection should authenticate anew, because its credentials have ended or are about to."""
    login = getattr(connection, "login", None)
    return login is not None and connection.credential_provider.differ(login)


class _Interruptible:
    """A pool that closes connections whose use was interrupted."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """A connection without unread replies, with the present credentials."""
        connection = super().get_connection(*args, **options)  # type: ignore[misc]
        if _has_old_login(connection):
            try:
                connection.disconnect()
                connection.connect()
            except BaseException:
                super().release(connection)  # type: ignore[misc]
                raise
        return _entered(connection)

    def release(self, connection: Any) -> None:
        if _was_interrupted(connection):
            connection.disconnect()
        super().release(connection)  # type: ignore[misc]


class _AsyncInterruptible:
    """The same for asyncio."""

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        """A connection without unread replies, with the present credentials."""
        connection = await super().get_connection(*args, **options)  # type: ignore[misc]
        if _has_old_login(connection):
            try:
                await connection.disconnect()
                await connection.connect()
            except BaseException:
                await super().release(connection)  # type: ignore[misc]
                raise
        return _entered(connection)

    async def release(self, connection: Any) -> None:
        if _was_interrupted(connection):
            await connection.disconnect(nowait=True)
        await super().release(connection)  # type: ignore[misc]


class _Pool(_Interruptible, redis.ConnectionPool):
    pass


class _SentinelPool(_Interruptible, SentinelConnectionPool):
    pass


class _AsyncPool(_AsyncInterruptible, redis.asyncio.connection.ConnectionPool):
    pass


class _AsyncSentinelPool(_AsyncInterruptible, redis.asyncio.sentinel.SentinelConnectionPool):
    pass


class _Search:
    """Queries the sentinels one by one, the last successful one first, and raises readable errors."""

    sentinels: list[Any]

    async def _search(self, service_name: str) -> tuple[str, int]:
        problems = []
        for sentinel in list(self.sentinels):
            place = sentinel.connection_pool.connection_kwargs
            try:
                masters = sentinel.sentinel_masters()
                state = (await masters if inspect.isawaitable(masters) else masters).get(service_name)
            except redis.RedisError as error:
                problems.append(f"{place['host']}:{place['port']}: {error}")
                continue
            if state is None:
                problems.append(f"{place['host']}:{place['port']} does not know it")
            elif not self.check_master_state(state, service_name):  # type: ignore[attr-defined]
                problems.append(f"{place['host']}:{place['port']} reports it as down")
            else:
                self.sentinels = [sentinel, *(other for other in self.sentinels if other is not sentinel)]
                return state["ip"], state["port"]
        raise MasterNotFoundError(f"no sentinel names a primary of {service_name}: {'; '.join(problems)}")


class _Sentinels(_Search, Sentinel):
    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            self._search(service_name).send(None)  # runs to its end, because blocking clients never suspend it
        except StopIteration as found:
            host, port = found.value
            return host, port
        raise AssertionError


class _AsyncSentinels(_Search, redis.asyncio.sentinel.Sentinel):
    async def discover_master(self, service_name: str) -> tuple[str, int]:
        return await self._search(service_name)


class SlotOwner:
    """The owner of the prefix's slot: looked up if unknown, and cached until a node names another."""

    def __init__(
        self, seeds: Sequence[Node], key: bytes, connection_class: type[Connection], options: Mapping[str, Any]
    ) -> None:
        #: Any name in the slot: all keys of the shard have the same hash tag in their prefix.
        self.key = key
        self.slot = key_slot(self.key)
        self.connection_class = connection_class
        self.options = dict(options)
        self._seeds = list(seeds)
        #: The nodes to query, in this order.
        self._nodes = list(seeds)
        self._owner: Node | None = None
        self._lock = threading.Lock()

    def find(self) -> Node:
        """The owner. Raises redis.ConnectionError or redis.TimeoutError if no node names the owner."""
        with self._lock:
            known, nodes = self._owner, list(self._nodes)
        return known or self._ask(nodes)

    def moved(self, error: MovedError, asked: Node) -> None:
        with self._lock:
            # Without a host the error means the queried node.
            self._owner = (error.host or asked[0], error.port)

    def doubt(self, node: Node) -> None:
        """This node doesn't respond or cannot serve the slot: look the owner up again, from another node first."""
        with self._lock:
            if self._owner == node:
                self._owner = None
            self._nodes = [*self._nodes[1:], *self._nodes[:1]]
            self._nodes.sort(key=lambda other: other == node)

    def client(self, node: Node) -> redis.Redis:
        """A short-lived client to one node."""
        host, port = node
        pool = _Pool(connection_class=self.connection_class, host=host, port=port, **self.options)
        return redis.Redis.from_pool(pool)

    def _ask(self, nodes: Sequence[Node]) -> Node:
        problems = []
        for node in nodes:
            try:
                with self.client(node) as client:
                    # As two words, so that redis-py returns the raw reply.
                    rows = client.execute_command("CLUSTER", "SLOTS")
            except redis.RedisError as error:
                problems.append(f"{node[0]}:{node[1]}: {error}")
                continue
            owner = None
            others: list[Node] = []
            for first, last, *members in rows:
                there = [(_host(member[0]) or node[0], int(member[1])) for member in members]
                others += there
                if first <= self.slot <= last and there:
                    owner = there[0]
            if owner is None:
                problems.append(f"{node[0]}:{node[1]} knows of no owner of slot {self.slot}")
                continue
            with self._lock:
                # The seeds stay, because all other nodes of a Cluster may be replaced over time.
                self._nodes = list(dict.fromkeys([node, *others, *self._seeds]))
                self._owner = owner
            return owner
        raise redis.ConnectionError(
            f"no node of the cluster knows the owner of slot {self.slot}: {'; '.join(problems)}"
        )


class _ToOwner:
    """A connection to the node that owns the slot when it connects."""

    def __init__(self, slot: SlotOwner, **options: Any) -> None:
        self._slot = slot
        super().__init__(**options)

    def connect(self) -> None:
        """Connect unless already connected."""
        if not getattr(self, "_sock", None):  # redis-py 6 offers no other way to find out
            self.host, self.port = self._slot.find()
        try:
            super().connect()  # type: ignore[misc]
        except (redis.ConnectionError, redis.TimeoutError):
            self._slot.doubt((self.host, self.port))
            raise


class ClusterClient(redis.Redis):
    """A client of the slot's owner. Sends every command, alone or in a pipeline, in a ClusterPipeline."""

    slot: SlotOwner

    @classmethod
    def at(cls, slot: SlotOwner) -> "ClusterClient":
        to_owner: Any = type("ConnectionToOwner", (_ToOwner, slot.connection_class), {})
        client = cls.from_pool(_Pool(connection_class=to_owner, slot=slot, **slot.options))
        assert isinstance(client, ClusterClient)  # noqa: S101 - for the type checker
        client.slot = slot
        return client

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "ClusterPipeline":
        """A pipeline that sends its commands to the slot's node one by one, without a transaction."""
        if transaction:
            raise NotImplementedError("a redirected part of a transaction cannot be sent again")
        return ClusterPipeline(self, shard_hint)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        pipeline = self.pipeline(transaction=False)
        pipeline.pipeline_execute_command(*args, **options)
        reply = pipeline.execute(raise_on_error=False)[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def time(self) -> tuple[int, int]:  # type: ignore[override]
        """TIME of the node that owns the slot."""
        seconds, micros = self.execute_command("EVAL", TIME_SCRIPT, 1, self.slot.key)
        return int(seconds), int(micros)


class ClusterPipeline(Pipeline):
    """Redirects commands that a node refused because the slot is elsewhere. Such a command hasn't run yet."""

    def __init__(self, client: ClusterClient, shard_hint: str | None = None) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, False, shard_hint)
        self._slot = client.slot

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run all commands. Raises redis.RedisError if a connection fails; any number of them may then have run."""
        commands = list(self.command_stack)
        replies = self._run(commands)
        for _ in range(REDIRECTS):
            wanted = _redirected(commands, replies)
            if not wanted:
                break
            again = [commands[position] for position in wanted]
            asked = [reply for position in wanted if isinstance(reply := replies[position], AskError)]
            if any(isinstance(reply, MovedError) for reply in asked):
                answers = self._run(again)
            else:
                answers = self._ask((asked[0].host or self._slot.find()[0], asked[0].port), again)
            for position, answer in zip(wanted, answers, strict=True):
                replies[position] = answer
        replies = [_settled(command, reply) for command, reply in zip(commands, replies, strict=True)]
        if raise_on_error:
            self.raise_first_error(commands, replies)  # type: ignore[no-untyped-call]
        return replies

    def _run(self, commands: Sequence[Any]) -> list[Any]:
        """Send to the owner, and update the owner from the replies."""
        self.command_stack = list(commands)
        asked = self._slot.find()
        replies = super().execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, MovedError):
                self._slot.moved(reply, asked)
            elif isinstance(reply, ClusterDownError):
                self._slot.doubt(asked)
            else:
                continue
            # Connections of other threads get the same reply to their next command.
            self.connection_pool.disconnect(inuse_connections=False)
            break
        return replies

    def _ask(self, node: Node, commands: Sequence[Any]) -> list[Any]:
        """Send to the node that the slot migrates to. ASKING lets that node serve the next command."""
        with self._slot.client(node) as client:
            client.response_callbacks.update(self.response_callbacks)
            pipeline = client.pipeline(transaction=False)
            for args, options in commands:
                pipeline.execute_command("ASKING")
                pipeline.execute_command(*args, **options)
            return list(pipeline.execute(raise_on_error=False))[1::2]


def _redirected(commands: Sequence[Any], replies: Sequence[Any]) -> list[int]:
    """The positions of the commands to resend, with their WAIT, which covers the writes on its own connection only."""
    wanted: list[int] = []
    for position, ((args, _), reply) in enumerate(zip(commands, replies, strict=True)):
        redirected = isinstance(reply, MovedError) or (isinstance(reply, AskError) and _may_ask(args))
        if redirected or (wanted and args[0] == "WAIT"):
            wanted.append(position)
    return wanted


def _may_ask(args: Sequence[Any]) -> bool:
    return args[0] not in _SCRIPTS or args[2] == 1


def _settled(command: Any, reply: Any) -> Any:
    """Turns a redirection that was not followed into temporary server trouble."""
    if isinstance(reply, AskError):
        args, _ = command
        why = "its slot keeps moving" if _may_ask(args) else "it waits until its slot has moved"
        return TryAgainError(f"{args[0]}: {why}: slot {reply.slot_id}, {reply.host}:{reply.port}")
    return reply


def _host(told: bytes | str | None) -> str:
    """The host that a node reports; empty if the node doesn't know its own name (none, `?` or empty text)."""
    host = told.decode() if isinstance(told, bytes) else told or ""
    return "" if host == "?" else host
