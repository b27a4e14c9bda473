"""Samples a soak, and cuts what was measured into windows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from proof.soak.faults import calm


@dataclass(frozen=True)
class Sample:
    """The whole at one moment. Counts are since the start."""

    #: Seconds since the load's start.
    at: float
    operations: int
    calls: int
    lost: int
    #: Shard -> events in its stream; as before while its Redis is down.
    expired: Mapping[str, int]
    #: Endpoint -> events that its receivers have accepted.
    accepted: Mapping[str, int]
    #: Replica -> resident bytes; one that is down is left out.
    memory: Mapping[str, int]


@dataclass(frozen=True)
class Windows:
    """The spans of a run that are compared, (from, to): the second half of its quiet start, and of its quiet end."""

    duration: float

    @property
    def length(self) -> float:
        return calm(self.duration) / 2

    @property
    def first(self) -> tuple[float, float]:
        """After the warm-up."""
        return self.length, 2 * self.length

    @property
    def last(self) -> tuple[float, float]:
        return self.duration - self.length, self.duration


def within(points: Iterable[tuple[float, float]], window: tuple[float, float]) -> list[float]:
    """The values of those (at, value) points that lie in the window, its end not included."""
    begin, end = window
    return [value for at, value in points if begin <= at < end]
