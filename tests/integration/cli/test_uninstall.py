"""`sweeperd uninstall`: what it removes, and what stays."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sweeperd.cli import uninstall
from sweeperd.cli.output import Output
from sweeperd.ops.processes import ProcessAnnouncer
from sweeperd.outbox import Outbox
from sweeperd.store import Shard
from tests.integration.cli.conftest import Run, expire
from tests.support.harness import reserve, server_time
from tests.support.servers import Server


def names(client: redis.Redis) -> set[str]:
    return {name.decode() for name in client.scan_iter()}


def used(shard: Shard) -> None:
    """Some expiries, a live reservation, an endpoint with a note of its group, and keys of others."""
    Outbox(shard, "test").groups.ensure("billing")
    reserve(shard.client, ["done", "open"])
    expire(shard.client, ["done"])
    shard.client.set("sweeperd", "another's")
    shard.client.hset("other:sweeperd:events", "another's", 1)


OTHERS = {"sweeperd", "other:sweeperd:events", "reservation:ttl", "reservation:res_done", "reservation:res_open"}


def test_what_is_still_needed_stays(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    used(shard)
    client.zadd("sweeperd:quarantine", {"broken": 1})
    client.zadd("sweeperd:quarantine:seat-hold", {"broken": 1})
    client.xadd("sweeperd:dead-letters", {"endpoint": "billing"})
    client.hset("sweeperd:ticks", "at", 1)
    for kind in ("seat-hold", "session"):  # nothing of the session is in quarantine
        client.hset(f"sweeperd:deadlines:{kind}", "broken", "1700000000000 ")
        client.hset(f"sweeperd:marks:{kind}", "broken", "INVALID_JSON ")
    result = invoke("uninstall", "--yes")
    assert (result.exit_code, "7 keys stay" in result.stderr) == (1, True)
    assert "events for billing" in result.stdout
    why = dict(line.split("\t")[1:] for line in result.stdout.splitlines())
    assert "`sweeperd quarantine requeue` or" in why["sweeperd:quarantine"]
    for key in ("quarantine", "deadlines", "marks"):
        assert "`sweeperd quarantine requeue --kind seat-hold` or" in why[f"sweeperd:{key}:seat-hold"]
    kept = {"sweeperd:events", "sweeperd:groups", "sweeperd:dead-letters"}
    kept |= {"sweeperd:quarantine", "sweeperd:quarantine:seat-hold"}
    kept |= {"sweeperd:deadlines:seat-hold", "sweeperd:marks:seat-hold"}
    assert {name for name in names(client) if name.startswith("sweeperd:")} == kept


def test_all_of_it_goes_when_nothing_waits(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    used(shard)
    outbox = Outbox(shard, "test")
    outbox.acknowledge("billing", [entry.id for entry in outbox.read("billing", 10)])
    result = invoke("uninstall", "--yes")
    assert result.exit_code == 0, result.output
    assert names(client) >= OTHERS
    assert not [name for name in names(client) if name.startswith("sweeperd:")]
    assert invoke("uninstall").exit_code == 0, "nothing is left to ask about"


def test_many_keys_go_in_one_run(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    """Removed in pages, of which none may look like a change to the next one."""
    used(shard)
    outbox = Outbox(shard, "test")
    outbox.acknowledge("billing", [entry.id for entry in outbox.read("billing", 10)])
    with client.pipeline(transaction=False) as pipeline:
        for number in range(uninstall.PAGE):
            pipeline.xadd(f"sweeperd:attempts:{number}", {"at": 1})
        pipeline.execute()
    result = invoke("uninstall", "--yes")
    assert (result.exit_code, [name for name in names(client) if name.startswith("sweeperd:")]) == (0, [])


def test_it_shows_first_and_asks(shard: Shard, client: redis.Redis, invoke: Run) -> None:
    client.hset("sweeperd:ticks", "at", 1)
    refused = invoke("uninstall")
    assert (refused.exit_code != 0, "Remove 1 key?" in refused.output) == (True, True)
    assert client.exists("sweeperd:ticks")
    assert "sweeperd:ticks" in refused.stdout


def write(shard: Shard, what: str) -> None:
    """What a process, or a service with the ledger, may write at any time."""
    client = shard.client
    match what:
        case "event":
            client.xadd("sweeperd:events", {"type": "budget.threshold_crossed"})
        case "letter":
            client.xadd("sweeperd:dead-letters", {"endpoint": "billing"})
        case "quarantined":
            client.zadd("sweeperd:quarantine", {"broken": 1})
        case "daemon":
            ProcessAnnouncer(shard, sweeps=True, delivers=True).update()


WRITTEN = ["event", "letter", "quarantined", "daemon"]


@pytest.mark.parametrize("moment", ["at the question", "at the last look"])
@pytest.mark.parametrize("what", WRITTEN)
def test_what_comes_after_the_list_stays(
    invoke: Run, shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, moment: str, what: str
) -> None:
    used(shard)
    outbox = Outbox(shard, "test")
    outbox.acknowledge("billing", [entry.id for entry in outbox.read("billing", 10)])
    looks = list[int]()

    def look(*arguments: Any) -> Iterator[tuple[bytes, str]]:
        yield from own_keys(*arguments)
        looks.append(1)
        if len(looks) == (1 if moment == "at the question" else 2):
            write(shard, what)

    own_keys = uninstall._own_keys
    monkeypatch.setattr(uninstall, "_own_keys", look)
    result = invoke("uninstall", "--yes")
    assert result.exit_code == 1
    key = {"event": "events", "letter": "dead-letters", "quarantined": "quarantine", "daemon": "processes"}[what]
    assert f"sweeperd:{key}" in names(client)
    if what == "event":
        assert client.xlen("sweeperd:events") == 2
        assert "sweeperd:groups" in names(client)
    if moment == "at the last look" or what == "daemon":
        assert "sweeperd:groups" in names(client), "nothing goes beside what is written"
    assert " stay" in result.stderr


def test_a_key_that_was_not_shown_stays(
    invoke: Run, client: redis.Redis, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.hset("sweeperd:ticks", "at", 1)
    monkeypatch.setattr(Output, "confirm", lambda *_, **__: client.xadd("sweeperd:attempts:billing", {"at": 1}))
    result = invoke("uninstall", "--json")
    assert (result.exit_code, names(client)) == (1, {"sweeperd:attempts:billing"})
    rows = {row["key"]: row["why"] for row in json.loads(result.stdout)["keys"]}
    assert not rows["sweeperd:ticks"]
    assert "since you were asked" in rows["sweeperd:attempts:billing"]


@pytest.mark.parametrize(
    ("group", "advice"),
    [
        ("billing", "`sweeperd --once` or `sweeperd endpoints drop billing --before 0s`"),
        ("_replay.billing", "`sweeperd replay --endpoint billing --cancel`"),
        ("warehouse", "no endpoint: let its program read them, or XGROUP DESTROY sweeperd:events warehouse"),
    ],
)
def test_the_advice_fits_the_group(invoke: Run, client: redis.Redis, group: str, advice: str) -> None:
    client.xadd("sweeperd:events", {"kind": "reservations"})
    client.xgroup_create("sweeperd:events", group, "0")
    result = invoke("uninstall", "--yes", endpoints=[{"name": "billing", "url": "http://127.0.0.1:9/"}])
    assert (result.exit_code, advice in result.stdout) == (1, True), result.stdout


@pytest.mark.parametrize("start", ["now", "beginning"])
def test_events_stay_for_a_group_that_is_lost_or_to_be_made(
    invoke: Run, shard: Shard, client: redis.Redis, start: str
) -> None:
    outbox, endpoints = Outbox(shard, "test"), [{"name": "billing", "url": "http://127.0.0.1:9/", "start": start}]
    if start == "now":
        outbox.groups.ensure("billing")
    reserve(client, ["done"])
    expire(client, ["done"])
    if start == "now":
        client.xgroup_destroy("sweeperd:events", "billing")
    result = invoke("uninstall", "--yes", endpoints=endpoints)
    advice = "events for billing, whose consumer group is lost: `sweeperd --once` makes it again"
    assert (result.exit_code, advice in result.stdout) == (1, True), result.output
    assert names(client) >= {"sweeperd:events"}
    Outbox(shard, "next").groups.ensure("billing", "beginning")
    outbox.acknowledge("billing", [entry.id for entry in outbox.read("billing", 10)])
    assert invoke("uninstall", "--yes", endpoints=endpoints).exit_code == 0
    assert not [name for name in names(client) if name.startswith("sweeperd:")]


def test_events_stay_for_a_lost_group_whose_position_is_beyond_the_end(
    invoke: Run, shard: Shard, client: redis.Redis
) -> None:
    """The stream was deleted, and the clock set back: the daemon begins anew there."""
    outbox, endpoints = Outbox(shard, "test"), [{"name": "billing", "url": "http://127.0.0.1:9/"}]
    reserve(client, ["done"])
    expire(client, ["done"])
    outbox.groups.ensure("billing", "now")
    client.delete("sweeperd:events")
    client.xadd("sweeperd:events", {"kind": "reservations"}, id=f"{server_time(client) - 3_600_000}-0")
    result = invoke("uninstall", "--yes", endpoints=endpoints)
    assert (result.exit_code, "whose consumer group is lost" in result.stdout) == (1, True), result.output
    outbox.groups.ensure("billing")
    assert len(outbox.read("billing", 10)) == 1


def test_a_group_that_was_never_made_keeps_nothing(invoke: Run, client: redis.Redis) -> None:
    client.xadd("sweeperd:events", {"kind": "reservations"})
    result = invoke("uninstall", "--yes", endpoints=[{"name": "billing", "url": "http://127.0.0.1:9/"}])
    assert (result.exit_code, names(client)) == (0, set()), result.output


def test_nothing_goes_while_a_daemon_runs(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    client.hset("sweeperd:ticks", "at", 1)
    ProcessAnnouncer(shard, sweeps=True, delivers=True).update()
    result = invoke("uninstall", "--yes")
    assert (result.exit_code, "runs: stop it" in result.stdout, "2 keys stay" in result.stderr) == (1, True, True)
    assert client.exists("sweeperd:ticks")
    client.delete("sweeperd:ticks")
    assert "1 key stays" in invoke("uninstall", "--yes").stderr


def test_what_may_not_be_removed_stays(own_shard: Shard, own_server: Server, invoke: Run) -> None:
    client = own_shard.client
    client.hset("sweeperd:ticks", "at", 1)
    client.xadd("sweeperd:dead-letters", {"endpoint": "billing"})
    client.execute_command("ACL", "SETUSER", "sweeperd", "reset", "on", ">only-for-tests", "~*", "+@all", "-unlink")
    url = own_server.url.replace("redis://", "redis://sweeperd:only-for-tests@")
    refused = invoke("uninstall", "--yes", "--json", url=url)
    document = json.loads(refused.stdout)
    assert {row["key"]: (row["removed"], bool(row["why"])) for row in document["keys"]} == {
        "sweeperd:dead-letters": (False, True),
        "sweeperd:ticks": (False, True),
    }
    assert (refused.exit_code, "2 keys stay" in refused.stderr, len(document["down"])) == (1, True, 1)


def test_a_prefix_is_no_pattern(shard: Shard, client: redis.Redis, invoke: Run) -> None:
    client.hset("[ab]:sweeperd:ticks", "at", 1)
    client.hset("a:sweeperd:ticks", "at", 1)
    shards = [{"name": "default", "url": client_url(client), "prefix": "[ab]:"}]
    assert invoke("uninstall", "--yes", shards=shards).exit_code == 0
    assert names(client) == {"a:sweeperd:ticks"}


def client_url(client: redis.Redis) -> str:
    found = client.connection_pool.connection_kwargs
    return f"redis://{found.get('host', '127.0.0.1')}:{found['port']}/{found.get('db', 0)}"
