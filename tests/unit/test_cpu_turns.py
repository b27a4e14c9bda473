"""How deliveries are spread over the time that a sweep takes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry, Counter

from sweeperd.cpu_turns import (
    DELIVERY_SHARE,
    FIRST_ESTIMATE,
    HANDFUL,
    LONG_LOOK_EVERY,
    LOOK_EVERY,
    RELAY_SHARE,
    CpuTurns,
)


@dataclass
class Times:
    """The clock and the CPU time of one thread, which only the test moves on; and the waits for a turn."""

    now: float = 100.0
    cpu: float = 0.0
    waits: list[float] = field(default_factory=list)


class Waiting(threading.Event):
    """A stop that never comes: a wait for it moves the clock on."""

    def __init__(self, times: Times) -> None:
        super().__init__()
        self._times = times
        #: What happens during a wait.
        self.then: Callable[[], object] = lambda: None

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._times.waits.append(timeout)
        self._times.now += timeout
        self.then()
        return False


class Deliveries:
    """Deliveries of one thread."""

    def __init__(self) -> None:
        self.times = Times()
        self.cpu_turns = CpuTurns(lambda: self.times.now, lambda: self.times.cpu)
        self.counter = Counter("waits", "", registry=CollectorRegistry())
        self.stop = Waiting(self.times)

    def deliver(self, count: int, cpu: float, seconds: float = 0.0, *, relay: bool = False) -> None:
        """So many, one after the other; each takes so much CPU time, and so many seconds on the clock."""
        turns = self.cpu_turns.records if relay else self.cpu_turns.deliveries
        for _ in range(count):
            begins = turns.book()
            if begins:
                self.counter.inc()
            while left := turns.wait(begins):
                self.stop.wait(left)
            turns.use(lambda: self._take(cpu, seconds))

    def _take(self, cpu: float, seconds: float) -> None:
        self.times.cpu += cpu
        self.times.now += seconds

    @contextmanager
    def sweep(self) -> Iterator[None]:
        """A sweep that has run for a while when the block begins."""
        with self.cpu_turns.sweep():
            self.times.now += HANDFUL
            yield

    @property
    def counted(self) -> float:
        """The counter of waits."""
        (metric,) = self.counter.collect()
        return next(sample.value for sample in metric.samples if sample.name == "waits_total")


@pytest.fixture
def deliveries() -> Deliveries:
    return Deliveries()


def test_nobody_waits_without_a_sweep(deliveries: Deliveries) -> None:
    deliveries.deliver(10, cpu=0.01)
    with deliveries.sweep():
        assert deliveries.cpu_turns.sweeping
    assert not deliveries.cpu_turns.sweeping
    deliveries.deliver(10, cpu=0.01)
    assert not deliveries.times.waits
    assert deliveries.counted == 0


def test_nobody_waits_for_a_sweep_of_a_handful(deliveries: Deliveries) -> None:
    """A sweep comes at each deadline, and costs less than the turns would."""
    with deliveries.cpu_turns.sweep():
        deliveries.times.now += 0.9 * HANDFUL
        deliveries.deliver(10, cpu=0.01)
        assert deliveries.counted == 0
        deliveries.times.now += 0.2 * HANDFUL
        deliveries.deliver(10, cpu=0.01)
        assert deliveries.counted == 9


@pytest.mark.parametrize("cpu", [0.0005, 0.004])
@pytest.mark.parametrize(("relay", "share"), [(False, DELIVERY_SHARE), (True, RELAY_SHARE)])
def test_beside_a_sweep_deliveries_have_their_share(
    deliveries: Deliveries, relay: bool, share: float, cpu: float
) -> None:
    deliveries.deliver(100, cpu, relay=relay)  # it knows what they cost
    with deliveries.sweep():
        began = deliveries.times.now
        deliveries.deliver(101, cpu, relay=relay)
    assert 100 * cpu / (deliveries.times.now - began) == pytest.approx(share, rel=0.01)
    assert deliveries.counted == 100


def test_the_relay_and_single_events_have_turns_of_their_own(deliveries: Deliveries) -> None:
    deliveries.deliver(100, cpu=0.1, relay=True)
    with deliveries.sweep():
        deliveries.deliver(1, cpu=0.1, relay=True)
        deliveries.deliver(1, cpu=0.001)
    assert not deliveries.times.waits


def test_a_wait_ends_with_the_sweep(deliveries: Deliveries) -> None:
    deliveries.deliver(100, cpu=0.002, relay=True)
    over = deliveries.sweep()
    over.__enter__()
    deliveries.stop.then = lambda: over.__exit__(None, None, None)
    deliveries.deliver(2, cpu=0.002, relay=True)
    assert deliveries.times.waits == [LOOK_EVERY]
    assert deliveries.counted == 1


def test_the_looks_of_a_long_wait_are_few(deliveries: Deliveries) -> None:
    deliveries.deliver(100, cpu=0.8, relay=True)
    with deliveries.sweep():
        deliveries.deliver(2, cpu=0.8, relay=True)
    assert sum(deliveries.times.waits) == pytest.approx(10, rel=0.01)
    assert len(deliveries.times.waits) <= 50
    assert max(deliveries.times.waits) == LONG_LOOK_EVERY


def test_the_first_delivery_beside_a_sweep_does_not_wait(deliveries: Deliveries) -> None:
    with deliveries.sweep():
        deliveries.deliver(1, cpu=0.5)
        assert not deliveries.times.waits
        deliveries.deliver(1, cpu=0.5)
    assert deliveries.times.waits == pytest.approx([FIRST_ESTIMATE / DELIVERY_SHARE])


def test_what_was_not_used_is_not_saved_up(deliveries: Deliveries) -> None:
    with deliveries.sweep():
        deliveries.deliver(1, cpu=0.001)
        deliveries.times.now += 60
        deliveries.deliver(3, cpu=0.001)
    assert len(deliveries.times.waits) == 2


def test_a_slow_receiver_costs_the_sweep_nothing(deliveries: Deliveries) -> None:
    with deliveries.sweep():
        deliveries.deliver(20, cpu=0.001, seconds=0.2)
    assert not deliveries.times.waits


def test_several_sweeps_at_once(deliveries: Deliveries) -> None:
    with deliveries.sweep():
        with deliveries.sweep():
            pass
        assert deliveries.cpu_turns.sweeping


def test_what_fails_counts_as_well(deliveries: Deliveries) -> None:
    def fail() -> None:
        deliveries.times.cpu += 1.0
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        deliveries.cpu_turns.deliveries.use(fail)
    with deliveries.sweep():
        deliveries.deliver(2, cpu=0.0)
    assert sum(deliveries.times.waits) > 0.1
