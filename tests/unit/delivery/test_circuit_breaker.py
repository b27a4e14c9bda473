"""The circuit of an endpoint, on a clock of the test's own."""

import pytest

from sweeperd.delivery.circuit import FAILURES_TO_OPEN, CircuitBreaker, growing_wait

EVENT = b"1-1"


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
        circuit.failed(EVENT, "HTTP 500")
    return circuit, clock


def test_it_opens_after_several_failures_in_a_row() -> None:
    circuit = CircuitBreaker(10, 35, Clock())
    opening = []
    for _ in range(FAILURES_TO_OPEN - 1):
        opening.append(circuit.failed(EVENT, "HTTP 500"))
        assert not circuit.open
        assert not circuit.probe_due
    opening += [circuit.failed(EVENT, "HTTP 500"), circuit.failed(EVENT, "HTTP 500")]
    assert circuit.open
    assert opening == [False] * (FAILURES_TO_OPEN - 1) + [True, False], "it opens once"


def test_a_success_between_keeps_it_closed() -> None:
    circuit = CircuitBreaker(10, 35, Clock())
    for _ in range(3 * FAILURES_TO_OPEN):
        circuit.failed(EVENT, "HTTP 500")
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
        assert not circuit.failed(EVENT, "HTTP 500", probe=True), "a failed probe does not open it anew"


def test_what_was_under_way_when_it_opened_does_not_lengthen_the_wait() -> None:
    circuit, clock = opened()
    for _ in range(10):
        clock.now += 1
        assert not circuit.failed(EVENT, "HTTP 500")
    assert circuit.probe_due


def test_a_probe_that_succeeds_closes_it() -> None:
    circuit, clock = opened()
    clock.now += 10
    circuit.succeeded()
    assert not circuit.open
    assert not circuit.probe_due
    assert [circuit.failed(EVENT, "HTTP 500") for _ in range(FAILURES_TO_OPEN)][-1], "and it opens as it did at first"
    clock.now += 10
    assert circuit.probe_due


def refuse(circuit: CircuitBreaker, *numbers: int, probe: bool = False) -> list[bool]:
    return [circuit.refused(b"%d-1" % number, "HTTP 422", probe=probe) for number in numbers]


def test_refusals_of_the_same_few_events_do_not_move_it() -> None:
    circuit = CircuitBreaker(10, 35, Clock())
    assert not any(refuse(circuit, *[1, 2, 3, 4] * 10))
    assert (circuit.failures, circuit.open) == (0, False)


def test_five_different_events_refused_in_a_row_are_the_endpoints_failure() -> None:
    circuit = CircuitBreaker(10, 35, Clock())
    refuse(circuit, 1, 2, 3, 4)
    circuit.succeeded()
    assert not any(refuse(circuit, 5, 6, 7, 8)), "not in a row"
    assert refuse(circuit, 8, 9) == [False, True]
    assert circuit.open
    assert not circuit.rests_on_one_event
    assert circuit.reason == "HTTP 422"


def test_a_refused_probe_lets_another_event_be_the_probe_at_once() -> None:
    circuit, clock = opened()
    clock.now += 10
    for number in (1, 2, 3, 4):
        refuse(circuit, number, probe=True)
        assert circuit.probe_due
        assert circuit.failures == FAILURES_TO_OPEN
    refuse(circuit, 5, probe=True)
    assert circuit.failures == FAILURES_TO_OPEN + 1
    assert circuit.wait == 20


def test_the_only_event_there_is_is_not_probed_without_a_pause() -> None:
    circuit, clock = opened()
    clock.now += 10
    refuse(circuit, 1, 1, probe=True)
    assert circuit.wait == 20


def test_a_refusal_that_was_under_way_when_it_opened_says_nothing() -> None:
    circuit, _ = opened()
    refuse(circuit, 1, 2, 3, 4, 5, 6)
    assert circuit.failures == FAILURES_TO_OPEN
    assert circuit.wait == 10


def test_after_refusals_that_counted_as_a_failure_the_count_begins_anew() -> None:
    circuit, clock = opened()
    clock.now += 10
    refuse(circuit, 1, 2, 3, 4, 5, probe=True)
    clock.now += 20
    refuse(circuit, 6, probe=True)
    assert circuit.failures == FAILURES_TO_OPEN + 1
    assert circuit.probe_due, "another event is the probe"


def test_one_caller_at_a_time_has_the_probe() -> None:
    circuit, clock = opened()
    assert not circuit.take_probe()
    clock.now += 10
    assert circuit.take_probe()
    assert not circuit.take_probe()
    clock.now += 9
    assert not circuit.take_probe()
    clock.now += 1
    assert circuit.take_probe(), "the first caller may have died"


def test_a_probe_that_was_returned_is_due_again() -> None:
    circuit, clock = opened()
    clock.now += 10
    assert circuit.take_probe()
    circuit.return_probe()
    assert circuit.take_probe()


def test_successes_are_counted_and_the_last_one_is_known() -> None:
    clock = Clock()
    circuit = CircuitBreaker(10, 35, clock)
    assert (circuit.successes, circuit.idle) == (0, None)
    circuit.succeeded()
    circuit.succeeded()
    clock.now += 7
    assert (circuit.successes, circuit.idle) == (2, 7)


def test_whether_it_rests_on_one_event() -> None:
    circuit, _ = opened()
    assert circuit.rests_on_one_event
    circuit.failed(b"2-1", "HTTP 500", probe=True)
    assert not circuit.rests_on_one_event
    circuit.succeeded()
    assert circuit.rests_on_one_event
