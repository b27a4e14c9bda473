"""The circuit of an endpoint, on a clock of the test's own."""

import pytest

from sweeperd.delivery.circuit_breaker import FAILURES_TO_OPEN, CircuitBreaker
from sweeperd.delivery.redelivery import growing_wait


@pytest.mark.parametrize(
    ("times", "wait"), [(-1, 0), (0, 0), (1, 3), (2, 6), (3, 12), (4, 24), (5, 25), (6, 25), (10**9, 25)]
)
def test_growing_wait(times: int, wait: float) -> None:
    assert growing_wait(3, 25, times) == wait


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened() -> tuple[CircuitBreaker, Clock]:
    clock = Clock()
    circuit = CircuitBreaker(10, 35, clock)
    for _ in range(FAILURES_TO_OPEN):
        circuit.failed()
    return circuit, clock


def test_it_opens_after_several_failures_in_a_row() -> None:
    circuit = CircuitBreaker(10, 35, Clock())
    opening = []
    for _ in range(FAILURES_TO_OPEN - 1):
        opening.append(circuit.failed())
        assert not circuit.open
        assert not circuit.probe_due
    opening += [circuit.failed(), circuit.failed()]
    assert circuit.open
    assert opening == [False] * (FAILURES_TO_OPEN - 1) + [True, False], "it opens once"


def test_a_success_between_keeps_it_closed() -> None:
    circuit = CircuitBreaker(10, 35, Clock())
    for _ in range(3 * FAILURES_TO_OPEN):
        circuit.failed()
        circuit.succeeded()
    assert not circuit.open


def test_probes_come_with_growing_waits() -> None:
    circuit, clock = opened()
    for wait in (10, 20, 35, 35):
        assert circuit.open
        assert not circuit.probe_due
        clock.now += wait - 1
        assert not circuit.probe_due
        clock.now += 1
        assert circuit.probe_due
        assert not circuit.failed(probe=True), "a failed probe does not open it anew"


def test_what_was_under_way_when_it_opened_does_not_lengthen_the_wait() -> None:
    circuit, clock = opened()
    for _ in range(10):
        clock.now += 1
        assert not circuit.failed()
    assert circuit.probe_due


def test_a_probe_that_succeeds_closes_it() -> None:
    circuit, clock = opened()
    clock.now += 10
    circuit.succeeded()
    assert not circuit.open
    assert not circuit.probe_due
    assert [circuit.failed() for _ in range(FAILURES_TO_OPEN)][-1], "and it opens as it did at first"
    clock.now += 10
    assert circuit.probe_due
