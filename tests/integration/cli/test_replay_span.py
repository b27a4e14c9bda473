"""`sweeperd replay`: what it says and asks, and what it leaves in Redis."""

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.outbox import CircuitNote, replays
from sweeperd.outbox.endpoint_state import EndpointStateStore
from sweeperd.outbox.replays import ReplayNote, ReplayStore, described, replay_group
from sweeperd.runtime.daemon import Daemon
from sweeperd.store import Shard
from sweeperd.text import rfc3339
from tests.integration.cli.conftest import Run
from tests.support.harness import environment, eventually, server_time
from tests.support.proxy import Proxy
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import Server
from tests.support.streams import append, entries

EVENTS = "sweeperd:events"
HOUR = 3_600_000
BILLING = [{"name": "billing", "url": "http://127.0.0.1:9/hook"}]


@pytest.fixture
def now(client: redis.Redis) -> int:
    """The time; an hour ago five events expired, two of them of globex."""
    at = server_time(client)
    for number, tenant in enumerate(["acme", "globex", "acme", "globex", "acme"]):
        entry: dict[Any, Any] = {"id": f"r{number}", "tenant": tenant, "expired_at": at - HOUR}
        client.xadd(EVENTS, entry, id=f"{at - HOUR}-{number + 1}")
    return at


def start(invoke: Run, *options: str, since: str = "2h") -> Any:
    return invoke("replay", "--endpoint", "billing", "--since", since, *options, endpoints=BILLING)


def actions(invoke: Run) -> list[tuple[str, str, int]]:
    rows = json.loads(invoke("actions", "--json").stdout)["actions"]
    return [(row["action"], row["target"], row["count"]) for row in rows]


def test_it_counts_and_asks_first(invoke: Run, client: redis.Redis, now: int) -> None:
    refused = start(invoke)
    assert (refused.exit_code, "5 events" in refused.stderr, "--yes" in refused.stderr) == (2, True, True)
    assert "2 events" in start(invoke, "--tenant", "globex").stderr
    for options in (("--tenant", "initech"), ("--event-type", "seat-hold")):
        assert start(invoke, *options).exit_code == 0, "nothing to ask about"
    assert not client.exists("sweeperd:groups")
    assert actions(invoke) == []


def test_what_was_selected_is_noted(invoke: Run, now: int) -> None:
    start(invoke, "--detach", "--yes", "--tenant", "acme", "--event-type", "reservation")
    ((_, target, count),) = actions(invoke)
    assert (target.endswith(" --tenant acme --event-type reservation"), count) == (True, 3)


def test_a_command_to_wait_for_it_can_be_pasted_into_a_shell(invoke: Run, client: redis.Redis, now: int) -> None:
    append(client, EVENTS, {"id": "r6", "tenant": "acme corp; x", "expired_at": now - HOUR}, f"{now - HOUR}-6")
    begun = start(invoke, "--detach", "--yes", "--tenant", "acme corp; x", "--event-type", "reservation.expired")
    assert begun.exit_code == 0, begun.output
    other = start(invoke, "--detach", "--yes")
    command = shlex.split(other.stderr.split("`")[1])
    assert command[-4:] == ["--tenant", "acme corp; x", "--event-type", "reservation.expired"]


def test_what_expired_before_the_clock_was_set_back_is_told_and_can_be_replayed(
    invoke: Run, client: redis.Redis, now: int
) -> None:
    append(client, EVENTS, {"id": "ahead", "tenant": "acme", "expired_at": now + HOUR}, f"{now + HOUR}-1")
    refused = start(invoke)
    assert "5 events" in refused.stderr
    told = re.search(r"clock was set back: .* left out; --until (\S+) includes them", refused.stderr)
    assert told
    assert "6 events" in start(invoke, "--until", told[1]).stderr
    assert start(invoke, "--until", told[1], "--detach", "--yes").exit_code == 0
    again = start(invoke, "--until", rfc3339(now + 2 * HOUR))
    assert (again.exit_code, "--until is in the future" in again.stderr) == (2, True)
    assert [count for _, _, count in actions(invoke)] == [6]


def test_it_begins_once_and_is_named_by_status(invoke: Run, client: redis.Redis, now: int) -> None:
    since = rfc3339(now - 2 * HOUR)
    began = start(invoke, "--detach", "--yes", "--tenant", "acme", since=since)
    assert (began.exit_code, "3 events" in began.stdout, "no process" in began.stderr) == (0, True, True)
    again = start(invoke, "--detach", "--tenant", "acme", since=since)
    assert (again.exit_code, "already running" in again.stdout) == (0, True)
    other = start(invoke, "--detach", "--yes", since=since)
    assert other.exit_code == 1
    assert re.search(f"`sweeperd replay --endpoint billing --since {since} .*--tenant acme`", other.stderr)
    assert "`sweeperd replay --endpoint billing --cancel`" in other.stderr
    ((action, target, count),) = actions(invoke)
    assert (action, target.split(" --until")[0], count) == ("replay", f"billing --since {since}", 3)

    shown = invoke("status", "--json", endpoints=BILLING)
    ((endpoint,),) = [shard["endpoints"] for shard in json.loads(shown.stdout)["shards"]]
    assert endpoint["replay"] == endpoint["replay"] | {"since": since, "tenant": "acme", "events": 3, "left": 3}
    assert 0 <= endpoint["replay"]["running_seconds"] < 60
    text = invoke("status", endpoints=BILLING).stdout
    assert f"replay of {since} to " in text
    assert " ago: about 0 of 3 done" in text
    assert "_replay" not in text
    assert "_replay" not in invoke("endpoints", "list", endpoints=BILLING).stdout


def test_one_that_ends_while_it_is_read_has_ended(
    invoke: Run, shard: Shard, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(invoke, "--detach", "--yes")
    note = ReplayStore(shard).read("billing")
    assert note is not None
    assert not ReplayStore(shard).progress(note).ended

    read = ReplayStore.read

    def read_and_end(store: ReplayStore, endpoint: str) -> ReplayNote | None:
        found = read(store, endpoint)
        assert store.end(note, by_force=True)
        return found

    monkeypatch.setattr(ReplayStore, "read", read_and_end)
    assert ReplayStore(shard).progress(note).ended


def test_one_that_another_command_has_begun_meanwhile_has_not_ended(
    invoke: Run, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = replays.begin
    monkeypatch.setattr(replays, "begin", lambda shard, counted: (begin(shard, counted), begin(shard, counted))[1])
    refused = start(invoke, "--yes", "--json")
    (told,) = json.loads(refused.stdout)["replays"]
    assert (refused.exit_code, told["began"], told["ended"], told["left"]) == (1, False, False, 5)


def test_it_is_cancelled(invoke: Run, client: redis.Redis, now: int) -> None:
    start(invoke, "--detach", "--yes")
    ended = invoke("replay", "--endpoint", "billing", "--cancel", "--yes", endpoints=BILLING)
    assert (ended.exit_code, "5 events" in ended.stdout) == (0, True)
    assert not client.exists("sweeperd:groups")
    assert client.xinfo_groups(EVENTS) == []
    assert [(action, count) for action, _, count in actions(invoke)] == [("cancel-replay", 5), ("replay", 5)]
    start(invoke, "--detach", "--yes")
    removed = invoke("replay", "--endpoint", "billing", "--cancel", "--yes")
    assert (removed.exit_code, "5 events" in removed.stdout) == (0, True), "of an endpoint that is not configured"
    assert invoke("replay", "--endpoint", "billing", "--cancel", endpoints=BILLING).exit_code == 0, "none is running"


def test_what_was_trimmed_is_said(invoke: Run, client: redis.Redis, now: int) -> None:
    client.xtrim(EVENTS, maxlen=2, approximate=False)
    counted = start(invoke)
    assert ("what expired before is not delivered\n" in counted.stderr, "2 events" in counted.stderr) == (True, True)


def test_it_waits_for_the_end(
    invoke: Run, server: Server, client: redis.Redis, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends with 3 where an event waits for its next attempt."""
    refused = {"r3"}

    def answer(request: Request, _before: int) -> Answer:
        return Answer(422 if request.event["data"]["reservation_id"] in refused else 200)

    with Receiver(answer) as receiver:
        endpoints = [{"name": "billing", "url": receiver.url}]
        webhooks = {"endpoints": endpoints, "attempts": 1, "redelivery_initial": "1s", "redelivery_max": "1s"}
        settings = {"redis": {"url": server.url}, "webhooks": webhooks, "sweep": {"interval": "100ms"}}
        daemon = Daemon(Settings.model_validate(settings))
        daemon.start()
        try:
            options = ["--endpoint", "billing", "--since", rfc3339(now - 2 * HOUR), "--yes", "--json"]
            with monkeypatch.context() as patch:
                patch.setattr("sweeperd.cli.replay.POLL_EVERY", 0.02)
                ran = invoke("replay", *options, endpoints=endpoints)
            assert ran.exit_code == 3, ran.output
            (document,) = json.loads(ran.stdout)["replays"]
            assert document == document | {"events": 5, "began": True, "ended": False, "left": 1}
            refused.clear()
            ran = invoke("replay", *options, endpoints=endpoints)
            assert ran.exit_code == 0, ran.output
            (document,) = json.loads(ran.stdout)["replays"]
            assert document == document | {"events": 5, "began": False, "ended": True, "left": 0}
            assert client.hkeys("sweeperd:groups") == [b"billing"]
            assert len(receiver.event_ids) == 5
        finally:
            assert daemon.stop()


@contextmanager
def waiting_command(server: Server | Proxy, client: redis.Redis) -> Iterator["subprocess.Popen[str]"]:
    """`sweeperd replay`, waiting for the end of what it has begun. No daemon delivers anything."""
    command = [sys.executable, "-m", "sweeperd", "replay", "--endpoint", "billing", "--since", "2h", "--yes", "--json"]
    env = environment(server.url, endpoints=BILLING)
    before = client.xlen("sweeperd:actions")
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: client.xlen("sweeperd:actions") > before, 30)  # so the command has begun to wait
            yield process
        finally:
            process.kill()


def test_another_command_cancels_it_meanwhile(
    invoke: Run, server: Server, shard: Shard, client: redis.Redis, now: int
) -> None:
    with waiting_command(server, client) as waiting:
        assert invoke("replay", "--endpoint", "billing", "--cancel", "--yes", endpoints=BILLING).exit_code == 0
        output, errors = waiting.communicate(timeout=30)
    document = json.loads(output)
    assert (waiting.returncode, document["cancelled"], document["replays"][0]["ended"]) == (1, True, True)
    assert "the replay to billing was cancelled" in errors
    # The record of that does not count for the next replay.
    with waiting_command(server, client) as waiting:
        note = ReplayStore(shard).read("billing")
        assert note is not None
        assert ReplayStore(shard).end(note, by_force=True)
        output, errors = waiting.communicate(timeout=30)
    assert (waiting.returncode, json.loads(output)["cancelled"]) == (0, False)


@pytest.mark.parametrize("note", [None, "garbage"])
def test_of_one_whose_note_is_lost_no_delivery_is_claimed(
    server: Server, client: redis.Redis, now: int, note: str | None
) -> None:
    with waiting_command(server, client) as waiting:
        if note is None:
            client.hdel("sweeperd:groups", replay_group("billing"))
        else:
            client.hset("sweeperd:groups", replay_group("billing"), note)
        output, errors = waiting.communicate(timeout=30)
    (told,) = json.loads(output)["replays"]
    assert (waiting.returncode, told["ended"], told["left"]) == (1, False, 5)
    assert ("the note of the replay to billing" in errors, "unknown" in errors) == (True, True)


def test_one_whose_note_is_lost_after_its_last_event_has_ended(server: Server, client: redis.Redis, now: int) -> None:
    with waiting_command(server, client) as waiting:
        client.xreadgroup(replay_group("billing"), "dead", {EVENTS: ">"})
        client.xack(EVENTS, replay_group("billing"), *[f"{now - HOUR}-{number}" for number in range(1, 6)])
        client.hdel("sweeperd:groups", replay_group("billing"))
        output = waiting.communicate(timeout=30)[0]
    (told,) = json.loads(output)["replays"]
    assert (waiting.returncode, told["ended"], told["left"]) == (0, True, 0)


def test_a_note_that_cannot_be_read_is_told_and_cancelled(invoke: Run, client: redis.Redis, now: int) -> None:
    start(invoke, "--detach", "--yes")
    client.hset("sweeperd:groups", replay_group("billing"), "garbage")
    client.xreadgroup(replay_group("billing"), "us", {EVENTS: ">"}, count=1)
    drop = ["endpoints", "drop", "billing", "--before", "1ms", "--yes"]
    for refused in (start(invoke, "--yes"), invoke(*drop, endpoints=BILLING)):
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "cannot be read; `sweeperd replay --endpoint billing --cancel`" in refused.stderr
    cancel = ["replay", "--endpoint", "billing", "--cancel", "--yes"]
    in_flight = invoke(*cancel, endpoints=BILLING)
    assert (in_flight.exit_code, "in flight" in in_flight.stderr) == (1, True)
    assert client.hget("sweeperd:groups", replay_group("billing")) == b"garbage"
    client.xclaim(EVENTS, replay_group("billing"), "us", 0, [f"{now - HOUR}-1"], idle=HOUR)
    cancelled = invoke(*cancel, endpoints=BILLING)
    assert (cancelled.exit_code, "which could not be read" in cancelled.stdout) == (0, True), cancelled.output
    assert not client.exists("sweeperd:groups")
    assert client.xinfo_groups(EVENTS) == []
    assert actions(invoke)[0] == ("cancel-replay", "billing", 1)
    assert start(invoke, "--detach", "--yes").exit_code == 0
    client.delete(EVENTS)
    client.hset("sweeperd:groups", replay_group("billing"), "garbage")
    assert invoke(*cancel, endpoints=BILLING).exit_code == 0, "without a group"


def test_what_keeps_it_from_going_on_is_told_and_an_interrupted_wait_is_not_its_end(
    server: Server, shard: Shard, client: redis.Redis, now: int
) -> None:
    with waiting_command(server, client) as waiting:
        assert waiting.stderr is not None
        # Redis 6.2 does not say that no event was trimmed, so the command warns of that first.
        assert any("no process delivers to billing" in line for line in waiting.stderr)
        note = CircuitNote(process="us", at=server_time(client), probe_at=1, failures=5, reason="HTTP 500")
        client.hset("sweeperd:circuits", "billing@us", note.model_dump_json())
        assert "deliveries to billing fail: HTTP 500" in waiting.stderr.readline()
        EndpointStateStore(shard).pause("billing", "test")
        assert "billing is paused" in waiting.stderr.readline(), "within some seconds"
        waiting.send_signal(signal.SIGINT)
        output, errors = waiting.communicate(timeout=30)
    begun = ReplayStore(shard).read("billing")
    assert begun is not None
    (told,) = json.loads(output)["replays"]
    assert (waiting.returncode, told["ended"], told["left"]) == (3, False, 5)
    assert f"`sweeperd replay --endpoint billing {described(begun)}` waits for it again" in errors


def test_a_wait_that_redis_ends_is_not_the_end_of_the_replay(
    server: Server, shard: Shard, client: redis.Redis, now: int
) -> None:
    with Proxy(server.port) as proxy, waiting_command(proxy, client) as waiting:
        proxy.loses = b"HGET"
        output, errors = waiting.communicate(timeout=30)
    begun = ReplayStore(shard).read("billing")
    assert begun is not None
    document = json.loads(output)
    assert (waiting.returncode, document["replays"][0]["ended"], len(document["down"])) == (1, False, 1)
    *_, trouble, said = errors.splitlines()
    assert trouble.startswith("sweeperd: redis is not available: ")
    how = f"`sweeperd replay --endpoint billing {described(begun)}` waits for it again, --cancel cancels it"
    assert said == f"sweeperd: the replay to billing continues without this command; {how}"


def test_events_that_somebody_has_removed_are_told(
    invoke: Run, server: Server, shard: Shard, client: redis.Redis, now: int
) -> None:
    with waiting_command(server, client) as waiting:
        client.xtrim(EVENTS, maxlen=0, approximate=False)
        note = ReplayStore(shard).read("billing")
        assert note is not None
        assert ReplayStore(shard).end(note)
        errors = waiting.communicate(timeout=30)[1]
    assert "no longer has the last event of the replay" in errors


def test_its_events_that_become_dead_letters_are_told(
    invoke: Run, server: Server, shard: Shard, client: redis.Redis, now: int
) -> None:
    client.xadd("sweeperd:dead-letters", {"endpoint": "billing"})
    client.xadd("sweeperd:dead-letters", {"endpoint": "billing", "event": "none"})
    with waiting_command(server, client) as waiting:
        for entry in ({"event": "none"}, {"event": f"{now - HOUR}-4", "endpoint": "audit", "expired_at": now - HOUR}):
            append(client, "sweeperd:dead-letters", {"endpoint": "billing"} | entry)
        client.xreadgroup(replay_group("billing"), "dead", {EVENTS: ">"})
        first, *others = [f"{now - HOUR}-{number}" for number in range(1, 6)]
        assert invoke("endpoints", "skip", "billing", first, "--yes", endpoints=BILLING).exit_code == 0
        client.xack(EVENTS, replay_group("billing"), *others)
        note = ReplayStore(shard).read("billing")
        assert note is not None
        assert ReplayStore(shard).end(note)
        output, errors = waiting.communicate(timeout=30)
    (told,) = json.loads(output)["replays"]
    assert (waiting.returncode, told["ended"], told["dead_letters"]) == (3, True, 1)
    assert "1 became dead letters: `sweeperd dead-letters list --endpoint billing`" in errors


def test_an_event_of_a_replay_is_skipped(invoke: Run, shard: Shard, client: redis.Redis, now: int) -> None:
    start(invoke, "--detach", "--yes")
    client.xreadgroup(replay_group("billing"), "dead", {EVENTS: ">"}, count=1)
    skipped = invoke("endpoints", "skip", "billing", f"{now - HOUR}-1", "--yes", endpoints=BILLING)
    assert skipped.exit_code == 0, skipped.output
    ((_, letter),) = entries(client, "sweeperd:dead-letters")
    assert letter[b"endpoint"] == b"billing"
    note = ReplayStore(shard).read("billing")
    assert note is not None
    assert ReplayStore(shard).progress(note).left == 4
