"""Runs of a script that are sent before the replies to earlier ones were read."""

import pytest
import redis

from sweeperd.store import Shard
from sweeperd.store.operations import run_scripts, run_together
from sweeperd.store.scripts import Call, Script, ScriptPipeline
from tests.support.busy import BUSY
from tests.support.harness import eventually
from tests.support.servers import Server

SCRIPT = Script("double", "if ARGV[1] == 'no' then return redis.error_reply('ERR no') end return ARGV[1] * 2")


def call(*args: int | str) -> list[Call]:
    return [Call([], [arg]) for arg in args]


@pytest.fixture(params=[False, True], ids=["known", "unknown"])
def client(shard: Shard, request: pytest.FixtureRequest) -> redis.Redis:
    """Of a server that knows the script, and of one that does not."""
    if request.param:
        shard.client.script_flush()
    else:
        shard.client.script_load(SCRIPT.source)
    return shard.client


def test_replies_come_in_the_order_of_the_calls(client: redis.Redis) -> None:
    with ScriptPipeline(SCRIPT, client) as stream:
        stream.send(call(1, 2))
        stream.send(call(3))
        assert stream.receive().replies == [2, 4]
        stream.send(call(4))
        assert [stream.receive().replies, stream.receive().replies] == [[6], [8]]


def test_an_error_stands_in_its_calls_place(client: redis.Redis) -> None:
    with ScriptPipeline(SCRIPT, client) as stream:
        stream.send(call(1, "no", 2))
        stream.send(call(3))
        one, error, two = stream.receive().replies
        assert (one, str(error), two) == (2, "no", 4)
        assert stream.receive().replies == [6]


def test_what_the_server_does_not_know_is_sent_whole_in_one_more_round_trip(client: redis.Redis) -> None:
    other = Script("triple", "return ARGV[1] * 3")
    client.ping()
    before = client.info("stats")["total_reads_processed"]
    outcomes = run_together(client, [run_scripts(script, call(n)) for n in range(40) for script in (SCRIPT, other)])
    assert outcomes == [[n * factor] for n in range(40) for factor in (2, 3)]
    assert client.info("stats")["total_reads_processed"] - before < 10


def test_a_connection_with_replies_on_the_way_is_not_used_again(client: redis.Redis) -> None:
    with ScriptPipeline(SCRIPT, client) as stream:
        stream.send(call(1))
    with ScriptPipeline(SCRIPT, client) as stream:
        stream.send(call(5))
        assert stream.receive().replies == [10]
    assert client.ping()


def test_a_connection_that_fails_is_told_of_and_replaced(client: redis.Redis, server: Server) -> None:
    with redis.Redis.from_url(server.url) as other, ScriptPipeline(SCRIPT, client) as stream:
        stream.send(call(1))
        assert stream.receive().replies == [2]
        other.client_kill_filter(_type="normal", skipme=True)

        def again() -> None:
            for _ in range(2):  # the first may still be written
                stream.send(call(2))
                stream.receive()

        with pytest.raises(redis.ConnectionError):
            again()
    with ScriptPipeline(SCRIPT, client) as stream:
        stream.send(call(3))
        assert stream.receive().replies == [6]


SLOW = Script(
    "slow",
    f"""{BUSY}
    busy(ARGV[1])
    return 1
    """,
)


def test_the_server_says_how_long_it_was_busy(shard: Shard) -> None:
    shard.client.script_flush()
    with ScriptPipeline(SLOW, shard.client) as stream:
        stream.send(call(0))
        assert stream.receive().micros is None  # it did not know the script
        stream.send(call(20_000, 10_000))
        received = stream.receive()
        assert received.replies == [1, 1]
        assert received.micros is not None
        assert 30_000 <= received.micros < 2_000_000
        assert received.pause_micros is None  # nothing was waiting before it


def test_the_server_says_how_long_it_was_busy_with_others(shard: Shard, server: Server) -> None:
    """What waits for its turn while another client is served says so."""
    SLOW.run(shard.client, call(0)[0])

    def waited_out_another() -> bool:
        with (
            redis.Redis.from_url(server.url, socket_timeout=60) as others,
            ScriptPipeline(SLOW, shard.client) as stream,
        ):
            first, second = (others.connection_pool.get_connection() for _ in range(2))
            # While the server is busy, two clients line up; while it serves the one, that one lines up again.
            first.send_command("EVALSHA", SLOW.sha, 0, 100_000)
            stream.send(call(100_000))
            second.send_command("EVALSHA", SLOW.sha, 0, 50_000)
            first.read_response()
            stream.send(call(0))
            stream.receive()
            waited = stream.receive().pause_micros
            second.read_response()
            for connection in (first, second):
                others.connection_pool.release(connection)
            return waited is not None and 50_000 <= waited < 2_000_000

    assert eventually(waited_out_another, 60)


def test_what_was_not_waiting_does_not_count_as_others_work(shard: Shard) -> None:
    with ScriptPipeline(SLOW, shard.client) as stream:
        stream.send(call(0))
        stream.receive()
        stream.send(call(0))
        assert stream.receive().pause_micros is None
