"""When a process publishes its circuit and its rate, and what it does where an operator closes the circuit."""

import pytest

from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.delivery.circuit import FAILURES_TO_OPEN, CircuitBreaker, CircuitPublisher
from sweeperd.outbox import CircuitState, CircuitStateStore
from sweeperd.store import Shard


class World:
    """One publisher on a clock of the test's own, and what operators see of it."""

    now = 1000.0

    def __init__(self, shard: Shard) -> None:
        self._client = shard.client
        self.store = CircuitStateStore(shard)
        self.circuit = CircuitBreaker(30.0, 3600.0, self.clock)
        self.publisher = CircuitPublisher(shard, "billing", "us", self.circuit, Timing(clock=self.clock))

    def clock(self) -> float:
        return self.now

    @property
    def seen(self) -> CircuitState:
        return self.store.read("billing")

    def open_circuit(self) -> None:
        for _ in range(FAILURES_TO_OPEN):
            self.circuit.failed(b"1-1", "HTTP 500")

    def published(self, delivered: int) -> bool:
        """Whether it publishes where it has delivered so many events so far."""
        return self.publisher.note_when_due(delivered) is not None

    def closes(self) -> bool:
        """Whether an operator has closed the circuit since the last look."""
        return self.publisher.operator_closes(self._client.hget("sweeperd:circuits", "billing"))  # type: ignore[arg-type]


@pytest.fixture
def world(shard: Shard) -> World:
    return World(shard)


def test_it_publishes_at_once_and_then_every_few_seconds(world: World) -> None:
    assert world.published(0)
    world.now += DEFAULT_TIMING.note_every - 1
    assert not world.published(0)
    world.now += 1
    assert world.published(0)
    assert not world.published(0)


def test_it_publishes_at_once_where_something_was_delivered(world: World) -> None:
    assert world.published(0)
    assert world.published(1)
    assert not world.published(1)


def test_it_publishes_the_rate(world: World) -> None:
    world.publisher.note_when_due(0)
    world.now += 10
    world.publisher.note_when_due(50)
    world.publisher.publish()
    assert (world.seen.rate, world.seen.rate_window) == (5.0, 10.0)


def test_an_operator_closes_it_once(world: World) -> None:
    world.open_circuit()
    world.publisher.publish()
    assert world.seen.open
    assert not world.closes()
    world.store.close("billing")
    assert world.closes()
    assert not world.circuit.open
    assert (world.seen.processes, world.seen.open) == (1, False), "operators see it at once"
    world.open_circuit()
    assert not world.closes()
    assert world.circuit.open


def test_what_an_operator_did_before_the_start_is_long_past(world: World) -> None:
    world.store.close("billing")
    world.open_circuit()
    assert not world.closes()
    assert world.circuit.open


def test_a_circuit_that_was_closed_anyway_is_not_published_for_an_operator(world: World) -> None:
    assert not world.closes()
    world.store.close("billing")
    assert world.closes(), "waits end all the same"
    assert world.seen.processes == 0


def test_what_was_published_is_removed_at_the_end(world: World) -> None:
    world.publisher.publish()
    world.publisher.remove()
    assert world.seen.processes == 0
