"""`sweeperd endpoints drop`: the end of a backlog, on purpose."""

import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

import sweeperd.ops.endpoints
import sweeperd.outbox.dead_letters
from sweeperd.outbox import Outbox
from sweeperd.store import Shard
from sweeperd.store.streams import StreamId
from tests.integration.cli.conftest import Run, expire, give_up
from tests.support.fixtures import full
from tests.support.harness import eventually, reserve, server_time
from tests.support.servers import Server
from tests.support.streams import entries

ENDPOINTS = [
    {"name": "billing", "url": "http://billing.example.com/"},
    {"name": "audit", "url": "http://audit.example.com/", "tenants": ["acme"]},
]
EVENTS, LETTERS = "sweeperd:events", "sweeperd:dead-letters"


def backlog(shard: Shard) -> Outbox:
    """A parked event, an event in hand, events that nobody has taken, and one that the endpoint does not want."""
    client, outbox = shard.client, Outbox(shard, "test")
    outbox.groups.ensure("audit")
    reserve(client, ["parked", "held", "new-1", "new-2"])
    reserve(client, ["foreign"], tenant="initech")
    expire(client, ["parked", "held"])
    outbox.nack("audit", outbox.read("audit", 1))
    outbox.read("audit", 1)
    expire(client, ["foreign", "new-1", "new-2"])
    return outbox


def later(client: redis.Redis, ids: list[str]) -> str:
    """Events of a later millisecond. Returns a moment between the events."""
    before = server_time(client) + 2
    eventually(lambda: server_time(client) > before)
    reserve(client, ids)
    expire(client, ids)
    text = datetime.fromtimestamp(before / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def waiting(client: redis.Redis, outbox: Outbox) -> list[bytes]:
    """The ids of the reservations whose events the endpoint has not acknowledged."""
    outbox.read("audit", 10_000)
    fields = dict(entries(client, EVENTS))
    pending: Any = client.xpending_range(EVENTS, "audit", "-", "+", 10_000)
    return [fields[row["message_id"]][b"id"] for row in pending]


@pytest.mark.parametrize("letters", [False, True])
def test_a_backlog_ends_and_what_is_younger_stays(
    letters: bool, invoke: Run, shard: Shard, client: redis.Redis
) -> None:
    outbox = backlog(shard)
    before = later(client, ["young"])
    arguments = ["endpoints", "drop", "audit", "--before", before, "--reason", "it was down"]
    arguments += ["--dead-letters"] * letters
    asked = invoke(*arguments, endpoints=ENDPOINTS)
    assert (asked.exit_code, outbox.groups.untaken("audit", StreamId.at(2**50), 10)) == (2, 4), asked.output
    result = invoke(*arguments, "--yes", "--json", endpoints=ENDPOINTS)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["shards"] == [{"shard": "default", "before": before, "found": 4, "dropped": 4}]
    assert document["dead_letters"] == letters
    found = [(row[b"reason"], row[b"endpoint"], row[b"attempts"]) for _, row in entries(client, LETTERS)]
    assert found == [(b"an operator dropped it", b"audit", count) for count in [b"0", b"0", b"1", b"1"] * letters]
    assert waiting(client, outbox) == [b"young"]
    assert {row["name"] for row in client.xinfo_consumers(EVENTS, "audit")} == {b"test", b"(parked)"}
    (action,) = json.loads(invoke("actions", "--json").stdout)["actions"]
    assert action["finished"]
    target = f"audit before {before}: it was down"
    assert (action["action"], action["target"], action["count"]) == ("drop-backlog", target, 4)
    kept = client.hmget("sweeperd:action-counts", "drop-backlog", "drop-backlog:changed")
    assert kept == [b"1", b"4"]
    again = invoke(*arguments, "--json", endpoints=ENDPOINTS)  # nothing is left to ask about
    assert json.loads(again.stdout)["shards"][0]["dropped"] == 0


@pytest.mark.parametrize(("before", "left"), [("0s", 0), ("1ms", 2)])
def test_after_the_clock_was_set_back_all_that_is_there_was_added_before_now(
    before: str, left: int, invoke: Run, shard: Shard, client: redis.Redis
) -> None:
    """As after a fail-over to a host whose clock is behind: ids never go back, so those of new events are ahead too."""
    outbox = Outbox(shard, "test")
    outbox.groups.ensure("audit")
    client.xdel(EVENTS, client.xadd(EVENTS, {"a": "b"}, id=f"{server_time(client) + 3_600_000}-0") or b"")
    reserve(client, ["held", "new"])
    expire(client, ["held", "new"])
    outbox.read("audit", 1)
    arguments = ["endpoints", "drop", "audit", "--before", before, "--yes", "--json"]
    result = invoke(*arguments, endpoints=ENDPOINTS)
    assert ("--before 0s drops all" in result.stderr) == bool(left)
    document = json.loads(result.stdout)
    assert document["shards"][0].items() >= {"found": 2 - left, "dropped": 2 - left}.items()
    assert len(waiting(client, outbox)) == left


def test_a_backlog_of_many_pages(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    outbox, old = backlog(shard), [f"old-{number}" for number in range(600)]
    reserve(client, old)
    expire(client, old)
    outbox.nack("audit", outbox.read("audit", 320))
    before = later(client, ["young"])
    result = invoke("endpoints", "drop", "audit", "--before", before, "--yes", endpoints=ENDPOINTS)
    assert (result.exit_code, "604 events of audit" in result.stdout) == (0, True), result.output
    assert waiting(client, outbox) == [b"young"]


def test_beside_a_reader_no_younger_event_is_lost(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    """The process takes events that the command has counted, so a read of the command goes beyond the moment."""
    outbox, rival = backlog(shard), Outbox(shard, "rival")
    old, young = [f"old-{number}" for number in range(500)], [f"young-{number}" for number in range(100)]
    reserve(client, old)
    expire(client, old)
    before, over = later(client, young), threading.Event()

    def read() -> None:
        while not over.is_set():
            rival.read("audit", 3)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        result = invoke("endpoints", "drop", "audit", "--before", before, "--yes", endpoints=ENDPOINTS)
    finally:
        over.set()
        reader.join()
    assert (result.exit_code, "504 events of audit" in result.stdout) == (0, True), result.output
    assert sorted(waiting(client, outbox)) == sorted(entry.encode() for entry in young)


@pytest.mark.parametrize(
    "arguments", [("endpoints", "drop", "audit", "--before", "1ms"), ("dead-letters", "drop", "--all")]
)
def test_a_drop_that_is_killed_is_recorded(
    arguments: tuple[str, ...], invoke: Run, shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog(shard)
    give_up(shard, ["given up"], endpoint="audit")
    begun = list[dict[str, Any]]()

    def killed(*_: Any, **_options: Any) -> Any:
        """What a killed command leaves: nothing runs after this moment."""
        begun.extend(json.loads(invoke("actions", "--json").stdout)["actions"])
        return iter(())

    with monkeypatch.context() as patch:
        patch.setattr(sweeperd.ops.endpoints, "drop", killed)
        patch.setattr(sweeperd.outbox.dead_letters, "drop", killed)
        invoke(*arguments, "--yes", endpoints=ENDPOINTS)
    (action,) = begun
    assert "audit" in action["target"]
    assert (action["finished"], action["count"]) == (False, 0)
    counts = client.hgetall("sweeperd:action-counts")
    assert counts[action["action"].encode()] == b"1"


def test_a_moment_to_come_and_a_replay_are_refused(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    backlog(shard)
    early = invoke("endpoints", "drop", "audit", "--before", "2100-01-01", "--yes", endpoints=ENDPOINTS)
    assert (early.exit_code, "--before" in early.stderr) == (2, True)
    replay = ["replay", "--endpoint", "audit", "--since", "1h", "--detach", "--yes"]
    assert invoke(*replay, endpoints=ENDPOINTS).exit_code == 0
    refused = invoke("endpoints", "drop", "audit", "--before", "1ms", "--yes", endpoints=ENDPOINTS)
    assert (refused.exit_code, "sweeperd replay --endpoint audit --cancel" in refused.stderr) == (1, True)
    assert client.xpending(EVENTS, "audit")["pending"] == 2
    unused = invoke("endpoints", "drop", "billing", "--before", "1ms", endpoints=ENDPOINTS)
    assert (unused.exit_code, "0 events of billing" in unused.stdout) == (0, True), unused.output


def test_a_backlog_whose_group_is_lost_is_not_said_to_be_empty(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    """The next process makes the group again, with all its events."""
    outbox = backlog(shard)
    client.xgroup_destroy(EVENTS, "audit")
    arguments = ["endpoints", "drop", "audit", "--before", "0s", "--yes"]
    lost = invoke(*arguments, endpoints=ENDPOINTS)
    assert (lost.exit_code, "the consumer group of audit is lost" in lost.stderr) == (1, True), lost.output
    outbox.groups.ensure("audit")
    dropped = invoke(*arguments, endpoints=ENDPOINTS)
    assert (dropped.exit_code, "4 events of audit" in dropped.stdout) == (0, True), dropped.output


@pytest.mark.parametrize("before", ["0001-01-01", "1970-01-01", "999999999d"])
def test_before_all_events_nothing_is_dropped(invoke: Run, shard: Shard, before: str) -> None:
    outbox = backlog(shard)
    dropped = invoke("endpoints", "drop", "audit", "--before", before, "--yes", endpoints=ENDPOINTS)
    assert (dropped.exit_code, "0 events of audit" in dropped.stdout) == (0, True), dropped.output
    assert outbox.groups.untaken("audit", StreamId.at(0), 10) == 0


@pytest.mark.every_redis
def test_a_full_redis_takes_a_drop(invoke: Run, own_shard: Shard, own_server: Server) -> None:
    for letters in ([], ["--dead-letters"]):
        outbox = backlog(own_shard)
        before = later(own_shard.client, ["young"])
        with full(own_shard):
            arguments = ["endpoints", "drop", "audit", "--before", before, "--yes", *letters]
            assert invoke(*arguments, url=own_server.url, endpoints=ENDPOINTS).exit_code == 0
        assert waiting(own_shard.client, outbox) == [b"young"]
        own_shard.client.flushall()
