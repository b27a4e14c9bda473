"""What is measured while the load runs, and how it is cut into windows and steps."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean, median

from prometheus_client.parser import text_string_to_metric_families

from tests.support.harness import Daemon
from tests.support.traffic.load import LedgerCall


@dataclass(frozen=True)
class Sample:
    """The whole at one moment. Counts are since the start."""

    #: Seconds since the load's start.
    at: float
    operations: int
    calls: int
    #: What the daemon counted as expired.
    expired: int
    #: Requests at the receiver.
    received: int
    #: `sweeperd_due_entries` and `sweeperd_oldest_due_seconds`, as the daemon saw them last.
    due_entries: int
    oldest_due_seconds: float
    #: The daemon's resident memory.
    daemon_bytes: float
    #: The server's `used_memory`.
    redis_bytes: int


@dataclass(frozen=True)
class LatencyStep:
    """The calls that began in one step. `at` is its middle, in seconds since the load's start; times are ms."""

    at: float
    calls: int
    mean_ms: float
    median_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True)
class Windows:
    """
    The spans of a run that are compared, (from, to) in seconds since its start. A window is one minute, in runs of
    less than six minutes a sixth of the run; the first of them is warm-up and not used.
    """

    duration: float

    @property
    def length(self) -> float:
        return min(60.0, self.duration / 6)

    @property
    def first(self) -> tuple[float, float]:
        """After the warm-up."""
        return self.length, 2 * self.length

    @property
    def last(self) -> tuple[float, float]:
        return self.duration - self.length, self.duration

    @property
    def last_tenth(self) -> tuple[float, float]:
        return 0.9 * self.duration, self.duration


@dataclass(frozen=True)
class DaemonMetrics:
    """What the soak wants of a daemon's /metrics. `resident_bytes` is NaN if the platform does not report it."""

    resident_bytes: float
    expired: int
    due_entries: int
    oldest_due_seconds: float


def read_metrics(daemon: Daemon) -> DaemonMetrics:
    """Read them in one request. Raises OSError if the daemon does not answer."""
    values = {
        (sample.name, sample.labels.get("outcome")): sample.value
        for family in text_string_to_metric_families(daemon.get("/metrics")[1])
        for sample in family.samples
    }
    return DaemonMetrics(
        values.get(("process_resident_memory_bytes", None), math.nan),
        int(values.get(("sweeperd_candidates_total", "expired"), 0)),
        int(values.get(("sweeperd_due_entries", None), 0)),
        values.get(("sweeperd_oldest_due_seconds", None), 0.0),
    )


def within(points: Iterable[tuple[float, float]], window: tuple[float, float]) -> list[float]:
    """The values of those (at, value) points that lie in the window, its end not included."""
    begin, end = window
    return [value for at, value in points if begin <= at < end]


def latency_steps(calls: Sequence[LedgerCall], step: float) -> list[LatencyStep]:
    """Calls in the order of `at`, summed up over each `step` seconds; steps without a call are left out."""
    steps = []
    for number, group in groupby(calls, lambda call: int(call.at // step)):
        taken = sorted(1000 * call.seconds for call in group)
        steps.append(
            LatencyStep(
                (number + 0.5) * step,
                len(taken),
                fmean(taken),
                median(taken),
                taken[math.ceil(0.99 * len(taken)) - 1],
                taken[-1],
            )
        )
    return steps


def thinned(samples: Sequence[Sample], step: float) -> list[Sample]:
    """The first sample of each `step` seconds."""
    return [next(group) for _, group in groupby(samples, lambda sample: sample.at // step)]


def rates(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    """(middle of the span, growth a second) of the count `name` from each sample to the next."""
    return [
        ((one.at + two.at) / 2, (getattr(two, name) - getattr(one, name)) / (two.at - one.at))
        for one, two in pairwise(samples)
    ]
