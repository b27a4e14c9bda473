"""Tests mistakes that a sweeper of any kind can make: paging, repeated calls and keys in other slots."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sweeperd.config import SweepSettings
from sweeperd.store import Shard
from sweeperd.sweep import Decision, Outcome
from tests.lua.kinds.world import DEADLINE, ID, SCRIPT, TRACE, Seats, scripted
from tests.support.builders import make_sweeper
from tests.support.harness import eventually
from tests.support.servers import Binary, Server, free_port

WAITING = SCRIPT.replace(
    "function decide(hash, now)",
    "function decide(hash, now)\n  if hash.show == 'late' then return 'wait', now + 60000 end",
)


@pytest.mark.parametrize("page_size", [7, 100])
def test_each_of_many_entries_with_one_score_is_decided_once(client: redis.Redis, shard: Shard, page_size: int) -> None:
    seats = Seats(client, scripted(WAITING))
    seats.show(held=900)
    pipeline = client.pipeline(transaction=False)
    for number in range(600):
        show = "late" if number % 2 else "s1"
        fields: dict[Any, Any] = {"state": "HELD", "show": show, "qty": 3, "customer": "c", "expires_at": DEADLINE}
        pipeline.hset(f"seats:hold:{number:04}", mapping=fields)
        pipeline.zadd("seats:ttl", {f"{number:04}": DEADLINE})
    pipeline.execute()
    seen: Counter[bytes] = Counter()
    outcomes: Counter[Outcome] = Counter()

    def observe(decisions: list[Decision], _trace: str) -> None:
        seen.update(decision.id for decision in decisions)
        outcomes.update(decision.outcome for decision in decisions)

    settings = SweepSettings.model_validate({"batch_size": page_size})
    report = make_sweeper(shard, seats.kind, settings, observe, threading.Event()).tick()  # type: ignore[arg-type]
    assert report.complete
    assert len(seen) == 600
    assert set(seen.values()) == {1}
    assert outcomes == {Outcome.EXPIRED: 300, Outcome.NOT_DUE: 300}
    assert seats.seats() == (910, 0)


@pytest.mark.parametrize("form", ["declared", "script"])
def test_a_call_that_is_repeated_after_a_cut_reply_changes_nothing(client: redis.Redis, form: str) -> None:
    seats = Seats(client, None if form == "declared" else scripted(SCRIPT))
    seats.show()
    seats.hold()
    call = seats.kind.call(ID, TRACE)
    connection = client.connection_pool.get_connection()
    connection.send_command("EVAL", seats.kind.script.source, len(call.keys), *call.keys, *call.args)
    eventually(lambda: client.exists("sweeperd:events") == 1)
    connection.disconnect()
    client.connection_pool.release(connection)
    before = seats.snapshot()
    assert seats.run().outcome == "skipped"
    assert seats.snapshot() == before
    assert seats.seats() == (13, 2)
    assert len(seats.events()) == 1


@pytest.fixture
def one_node(topology_binary: Binary) -> Iterator[redis.Redis]:
    """A Cluster of one node, which has all slots."""
    with Server(topology_binary, ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]) as server:
        with redis.Redis.from_url(server.url, protocol=2) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
            yield client


def test_every_key_that_is_touched_is_in_the_slot_of_the_tag(one_node: redis.Redis) -> None:
    show = "{other}s1"
    seats = Seats(one_node, scripted(SCRIPT), prefix="{t1}:")
    seats.show(show)
    seats.hold(show=show)
    slot = one_node.execute_command("CLUSTER", "KEYSLOT", "{t1}")
    assert slot != one_node.execute_command("CLUSTER", "KEYSLOT", f"seats:{show}")
    with one_node.monitor() as monitor:
        assert seats.run().outcome == "expired"
        one_node.echo("done")
        touched = set()
        while (line := monitor.next_command())["command"] != "ECHO done":
            words = line["command"].split()
            if line["client_type"] == "lua" and words[0] not in ("TIME", "time"):
                touched.add(words[1])
    assert len(touched) == 4
    for key in touched:
        assert one_node.execute_command("CLUSTER", "KEYSLOT", key) == slot, key
    assert seats.seats(show) == (13, 2)
    assert not one_node.exists(f"seats:{show}")
