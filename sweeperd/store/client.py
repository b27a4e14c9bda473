"""
A shard's client: to one server, to the primary that Sentinel names, or to the owner of the prefix's slot in a Cluster.

None of them retries a command or waits: the next tick is the retry, and a command that was sent twice in silence would
make the counts lie. redis-py retries by default, its questions to the sentinels too, so each is told not to.
"""

from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from sweeperd.redis_url import Address, Topology
from sweeperd.store.cluster import ClusterClient, SlotOwner


def connect(
    address: Address,
    url: str,
    key: bytes,
    *,
    connect_timeout: float,
    socket_timeout: float,
    connections: int = 100,
    on_connect: Callable[[Any], None] | None = None,
) -> redis.Redis:
    """
    The client of a shard, of which `key` is any key: it says which slot of a Cluster. It opens a connection when one is
    needed, and has at most `connections` of them; one more is an error. `max_connections` in the URL overrides that.
    `on_connect` gets each connection that is opened, in place of its own `on_connect`, which it must call.
    """
    ours: dict[str, Any] = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": connect_timeout,
        "client_name": "sweeperd",
        "max_connections": connections,
        "redis_connect_func": on_connect,
    }
    if address.topology is Topology.SENTINEL:
        ours["ssl"] = address.tls
        sentinels: Any = _Sentinels(address.nodes, sentinel_kwargs=ours | dict(address.sentinel_options))  # type: ignore[no-untyped-call]
        client: redis.Redis = sentinels.master_for(address.service, **ours | dict(address.options))
        return client
    if address.topology is Topology.CLUSTER:
        kind = SSLConnection if address.tls else Connection
        return ClusterClient.at(SlotOwner(address.nodes, key, kind, ours | dict(address.options)))
    return redis.Redis.from_url(url, **ours)


class _Sentinels(Sentinel):
    """The sentinels. One that refuses to answer is passed over, and the errors are fit to be read."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Ask them in turn for the primary, the one that knew it last first. Raises redis.ConnectionError."""
        problems = []
        for sentinel in list(self.sentinels):
            place = sentinel.connection_pool.connection_kwargs
            try:
                masters: Any = sentinel.sentinel_masters()
            except redis.RedisError as error:
                problems.append(f"{place['host']}:{place['port']}: {error}")
                continue
            state = masters.get(service_name)
            if state is None:
                problems.append(f"{place['host']}:{place['port']} does not know it")
            elif not self.check_master_state(state, service_name):  # type: ignore[no-untyped-call]
                problems.append(f"{place['host']}:{place['port']} takes it for down")
            else:
                self.sentinels = [sentinel, *(other for other in self.sentinels if other is not sentinel)]
                return state["ip"], state["port"]
        raise MasterNotFoundError(f"no sentinel names a primary of {service_name}: {'; '.join(problems)}")
