"""What all replicas know of an endpoint."""

import json
from collections.abc import Callable

import pytest
import redis

from sweeperd.delivery.endpoint_state import EndpointState, EndpointStateCache, EndpointStateStore
from sweeperd.store.shard import Shard
from tests.support.fixtures import full
from tests.support.harness import server_time

KEY = "sweeperd:endpoints"


@pytest.fixture
def board(shard: Shard) -> EndpointStateStore:
    return EndpointStateStore(shard)


def test_an_endpoint_that_is_not_on_it_is_open(board: EndpointStateStore) -> None:
    state = board.read("billing")
    assert state == EndpointState()
    assert not state.paused
    assert state.muted_until == 0


def test_pause(board: EndpointStateStore, shard: Shard, client: redis.Redis) -> None:
    before = server_time(client)
    told = board.pause("billing", "the receiver answered 410")
    state = EndpointStateStore(shard).read("billing")  # another replica
    assert state == told
    assert state.paused
    assert state.reason == "the receiver answered 410"
    assert state.paused_at is not None
    assert before - 5 <= state.paused_at <= server_time(client) + 5
    assert not board.read("audit").paused
    note = json.loads(client.hget(KEY, "billing") or "")
    assert (note["paused_at"], note["reason"]) == (state.paused_at, "the receiver answered 410")


def test_an_operator_resumes_it(board: EndpointStateStore, client: redis.Redis) -> None:
    board.pause("billing", "")
    board.pause("audit", "")
    assert board.resume("billing")
    assert not board.read("billing").paused
    assert board.read("audit").paused
    assert not board.resume("billing"), "it is open already"
    board.mute("billing", 60)
    assert board.resume("billing")
    assert board.read("billing") == EndpointState()


def test_quiet_does_not_lift_a_pause(board: EndpointStateStore) -> None:
    """A request that was in flight when somebody paused the endpoint is answered with Retry-After."""
    paused = board.pause("billing", "moving house")
    assert board.mute("billing", 60) == paused
    assert board.read("billing") == paused


def test_quiet_follows_quiet(board: EndpointStateStore) -> None:
    board.mute("billing", 60)
    longer = board.mute("billing", 600)
    assert board.read("billing") == longer


@pytest.mark.parametrize("note", [b"nonsense", b'{"colour": 1}', b'"paused"', b"null"])
def test_quiet_leaves_alone_what_cannot_be_read(note: bytes, board: EndpointStateStore, client: redis.Redis) -> None:
    client.hset(KEY, "billing", note)
    assert board.mute("billing", 60).paused
    assert client.hget(KEY, "billing") == note


def test_quiet(board: EndpointStateStore, client: redis.Redis) -> None:
    told = board.mute("billing", 90.5)
    state = board.read("billing")
    assert state == told
    assert not state.paused
    assert state.muted_until == pytest.approx(server_time(client) + 90_500, abs=2000)


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"nonsense",
        b"\xff",
        b"[]",
        b"[1, 2]",
        b"5",
        b"null",
        b'"paused"',
        b'{"colour": 1}',
        b'{"muted_until": "soon"}',
        b'{"muted_until": null}',
    ],
)
def test_what_cannot_be_read_pauses_it(note: bytes, board: EndpointStateStore, client: redis.Redis) -> None:
    """To send to a receiver that must be left alone is worse than to wait."""
    client.hset(KEY, "billing", note)
    state = board.read("billing")
    assert state.paused
    assert KEY in state.reason


def test_a_note_by_hand(board: EndpointStateStore, client: redis.Redis) -> None:
    client.hset(KEY, "billing", '{"paused_at": 1, "reason": "moving house"}')
    assert board.read("billing") == EndpointState(paused_at=1, reason="moving house")


def test_a_full_redis_takes_no_note(own_shard: Shard) -> None:
    board = EndpointStateStore(own_shard)
    with full(own_shard):
        assert board.pause("billing", "gone").paused, "but the process that was told knows"
        assert board.mute("billing", 5).muted_until > 0
    assert board.read("billing") == EndpointState()


def test_any_other_refusal_is_raised(board: EndpointStateStore, client: redis.Redis) -> None:
    client.set(KEY, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        board.pause("billing", "gone")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        board.read("billing")


@pytest.mark.parametrize("tell", [lambda watch: watch.mute(60), lambda watch: watch.pause("gone")])
def test_what_a_sender_is_told_outlives_a_look_that_began_before(
    tell: Callable[[EndpointStateCache], None], board: EndpointStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, read = EndpointStateCache(board, "billing"), board.read

    def overtaken(endpoint: str) -> EndpointState:
        state = read(endpoint)
        tell(watch)
        return state

    monkeypatch.setattr(board, "read", overtaken)
    watch.look()
    assert watch.state != EndpointState()
    monkeypatch.undo()
    watch.look()
    assert watch.state == board.read("billing") != EndpointState()


def test_a_watch_sees_that_an_endpoint_was_resumed(board: EndpointStateStore, client: redis.Redis) -> None:
    watch = EndpointStateCache(board, "billing")
    watch.pause("gone")
    assert watch.state.paused
    board.resume("billing")
    watch.look()
    assert watch.state == EndpointState()
