"""Tests mistakes that a sweeper of any kind can make: paging, repeated calls and keys in other slots."""

from collections.abc import Iterator

import pytest
import redis

from tests.lua.kinds.world import ID, SCRIPT, TRACE, Seats, scripted
from tests.support.harness import eventually
from tests.support.servers import Binary, Server, free_port


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
