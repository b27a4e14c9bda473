"""Draws the faults of a chaos soak from seed and duration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

REPLICAS = ("replica-1", "replica-2", "replica-3")
SHARDS = ("north", "south")
#: The endpoints, by how their receivers behave.
BATCHES, FAILS, HANGS, MOVES = ENDPOINTS = ("batches", "fails", "hangs", "moves")
#: The file of settings that all replicas read.
SETTINGS = "settings"

#: Seconds: in each round of this length each fault comes once.
ROUND = 60.0


class FaultType(StrEnum):
    """What is done."""

    KILL = "replica killed"
    PAUSE = "replica paused"
    SKEW = "host clock skewed"
    REDIS_KILL = "Redis killed"
    CUT = "connections cut"
    FLUSH = "scripts flushed"
    FULL = "memory filled"
    RELOAD = "settings reloaded"
    REPLACE = "endpoint replaced"
    REST = "endpoint paused"


#: What each fault may be done to, and how long it may last, seconds.
_RULES: dict[FaultType, tuple[Sequence[str], tuple[float, float]]] = {
    FaultType.KILL: (REPLICAS, (0.5, 8.0)),
    # Longer than TAKE_OVER_AFTER at times, so that other replicas take over the events of the paused one.
    FaultType.PAUSE: (REPLICAS, (1.0, 22.0)),
    FaultType.SKEW: (REPLICAS, (4.0, 20.0)),
    FaultType.REDIS_KILL: (SHARDS, (0.2, 5.0)),
    FaultType.CUT: (SHARDS, (0.0, 0.0)),
    FaultType.FLUSH: (SHARDS, (0.0, 0.0)),
    FaultType.FULL: (SHARDS, (0.5, 3.0)),
    FaultType.RELOAD: ([SETTINGS], (0.0, 0.0)),
    FaultType.REPLACE: ([MOVES], (0.0, 0.0)),
    FaultType.REST: (ENDPOINTS, (2.0, 12.0)),
}
#: How far a clock is moved, hours.
SKEWS = (-48.0, -2.0, 2.0, 48.0)


@dataclass(frozen=True)
class Fault:
    """One fault: when it begins, in seconds since the load's start, and for how many seconds it lasts."""

    at: float
    type: FaultType
    target: str
    lasts: float
    #: What else is drawn, 0 to 1: how far a clock is moved, which settings are taken.
    choice: float

    @property
    def skew(self) -> str:
        """By how much a clock is moved, in faketime's words."""
        return f"{SKEWS[int(self.choice * len(SKEWS))]:+.0f}h"

    @property
    def end(self) -> float:
        """When it is over."""
        return self.at + self.lasts


def calm(duration: float) -> float:
    """How long it is quiet at the start and at the end of a soak, seconds: both ends are compared with each other."""
    return min(60.0, duration / 6)


def schedule(seed: int, duration: float, types: Sequence[FaultType] = tuple(FaultType)) -> list[Fault]:
    """
    Each type once a round, in a random order, at a random time, on a random target that has no other fault then. All
    faults begin and end between the quiet start and the quiet end.
    """
    random = Random(f"chaos {seed}")
    begin, end = calm(duration), duration - calm(duration)
    rounds = max(1, round((end - begin) / ROUND))
    slot = (end - begin) / (rounds * len(types))
    #: Target -> when its last fault is over.
    busy: dict[str, float] = {}
    planned = []
    for number, type_ in enumerate(_orders(random, types, rounds)):
        targets, (shortest, longest) = _RULES[type_]
        at = begin + slot * (number + random.uniform(0, 0.7))
        lasts = min(random.uniform(shortest, longest), max(0.0, end - at))
        free = [target for target in targets if busy.get(target, 0.0) <= at]
        target = random.choice(free) if free else min(targets, key=lambda one: busy[one])
        at = min(end, max(at, busy.get(target, 0.0)))
        # A short soak has short faults, so that a fault in the last slot is over in time.
        lasts = min(lasts, max(0.0, end - at), 4 * slot)
        busy[target] = at + lasts + 1.0
        planned.append(Fault(at, type_, target, lasts, random.random()))
    return sorted(planned, key=lambda fault: fault.at)


def _orders(random: Random, types: Sequence[FaultType], rounds: int) -> Iterator[FaultType]:
    for _ in range(rounds):
        yield from random.sample(types, len(types))
