"""A change that Redis made, and whose answer was lost: nothing says that it was not made."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sweeperd.ops.actions import read_actions
from sweeperd.outbox import Outbox
from sweeperd.store import Shard
from sweeperd.store.scripts import Script, script_names
from tests.integration.cli.conftest import Run, expire, give_up
from tests.support.harness import reserve
from tests.support.proxy import Proxy
from tests.support.servers import Server

ENDPOINTS = [{"name": "billing", "url": "http://billing.example.com/"}]


@pytest.fixture
def proxy(server: Server, client: redis.Redis) -> Iterator[Proxy]:
    """With the scripts known to the server, so that each is called by its hash."""
    for name in script_names("delivery") + script_names("ops"):
        client.script_load(Script(name).source)
    with Proxy(server.port) as made:
        yield made


def lose(proxy: Proxy, name: str) -> None:
    """The next answer to this command, or to the script of this name."""
    proxy.loses = (Script(name).sha if "/" in name else name).encode()


def pending(shard: Shard, ids: list[str]) -> None:
    outbox = Outbox(shard, "test")
    outbox.groups.ensure("billing")
    reserve(shard.client, ids)
    expire(shard.client, ids)
    outbox.read("billing", 100)


@pytest.mark.parametrize(
    ("arguments", "loses", "action", "says"),
    [
        ("dead-letters drop --all", "XDEL", "drop", "at least 0 dropped"),
        ("dead-letters replay --all", "ops/replay", "replay", "at least 0 replayed"),
        ("endpoints drop billing --before 0s", "XACK", "drop-backlog", "at least 0 events of billing"),
        ("endpoints drop billing --before 0s --dead-letters", "delivery/dead_letter", "drop-backlog", "at least 0"),
        ("endpoints skip billing EVENT", "delivery/dead_letter", "skip", ""),
        ("endpoints pause billing", "delivery/set_state", "pause", ""),
        ("quarantine dismiss --all", "ops/dismiss", "dismiss", "dismissed at least 0 entries"),
        ("quarantine requeue aside", "ops/requeue", "requeue", "requeued at least 0 entries"),
    ],
)  # fmt: skip
def test_a_change_without_an_answer_is_recorded_as_not_finished(
    invoke: Run, shard: Shard, proxy: Proxy, arguments: str, loses: str, action: str, says: str
) -> None:
    client = shard.client
    give_up(shard, ["l1", "l2"])
    pending(shard, ["e1", "e2"])
    reserve(client, ["aside"], overdue_by=-50_000)
    client.zrem("reservation:ttl", "aside")
    client.zadd("sweeperd:quarantine", {"aside": 1})
    pending_now: Any = client.xpending_range("sweeperd:events", "billing", "-", "+", 1)
    before = {key: client.dump(key) for key in client.scan_iter()}
    lose(proxy, loses)
    words = arguments.replace("EVENT", pending_now[0]["message_id"].decode()).split()
    ran = invoke(*words, "--yes", url=proxy.url, endpoints=ENDPOINTS)
    assert proxy.loses is None, "it was asked"
    assert ran.exit_code == 1
    assert "there was no answer to the last change, so more may have changed than is said" in ran.stderr
    assert "no dead letters match" not in ran.output
    assert "is not pending" not in ran.output
    assert says in ran.stdout
    assert {key: client.dump(key) for key in client.scan_iter()} != before
    ((_, recorded),) = read_actions(shard)
    assert (recorded.action, recorded.count, recorded.finished) == (action, 0, False)
    assert client.hgetall("sweeperd:action-counts") == {action.encode(): b"1", f"{action}:changed".encode(): b"0"}


def test_a_copy_of_each_dropped_letter_is_printed(invoke: Run, shard: Shard, proxy: Proxy) -> None:
    letters = [letter.decode() for letter in give_up(shard, ["l1", "l2", "l3"])]
    lose(proxy, "XDEL")
    ran = invoke("dead-letters", "drop", "--all", "--yes", "--json", url=proxy.url, endpoints=ENDPOINTS)
    document = json.loads(ran.stdout)
    assert [letter["id"] for letter in document["dead_letters"]] == letters
    assert all(letter["event"]["data"]["reservation_id"] for letter in document["dead_letters"])
    assert (document["dropped"], document["left"], len(document["down"])) == (0, 0, 1)
    assert shard.client.xlen("sweeperd:dead-letters") == 0


def test_a_server_that_was_never_reached_leaves_nothing_unknown(invoke: Run) -> None:
    ran = invoke("endpoints", "skip", "billing", "1-1", "--yes", url="redis://127.0.0.1:1/0", endpoints=ENDPOINTS)
    assert ran.exit_code == 1
    assert "not available" in ran.stderr
    assert "there was no answer" not in ran.stderr
