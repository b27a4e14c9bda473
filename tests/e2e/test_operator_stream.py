"""An operator asks what expired, has dead letters delivered again, pauses an endpoint: with the installed command."""

import json
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from sweeperd.outbox.event import ONLY_FOR
from tests.e2e.terminal import Terminal
from tests.integration.cli.conftest import HOSTILE, expire, give_up
from tests.support.books import Property, check, read
from tests.support.fixtures import a_shard
from tests.support.harness import Daemon, command, daemon, environment, eventually, reserve, run
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Binary, Server
from tests.support.streams import append, entries

EVENTS, DEAD = "sweeperd:events", "sweeperd:dead-letters"
AOF = ["--appendonly", "yes", "--appendfsync", "always"]
QUICK = {"sweep__interval": "100ms", "webhooks__attempts": 1, "webhooks__redelivery_initial": "300ms"}


def sweeperd(env: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return run(arguments, env, timeout=60)


# ---- what expired


def test_what_expired_agrees_with_the_receivers_log_to_the_event(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    dice = random.Random(5)

    def unreliable(_request: object, before: int) -> Answer:
        return Answer(500) if before == 0 and dice.random() < 0.05 else Answer()

    with Receiver(unreliable) as receiver:
        env = environment(server.url, endpoints=[{"name": "hook", "url": receiver.url}], **QUICK)
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            total = 0
            for number in range(12):
                ids = [f"{number}-{rank}" for rank in range(dice.randint(1, 60))]
                reserve(client, ids, overdue_by=dice.choice([-300, -50, 5]), tenant=dice.choice(["acme", "globex"]))
                total += len(ids)
                time.sleep(dice.uniform(0, 0.1))  # spread over time, nothing waits for it
            receiver.wait_for(lambda requests: len({request.event_id for request in requests}) == total)
            eventually(lambda: client.xpending(EVENTS, "hook")["pending"] == 0)

    log = {request.event_id: request.event for request in receiver.requests}
    assert len(receiver.requests) > total, "some came twice, and are one event"
    moments = sorted({event["timestamp"] for event in log.values()})
    # Everything, and between two moments at which something expired, the first of them included.
    quarter = len(moments) // 4
    for since, until, tenant in [
        (moments[0], "2990-01-01", None),
        (moments[quarter], moments[3 * quarter], None),
        (moments[quarter], moments[-1], "globex"),
    ]:
        options = ["--tenant", tenant] if tenant else []
        done = sweeperd(env, "expired", "--since", since, "--until", until, "--json", *options)
        assert done.returncode == 0, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
        expected = {
            event_id: event | {"shard": "default"}
            for event_id, event in log.items()
            if since <= event["timestamp"] < until and tenant in (None, event["tenant_id"])
        }
        assert len(told) == len(expected) > 0
        assert {event["event_id"]: event for event in told} == expected
        order = [event["timestamp"] for event in told]
        assert order == sorted(order)


class Following:
    """A `sweeperd expired --follow`, and the events that it has printed."""

    def __init__(self, env: Mapping[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            command("expired", "--follow", "--json", *arguments),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.told: list[dict[str, Any]] = []
        self.notes: list[str] = []
        for stream, take in ((self.process.stdout, self._event), (self.process.stderr, self.notes.append)):
            threading.Thread(target=lambda s=stream, t=take: [t(line) for line in s], daemon=True).start()

    def _event(self, line: str) -> None:
        self.told.append(json.loads(line))

    @property
    def ids(self) -> list[str]:
        return [event["data"]["reservation_id"] for event in self.told]

    def noted(self, text: str) -> bool:
        return any(text in note for note in self.notes)


@contextmanager
def following(env: Mapping[str, str], *arguments: str) -> Iterator[Following]:
    running = Following(env, *arguments)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def test_it_follows_over_a_restart_of_redis(redis_binary: Binary) -> None:
    def expired(name: str) -> None:
        with a_shard(own) as shard:
            reserve(shard.client, [name])
            expire(shard.client, [name])

    with Server(redis_binary, AOF) as own:
        expired("before")
        env = environment(own.url)
        with following(env) as one, following(env) as other:
            both = (one, other)
            eventually(lambda: all(follower.ids == ["before"] for follower in both))
            own.kill()
            eventually(lambda: all(follower.noted("retrying") for follower in both))
            own.start()
            for name in ("one", "two"):
                expired(name)
                eventually(lambda name=name: all(name in follower.ids for follower in both))
            for follower, end in zip(both, (signal.SIGINT, signal.SIGTERM), strict=True):
                assert follower.ids == ["before", "one", "two"]
                assert follower.noted("available again")
                follower.process.send_signal(end)
                assert follower.process.wait(60) == 0
                assert len(follower.notes) == len(set(follower.notes)), "each trouble is told once"
                assert not follower.noted("Traceback")


def test_on_a_terminal_no_name_is_obeyed(server: Server, client: redis.Redis) -> None:
    """A table of lines with fixed columns, coloured, for people."""
    now = int(client.time()[0]) * 1000
    for number, name in enumerate(HOSTILE):
        event = {
            "id": name,
            "tenant": name,
            "scope": name,
            "unit": name,
            "amount": 5,
            "expired_at": now - 5000 + number,
        }
        append(client, EVENTS, event, f"{now - 5000 + number}-1")
    with Terminal(environment(server.url), ["expired"], 160) as terminal:
        assert terminal.end() == 0
    seen = terminal.seen.decode().splitlines()
    if server.binary.numbers < (7, 0):  # it does not tell whether anything was trimmed
        assert "the oldest event that is still kept" in seen.pop(0)
    address, head, *lines = seen
    assert server.url in address
    assert head.startswith("\x1b[1mexpired_at")
    assert len(lines) == len(HOSTILE)
    assert "x" * 10_000 in "".join(lines), "no value is cut"
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", "".join(lines))


# ---- dead letters


def test_a_replay_reaches_exactly_its_endpoint(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    ids = [f"r{number}" for number in range(30)]
    with Receiver(lambda *_: Answer(500)) as odd, Receiver() as good:
        endpoints = [{"name": "odd", "url": odd.url}, {"name": "good", "url": good.url, "tenants": ["acme"]}]
        settings = QUICK | {"webhooks__max_age": "3s", "webhooks__probe_max": "300ms", "log__level": "debug"}
        env = environment(server.url, endpoints=endpoints, **settings)
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ids)
            eventually(lambda: client.xlen(DEAD) == len(ids))
            good.wait_for(lambda requests: len(requests) == len(ids))
            first = {request.event_id: request.body for request in good.requests}
            eventually(lambda: running.metric("sweeperd_webhook_dead_letters_total", endpoint="odd") == len(ids))
            buried = len(ids)

            odd.behaviour = lambda *_: Answer()
            odd.clear()
            done = sweeperd(env, "dead-letters", "replay", "--endpoint", "odd", "--yes", "--json")
            assert (done.returncode, done.stderr) == (0, "")
            assert json.loads(done.stdout)["replayed"] == len(ids)
            # They are older than max_age, but that counts from the replay.
            odd.wait_for(lambda requests: len({request.event_id for request in requests}) == len(ids))
            eventually(lambda: all(group["pending"] == 0 for group in client.xinfo_groups(EVENTS)))
            last = client.xinfo_stream(EVENTS)["last-generated-id"]
            eventually(lambda: {group["last-delivered-id"] for group in client.xinfo_groups(EVENTS)} == {last})
            assert {request.event_id: request.body for request in odd.requests} == first
            assert len(odd.requests) == len(good.requests) == len(ids), "nobody got anything twice"
            eventually(
                lambda: (
                    running.metric("sweeperd_webhook_attempts_total", endpoint="odd", result="delivered") == len(ids)
                )
            )
            assert running.metric("sweeperd_webhook_attempts_total", endpoint="good", result="delivered") == len(ids)
            eventually(lambda: sum("replay" in line for line in running.logged("delivered")) == len(ids))
            assert running.metric("sweeperd_webhook_dead_letters_total", endpoint="odd") == buried
            assert running.metric("sweeperd_expired_total", tenant="acme") == len(ids)
        assert client.xlen(DEAD) == 0
        told = [json.loads(line)["event_id"] for line in sweeperd(env, "expired", "--json").stdout.splitlines()]
        assert Counter(told) == Counter(first.keys()), "a replay is no expiry"
        check(read(client), set(Property))


def test_a_change_asks_first(server: Server, client: redis.Redis) -> None:
    with a_shard(server) as shard:
        give_up(shard, ["one", "two"])
    env = environment(server.url, endpoints=[{"name": "billing", "url": "http://127.0.0.1:1/"}])
    for answer, code, left, shown in (("n", 1, 2, "(2 of billing)"), ("y", 0, 0, "2 dropped")):
        with Terminal(env, ["dead-letters", "drop", "--all"]) as terminal:
            terminal.answer(answer)
            assert (terminal.end(), client.xlen(DEAD), shown in terminal.plain) == (code, left, True)


def test_a_replay_is_killed_half_way_and_run_again(server: Server, client: redis.Redis) -> None:
    total = 400
    with a_shard(server) as shard:
        give_up(shard, [str(number) for number in range(total)])
    env = environment(server.url, endpoints=[{"name": "billing", "url": "http://127.0.0.1:1/"}])
    replay = ["dead-letters", "replay", "--all", "--yes"]
    with subprocess.Popen(command(*replay), env=env, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: client.xlen(DEAD) < total)
        process.kill()
    half_way = client.xlen(DEAD)
    done = sweeperd(env, *replay)
    assert done.returncode == 0
    assert half_way == 0 or done.stdout.splitlines()[-1] == f"{half_way} replayed"
    assert client.xlen(DEAD) == 0
    replayed = Counter(fields[b"id"] for _, fields in entries(client, EVENTS) if ONLY_FOR in fields)
    assert replayed == Counter(str(number).encode() for number in range(total)), "each once"
    check(read(client), set(Property))


# ---- pause and resume


def test_a_running_daemon_obeys_a_pause_and_a_resume(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with Receiver(lambda *_: Answer(410)) as odd, Receiver() as good:
        endpoints = [{"name": "odd", "url": odd.url}, {"name": "good", "url": good.url}]
        env = environment(server.url, endpoints=endpoints, **QUICK)
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["one"])
            eventually(lambda: running.logged("the endpoint is gone and is paused until it is resumed"))
            odd.behaviour = lambda *_: Answer()
            reserve(client, ["two", "three"])
            good.wait_for(lambda requests: len(requests) == 3)
            done = sweeperd(env, "endpoints", "resume", "odd", "--yes")
            assert (done.returncode, "410" in done.stdout) == (0, True)
            # What waited is delivered, the one that was answered with 410 included.
            odd.wait_for(lambda requests: len({request.event_id for request in requests}) == 3)
            eventually(lambda: delivered(running, "odd") == 3)
            assert running.told("the endpoint is resumed")

            done = sweeperd(env, "endpoints", "pause", "odd", "--reason", "moving house", "--yes")
            assert done.returncode == 0
            # The pause after the 410 may have been noticed in the same words.
            paused = "the endpoint is paused; its events wait"
            eventually(lambda: [line["reason"] for line in running.logged(paused)][-1:] == ["moving house"])
            assert {line["endpoint"] for line in running.told(paused)} == {"odd"}
            reserve(client, ["four", "five"])
            good.wait_for(lambda requests: len(requests) == 5)
            assert delivered(running, "odd") == 3
            assert sweeperd(env, "endpoints", "resume", "odd", "--yes").returncode == 0
            eventually(lambda: delivered(running, "odd") == 5)


def delivered(running: Daemon, endpoint: str) -> float:
    return running.metric("sweeperd_webhook_attempts_total", endpoint=endpoint, result="delivered")
