"""Starts what a soak needs: two Redis servers, three replicas, the receivers, and the file of settings."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import redis

from proof.soak.faults import BATCHES, FAILS, HANGS, MOVES, REPLICAS, SHARDS
from proof.soak.receivers import Behaviour, Inbox, Receiver, accepts, failing, hanging
from proof.soak.replicas import Replica
from sweeperd.config import RedisSettings
from sweeperd.ledger import Ledger
from sweeperd.store import Shard, streams
from tests.support.harness import environment
from tests.support.servers import Binary, Server
from tests.support.traffic.plan import BUDGETS, LEAN, TENANTS, UNIT

#: Redis answers after the file has reached the disk, so that nothing that was answered is lost when it is killed.
AOF = ("--appendonly", "yes", "--appendfsync", "always")
#: A file in memory outlives a killed process as one on disk does, and no slow disk keeps Redis busy.
MEMORY = Path("/dev/shm")
#: How many events one request to the endpoint BATCHES carries.
BATCH_SIZE = 10
#: The tenants whose events each endpoint is due. One that gets single events is due those of one tenant.
DUE = {BATCHES: (*TENANTS, LEAN), FAILS: TENANTS[:1], HANGS: TENANTS[1:2], MOVES: TENANTS[2:3]}
#: How many requests a replica has in flight at most.
CONCURRENCY = 32
#: Of the load's own connections, seconds.
TIMEOUT = "5s"

_SETTINGS = """\
shutdown_grace = "10s"

{shards}
[redis]
socket_timeout = "2s"

[sweep]
interval = "500ms"
lease_ttl = "3s"
batch_size = {batch_size}

[webhooks]
concurrency = {concurrency}
timeout = "2s"
attempts = 2
backoff_initial = "50ms"
redelivery_initial = "4s"
redelivery_max = "8s"
probe_max = "8s"

{endpoints}
[log]
format = "json"
"""
_SHARD = '[[shards]]\nname = "{name}"\nurl = "{url}"\n'
_ENDPOINT = """\
[[webhooks.endpoints]]
name = "{name}"
url = "{url}"
batch_size = {batch_size}
batch_wait = "200ms"
tenants = {tenants}
"""


class ShardStage:
    """One shard: its server, and the load's and the soak's own connections to it."""

    def __init__(self, name: str, binary: Binary) -> None:
        self.name = name
        self.server = Server(binary, AOF, MEMORY if os.access(MEMORY, os.W_OK) else None)
        settings = RedisSettings.model_validate({"url": self.server.url, "socket_timeout": TIMEOUT})
        self._shard = Shard(settings)
        self.keys = self._shard.keys
        self.ledger = Ledger(self._shard)
        self.client = redis.Redis.from_url(self.server.url, protocol=2, socket_timeout=5)

    def start(self) -> None:
        """Start the server and open its budgets."""
        self.server.start()
        for scope, allocated in BUDGETS.items():
            self.ledger.open_budget(scope, UNIT, allocated)

    def group(self, endpoint: str) -> Mapping[str, Any]:
        """The consumer group of an endpoint, as Redis describes it. Raises redis.RedisError."""
        return streams.groups(self.client, self.keys.events)[endpoint.encode()]

    @property
    def last_event(self) -> bytes:
        """The id of the event that was added last. Raises redis.RedisError."""
        return streams.last_id(self.client, self.keys.events)

    def close(self) -> None:
        """End the server."""
        self.client.close()
        self._shard.close()
        self.server.close()


class Stage:
    """Everything, by name. Threads may share it. Without a seed every receiver accepts."""

    def __init__(self, binary: Binary, seed: int | None, directory: Path) -> None:
        self.began = time.monotonic()
        self.shards = {name: ShardStage(name, binary) for name in SHARDS}
        self.inboxes = {name: Inbox() for name in (BATCHES, FAILS, HANGS, MOVES)}
        behaviours: dict[str, Behaviour] = dict.fromkeys(self.inboxes, accepts)
        if seed is not None:
            behaviours |= {FAILS: failing(seed), HANGS: hanging}
        self._receivers = {name: [Receiver(self.inboxes[name], behaviours[name], self.began)] for name in behaviours}
        self._writing = threading.Lock()
        self._batch_size = 1000
        self.settings = directory / "sweeperd.toml"
        self.write_settings()
        env = environment() | {"SWEEPERD_CONFIG": str(self.settings)}
        del env["SWEEPERD_REDIS__URL"]
        self.env = env
        self.replicas = {name: Replica(name, env, directory) for name in REPLICAS}

    def write_settings(self, batch_size: int | None = None) -> None:
        """Write the file that all replicas read when they start and at each reload, in one step."""
        with self._writing:
            self._batch_size = batch_size or self._batch_size
            text = _SETTINGS.format(
                batch_size=self._batch_size,
                concurrency=CONCURRENCY,
                shards="\n".join(_SHARD.format(name=one.name, url=one.server.url) for one in self.shards.values()),
                endpoints="\n".join(
                    _ENDPOINT.format(
                        name=name,
                        url=at[-1].url,
                        batch_size=BATCH_SIZE if name == BATCHES else 1,
                        tenants=list(DUE[name]),
                    )
                    for name, at in self._receivers.items()
                ),
            )
            new = self.settings.with_suffix(".new")
            new.write_text(text)
            new.replace(self.settings)

    def replace_receiver(self, endpoint: str) -> Receiver:
        """Give an endpoint another receiver, at another URL. The old one stays for replicas that still send to it."""
        receiver = Receiver(self.inboxes[endpoint], accepts, self.began)
        self._receivers[endpoint].append(receiver)
        self.write_settings()
        return receiver

    def reload(self) -> None:
        """Send SIGHUP to every replica that runs."""
        for replica in self.replicas.values():
            replica.reload()

    def recover(self) -> None:
        """From now on every receiver accepts."""
        for receivers in self._receivers.values():
            for receiver in receivers:
                receiver.recover()

    def close(self) -> None:
        """End everything, also if one part cannot be ended."""
        with contextlib.ExitStack() as stack:
            for shard in self.shards.values():
                stack.callback(shard.close)
            for receiver in chain.from_iterable(self._receivers.values()):
                stack.callback(receiver.close)
            for replica in self.replicas.values():
                stack.callback(replica.close)


@contextlib.contextmanager
def stage(binary: Binary, seed: int | None, directory: Path) -> Iterator[Stage]:
    """Everything runs while the block lasts. Raises RuntimeError or AssertionError if a process does not start."""
    built = Stage(binary, seed, directory)
    try:
        for shard in built.shards.values():
            shard.start()
        for replica in built.replicas.values():
            replica.start()
        yield built
    finally:
        built.close()
