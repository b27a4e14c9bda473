"""
New events are noticed after a fail-over and while a slot moves. The reader's own look at the stream comes once an hour
here, so each of them is delivered only if the watcher tells of it.
"""

import threading
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from sweeperd.config import RedisSettings
from sweeperd.context import Timing
from sweeperd.store import Shard
from tests.support.deliveries import EVENTS, RARELY, endpoints, expire, running
from tests.support.harness import eventually
from tests.support.proxy import Proxy
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import Binary, Server
from tests.topology.servers import cluster, moved_step_by_step, sentinels

PREFIX = "{tenant-a}:"
QUICK: dict[str, Any] = {"block": 0.2, "recovery_pause": 0.2, **RARELY}


def shard_at(url: str, prefix: str = "") -> Shard:
    settings = {"url": url, "socket_timeout": "1s", "connect_timeout": "1s"}
    return Shard(RedisSettings.model_validate(settings), prefix)


def arrives(receiver: Receiver, name: str, limit: float = 20.0) -> None:
    """Wait until the event of this reservation is delivered."""
    receiver.wait_for(lambda requests: any(of(request) == name for request in requests), limit)


def of(request: Request) -> str:
    return str(request.event["data"]["reservation_id"])


def test_the_stream_of_a_promoted_replica_ends_before_the_cursor(topology_binary: Binary) -> None:
    with sentinels(topology_binary) as there, Receiver() as receiver:
        with running(shard_at(there.url("default")), endpoints(receiver.url, 1), **QUICK):
            with there.client() as client:
                (kept,) = expire(client, "kept")
                arrives(receiver, "kept")
                eventually(lambda: client.xpending(EVENTS, "e0")["pending"] == 0)
                assert client.wait(2, 5000) == 2
                there.cut_replication()
                expire(client, "lost")
                arrives(receiver, "lost")
            there.fail_over()
            with there.client() as client:
                assert client.xinfo_stream(EVENTS)["last-generated-id"] == kept
                milliseconds, number = kept.split(b"-")
                client.xadd(EVENTS, {"id": "earlier", "tenant": "acme"}, id=b"%b-%d" % (milliseconds, int(number) + 1))
                arrives(receiver, "earlier")
                expire(client, "later")
                arrives(receiver, "later")


@pytest.mark.slow
def test_a_demoted_primary_that_keeps_its_connections_is_watched_no_longer(
    redis_binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers XREAD, and replicates from nobody. The watcher may still find it when the reader has lost it."""
    ended = threading.Event()

    def behaviour(request: Request, _number: int) -> Answer:
        if of(request) == "slow":
            ended.wait(60)
        return Answer()

    with ExitStack() as stack:
        old, new = (stack.enter_context(Server(redis_binary)) for _ in range(2))
        before, after = (stack.enter_context(redis.Redis(port=server.port)) for server in (old, new))
        proxy, receiver = stack.enter_context(Proxy(old.port)), stack.enter_context(Receiver(behaviour))
        after.replicaof("127.0.0.1", str(old.port))
        eventually(lambda: before.info("replication")["connected_slaves"] == 1)
        timing = QUICK | {"heartbeat_every": 0.5}
        made = stack.enter_context(running(shard_at(proxy.url), endpoints(receiver.url, 1), **timing))
        stack.callback(ended.set)
        # Time for the watcher to connect again before the reader does.
        made.dispatcher._engine._reader._timing = Timing(recovery_pause=3)
        expire(before, "slow")  # while it is in hand, each heartbeat is a write
        arrives(receiver, "slow")
        eventually(lambda: before.wait(1, 1000) == 1)
        eventually(lambda: "cmdstat_xread" in before.info("commandstats"))  # so it is watched
        after.replicaof("NO", "ONE")
        before.replicaof("127.0.0.1", "1")
        eventually(lambda: "delivery waits for redis" in caplog.messages)
        watched = before.info("commandstats")["cmdstat_xread"]["calls"]
        eventually(lambda: before.info("commandstats")["cmdstat_xread"]["calls"] > watched + 2)
        proxy.target = new.port
        for name in ("a", "b"):
            expire(after, name)
            arrives(receiver, name)


@pytest.mark.slow
def test_the_stream_is_watched_while_its_slot_moves(topology_binary: Binary) -> None:
    with cluster(topology_binary) as there, Receiver() as receiver:
        source, target = there.owner(PREFIX), there.other_primary(PREFIX)
        with running(shard_at(there.url, PREFIX), endpoints(receiver.url, 1), **QUICK):
            writer = shard_at(there.url, PREFIX)
            for number, step in enumerate(["before", *moved_step_by_step(there, PREFIX, target), "after"]):
                writer.client.xadd(writer.keys.events, {"id": f"{number} {step}", "tenant": "acme"})
                arrives(receiver, f"{number} {step}")
            writer.close()
        assert there.owner(PREFIX) is target is not source
