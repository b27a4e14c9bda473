"""What operators see of circuits."""

import pytest
import redis

from sweeperd.delivery.circuit_breaker import FAILURES_TO_OPEN, CircuitBreaker
from sweeperd.delivery.endpoint_state import PROBE_PATIENCE_MS, CircuitState, CircuitStateStore
from sweeperd.store.process import process_name
from sweeperd.store.shard import Shard
from tests.support.fixtures import full

KEY = "sweeperd:circuits"


def opened(probes: int = 0) -> CircuitBreaker:
    circuit = CircuitBreaker(30.0, 3600.0)
    for number in range(FAILURES_TO_OPEN + probes):
        circuit.failed(b"1-1", "HTTP 500", probe=number >= FAILURES_TO_OPEN)
    return circuit


def test_nothing_is_told_of_one_that_is_not_there(shard: Shard) -> None:
    state = CircuitStateStore(shard).read("billing")
    assert state == CircuitState()
    assert not state.open(shard.clock.now_ms())


def test_it_is_open_until_it_is_told_that_it_is_closed(shard: Shard) -> None:
    board, now = CircuitStateStore(shard), shard.read_clock()
    circuit = opened(probes=2)
    board.write("billing", circuit)
    state = CircuitStateStore(shard).read("billing")
    assert (state.failures, state.reason, state.by) == (FAILURES_TO_OPEN + 2, "HTTP 500", process_name())
    assert state.probe_at == pytest.approx(now + 120_000, abs=2000)
    assert state.open(now)
    assert not board.read("audit").open(now)
    circuit.succeeded()
    board.write("billing", circuit)
    assert board.read("billing") == CircuitState()


def test_who_has_died_is_not_believed_for_ever(shard: Shard) -> None:
    board, now = CircuitStateStore(shard), shard.read_clock()
    board.write("billing", opened())
    state = board.read("billing")
    assert state.open(now + 30_000 + PROBE_PATIENCE_MS - 2000)
    assert not state.open(now + 30_000 + PROBE_PATIENCE_MS + 2000)


@pytest.mark.parametrize("entry", ["", "{", "[]", '{"probe_at": "soon"}'])
def test_what_cannot_be_read_is_closed(entry: str, shard: Shard, client: redis.Redis) -> None:
    client.hset(KEY, "billing", entry)
    assert CircuitStateStore(shard).read("billing") == CircuitState()


def test_a_redis_that_refuses_it_disturbs_nobody(own_shard: Shard) -> None:
    board = CircuitStateStore(own_shard)
    with full(own_shard):
        board.write("billing", opened())
    assert board.read("billing") == CircuitState()
    own_shard.client.set(KEY, "text")
    board.write("billing", opened())


def test_a_redis_that_is_down_is_told_of(own_shard: Shard) -> None:
    own_shard.client.config_set("min-replicas-to-write", 1)
    with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
        CircuitStateStore(own_shard).write("billing", opened())
