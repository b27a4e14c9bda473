"""Kills the daemon with `kill -9` during a replay next to a backfill, new events and a paused endpoint."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.text import rfc3339
from tests.support.harness import Daemon, Process, environment, eventually, run, server_time, started
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server

#: How many events are replayed, and how often the daemon is killed. The full size is 100000 and 20.
TOTAL = int(os.environ.get("SWEEPERD_TEST_REPLAY_EVENTS", "5000"))
KILLS = int(os.environ.get("SWEEPERD_TEST_REPLAY_KILLS", "5"))
BATCH = 20
#: Two batches for each connection that a replay can be lent.
IN_HAND = 2 * 16 * BATCH
EVENTS = "sweeperd:events"
HOUR = 3_600_000


def add(client: redis.Redis, at: int, count: int, name: str) -> set[str]:
    """Add so many events that expired at `at`, ms."""
    names = [f"{name}{number}" for number in range(count)]
    with client.pipeline(transaction=False) as pipeline:
        for number, each in enumerate(names, 1):
            entry: dict[Any, Any] = {"id": each, "tenant": "acme", "expired_at": at}
            pipeline.xadd(EVENTS, entry, id=f"{at}-{number}" if at else "*")
        pipeline.execute()
    return set(names)


def got(receiver: Receiver) -> list[str]:
    bodies: Any = [request.event for request in receiver.requests]
    return [event["data"]["reservation_id"] for body in bodies for event in body]


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_a_replay_is_killed_again_and_again(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """
    The replay leaves none out and doubles at most what was in hand. At the same time a new endpoint gets all events
    from the beginning, each endpoint the new ones, and one that is paused gets nothing and loses nothing.
    """
    chance, now = random.Random(TOTAL), server_time(client)
    with Receiver(lambda *_: Answer(delay=0.05)) as billing, Receiver() as fresh, Receiver() as paused:
        batches = {"batch_size": BATCH, "batch_wait": "5ms"}
        old = [
            {"name": "billing", "url": billing.url, **batches},
            {"name": "paused", "url": paused.url, **batches},
        ]
        new = {"name": "fresh", "url": fresh.url, "start": "beginning", **batches}
        quick = {"webhooks__redelivery_initial": "100ms", "sweep__interval": "200ms"}
        # The groups of these endpoints begin after the events: only the replay brings them.
        meant, env = add(client, now - HOUR, TOTAL, "meant"), environment(server.url, endpoints=old, **quick)
        outside = add(client, now - HOUR // 2, 100, "outside")
        assert run(["--once", "--json"], env).returncode == 0
        assert run(["endpoints", "pause", "paused", "--yes"], env).returncode == 0
        env = environment(server.url, endpoints=[*old, new], log__format="json", **quick)
        span = ["--since", rfc3339(now - HOUR), "--until", rfc3339(now - HOUR + 1)]
        line = ["replay", "--endpoint", "billing", *span, "--yes"]

        later: set[str] = set()
        operator: Process | None = None
        for kill in range(KILLS):
            daemon = Daemon(env, tmp_path / f"{kill}.log")
            if operator is None:
                operator = started(line, env, [0, 1, 2])
            later |= add(client, 0, 50, f"later{kill}-")
            # A step of the way; all steps together are not the whole way, so that the last run has something to do.
            target = len(billing.requests) + TOTAL / BATCH / KILLS * chance.uniform(0.2, 0.7)
            eventually(lambda target=target: len(billing.requests) >= target, limit=120)
            if chance.random() < 0.5:
                operator.kill()
                operator.wait()
                operator = None
            daemon.process.kill()
            assert daemon.process.wait() == -signal.SIGKILL
        daemon = Daemon(env, tmp_path / "last.log")
        ran = run(line, env, timeout=600)
        assert ran.returncode == 0, ran.stderr
        eventually(lambda: set(got(billing)) >= meant | later, limit=60)
        eventually(lambda: set(got(fresh)) >= meant | outside | later, limit=120)
        daemon.process.terminate()
        assert daemon.process.wait(30) == 0

        received = got(billing)
        assert set(received) == meant | later, "an event of outside the span came again"
        doubled = len(received) - len(meant | later)
        print(f"{TOTAL} events, {KILLS} kills: {doubled} came twice")
        assert doubled <= KILLS * 2 * IN_HAND
        assert paused.requests == []
        assert run(["endpoints", "resume", "paused", "--yes"], env).returncode == 0
        assert run(["--once", "--json"], env).returncode == 0
        assert set(got(paused)) == later
        notes: Any = client.hkeys("sweeperd:groups")
        assert set(notes) == {b"billing", b"fresh", b"paused"}, "a replay that has ended leaves no mark"
