"""Starts a primary with replicas and sentinels, and a Cluster, on free loopback ports."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.crc import key_slot

from tests.support import acl
from tests.support.harness import eventually
from tests.support.servers import Binary, Server, free_port

SERVICE = "reservations"
#: How long a primary may be silent while a test has it killed, and while it only shares a busy machine.
HASTY_MS, PATIENT_MS = 1000, 20_000
#: In seconds. A sentinel that took the other replica for down sees only by two looks, 10 s apart, whom it follows.
LONGEST_FAIL_OVER = 90
#: Slashes and signs, so that they only work where a URL is read as it has to be.
PASSWORD, SENTINEL_PASSWORD = "p/ss:w@rd", "s3ntinel%"


class SentinelProcess:
    """One sentinel."""

    def __init__(self, binary: Binary, primary_port: int, quorum: int) -> None:
        self.port = free_port()
        self._directory = tempfile.TemporaryDirectory(prefix="sweeperd-sentinel-")
        config = Path(self._directory.name) / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._directory.name}\nlogfile sentinel.log\n"
            f'requirepass "{SENTINEL_PASSWORD}"\n'
            f'user sweeperd on ">{SENTINEL_PASSWORD}" -@all +client|setname +sentinel|masters\n'
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} {quorum}\n"
            f'sentinel auth-pass {SERVICE} "{PASSWORD}"\n'
            f"sentinel down-after-milliseconds {SERVICE} {PATIENT_MS}\n"
            f"sentinel failover-timeout {SERVICE} 4000\n"
        )
        self._process = subprocess.Popen([binary.path, str(config), "--sentinel"])

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password=SENTINEL_PASSWORD, socket_timeout=2)

    def knows_all(self) -> bool:
        """Whether it has found the replicas and the other sentinels."""
        with self.client() as client:
            try:
                state = client.sentinel_master(SERVICE)
            except redis.RedisError:
                return False
        return bool(state["num-slaves"] == 2 and state["num-other-sentinels"] == 2 and state["flags"] == "master")

    def be_patient(self, milliseconds: int) -> None:
        """Take the primary for down after so long."""
        with self.client() as client:
            client.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", milliseconds)

    def primary_port(self) -> int:
        """As a client asks. SENTINEL get-master-addr-by-name names the heir already before the fail-over has ended."""
        with self.client() as client:
            return int(client.sentinel_masters()[SERVICE]["port"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()


@dataclass
class Sentinels:
    """A primary, two replicas, three sentinels; Redis and Sentinel have passwords of their own."""

    servers: list[Server]
    sentinels: list[SentinelProcess]

    def url(self, user: str = "sweeperd") -> str:
        """The user: the one that `sweeperd acl` makes; `default` may do everything."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        asks = f"sentinel_username={user}&sentinel_password=s3ntinel%25"
        return f"redis+sentinel://{user}:p%2Fss%3Aw%40rd@{hosts}/{SERVICE}/0?{asks}"

    @property
    def primary(self) -> Server:
        """Whom the sentinels name."""
        port = self.sentinels[0].primary_port()
        return next(server for server in self.servers if server.port == port)

    def client(self, server: Server | None = None) -> redis.Redis:
        return redis.Redis(port=(server or self.primary).port, password=PASSWORD, protocol=2)

    def cut_replication(self) -> None:
        """From now on the replicas get nothing: their connections are closed and they cannot log in again."""
        primary = self.primary
        for server in self.servers:
            if server is not primary:
                with self.client(server) as client:
                    client.config_set("masterauth", "wrong")
        with self.client(primary) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
            eventually(lambda: client.info("replication")["connected_slaves"] == 0)

    def fail_over(self) -> Server:
        """Kill the primary and wait for the next one, which all sentinels name and the other replica follows."""
        old = self.primary
        for sentinel in self.sentinels:
            sentinel.be_patient(HASTY_MS)
        old.kill()

        def know_the_heir() -> list[bool]:
            return [sentinel.primary_port() != old.port for sentinel in self.sentinels]

        eventually(lambda: any(know_the_heir()), limit=LONGEST_FAIL_OVER)
        for sentinel in self.sentinels:  # at once: on a busy machine the heir may be slow too, and be replaced
            sentinel.be_patient(PATIENT_MS)
        eventually(lambda: all(know_the_heir()), limit=LONGEST_FAIL_OVER)
        for server in self.servers:
            if server is not old:
                with self.client(server) as client:
                    client.config_set("masterauth", PASSWORD)
        with self.client() as client:
            eventually(lambda: client.info("replication")["role"] == "master")
            eventually(lambda: client.info("replication")["connected_slaves"] == 1, limit=LONGEST_FAIL_OVER)
        return self.primary


@contextmanager
def sentinels(binary: Binary) -> Iterator[Sentinels]:
    """Start one."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(binary, ("--repl-diskless-sync-delay", "0"))) for _ in range(3)]
        running = Sentinels(servers, [])
        for server in servers:
            with redis.Redis(port=server.port) as client:
                rules = acl.rules(events={"wait_replicas": 1})
                client.execute_command("ACL", "SETUSER", "sweeperd", f">{PASSWORD}", *rules)
                client.config_set("masterauth", PASSWORD)
                client.config_set("requirepass", PASSWORD)
        for server in servers[1:]:
            with running.client(server) as client:
                client.replicaof("127.0.0.1", str(servers[0].port))
        with running.client(servers[0]) as client:
            eventually(lambda: client.info("replication")["connected_slaves"] == 2)
            eventually(lambda: client.wait(2, 100) == 2)
        for _ in range(3):
            sentinel = SentinelProcess(binary, servers[0].port, quorum=2)
            stack.callback(sentinel.close)
            running.sentinels.append(sentinel)
        for sentinel in running.sentinels:
            eventually(sentinel.knows_all, limit=30)
        yield running


@dataclass
class Cluster:
    """Three primaries, with a replica each or without."""

    servers: list[Server]

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def url(self) -> str:
        """For a user who may do everything."""
        return f"redis+cluster://{self.hosts}"

    def limited_url(self, prefix: str) -> str:
        """For the user that `sweeperd acl` makes."""
        for server in self.servers:
            with self.client(server) as client:
                rules = acl.rules(shards=[{"name": "default", "url": self.url, "prefix": prefix}])
                client.execute_command("ACL", "SETUSER", "sweeperd", f">{acl.PASSWORD}", *rules)
        return f"redis+cluster://sweeperd:{acl.PASSWORD}@{self.hosts}"

    def client(self, server: Server) -> redis.Redis:
        return redis.Redis(port=server.port, protocol=2, socket_timeout=5)

    def node_id(self, server: Server) -> str:
        with self.client(server) as client:
            return str(client.execute_command("CLUSTER MYID").decode())

    def owner(self, prefix: str, among: list[Server] | None = None) -> Server:
        """Who holds the prefix's slot, by what the others say."""
        with self.client((among or self.servers)[0]) as client:
            for first, last, primary, *_ in client.execute_command("CLUSTER", "SLOTS"):
                if first <= key_slot(prefix.encode()) <= last:
                    return next(server for server in self.servers if server.port == primary[1])
        raise AssertionError("nobody holds it")

    def fail_over(self, prefix: str) -> Server:
        """Kill the owner of the prefix's slot and wait for the next one."""
        old = self.owner(prefix)
        rest = [server for server in self.servers if server is not old]
        self.be_patient(HASTY_MS, rest)
        old.kill()
        eventually(lambda: self.owner(prefix, rest) is not old, limit=30)
        self.be_patient(PATIENT_MS, rest)
        return self.owner(prefix, rest)

    def be_patient(self, milliseconds: int, servers: list[Server]) -> None:
        """Take a node for down after so long."""
        for server in servers:
            with self.client(server) as client:
                client.config_set("cluster-node-timeout", milliseconds)

    def other_primary(self, prefix: str) -> Server:
        """One that does not hold it."""
        owner = self.owner(prefix)
        return next(server for server in self.servers[:3] if server is not owner)


@contextmanager
def cluster(binary: Binary, *, replicas: bool = True) -> Iterator[Cluster]:
    """Start one; the first three servers are the primaries."""
    with ExitStack() as stack:
        servers, buses = [], []
        for _ in range(6 if replicas else 3):
            bus = free_port()
            options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(HASTY_MS), "--cluster-port", str(bus)]
            # Without it a replica that has not heard of its primary for a while may not take its place.
            options += ["--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"]
            servers.append(stack.enter_context(Server(binary, options)))
            buses.append(bus)
        running = Cluster(servers)
        clients = [stack.enter_context(running.client(server)) for server in servers]
        for number, (client, start) in enumerate(zip(clients[:3], (0, 5461, 10922), strict=True)):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", start, (5460, 10921, 16383)[number])
        for server, bus in zip(servers[1:], buses[1:], strict=True):
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        eventually(lambda: all(_state(client) == ("ok", str(len(servers))) for client in clients), limit=30)
        for primary, client in zip(servers[:3], clients[3:], strict=replicas):
            client.execute_command("CLUSTER", "REPLICATE", running.node_id(primary))
        for client in clients[:3] if replicas else ():
            eventually(lambda client=client: client.info("replication")["connected_slaves"] == 1, limit=30)
            eventually(lambda client=client: client.wait(1, 100) == 1, limit=30)
        # A replica takes its primary's place only where the others know it as that primary's.
        eventually(lambda: all(_replicas(client) == len(servers) - 3 for client in clients), limit=30)
        running.be_patient(PATIENT_MS, servers)
        yield running


def _state(client: redis.Redis) -> tuple[str, str]:
    lines = client.execute_command("CLUSTER", "INFO")
    text = lines.decode() if isinstance(lines, bytes) else str(lines)
    told = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return told["cluster_state"], told["cluster_known_nodes"]


def _replicas(client: redis.Redis) -> int:
    return sum(len(row) - 3 for row in client.execute_command("CLUSTER", "SLOTS"))


def moved_step_by_step(running: Cluster, prefix: str, target: Server, *, budgets_first: bool = False) -> Iterator[str]:
    """
    Move the prefix's slot to another primary; what has just been done is yielded after each step. The budgets come last
    of all keys, or first, so that for a while the scripts find all but them in one place.
    """
    slot, source = key_slot(prefix.encode()), running.owner(prefix)
    with running.client(source) as client, running.client(target) as there:
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", running.node_id(source))
        client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", running.node_id(target))
        yield "opened"
        for budgets in (budgets_first, not budgets_first):
            keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100_000)
            wanted = [key for key in keys if budgets == key.startswith(f"{prefix}budget:".encode())]
            for start in range(0, len(wanted), 100):
                page = wanted[start : start + 100]
                client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *page)
                yield "keys"
                time.sleep(0.01)
            yield f"all {'budgets' if budgets else 'but budgets'}"
        node = running.node_id(target)
        # The target first, so that it is the owner before anybody sends there.
        for one in (there, client):
            one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", node)
    yield "closed"
