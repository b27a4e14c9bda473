"""
The wait after the load, until all reservations have ended and all events are delivered and acknowledged. It lasts as
long as something moves: on a busy machine a backlog takes its time, and a delivery that stands still is a fault on any.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import redis

from proof.soak.chaos.stage import ShardStage
from tests.support.harness import server_time

#: How long nothing may move, seconds. Much longer than each wait of the product: an event that failed comes again after
#: 8 s at most, an open circuit is probed as often, and the events of a dead process are taken over after 15 s.
STILL_LIMIT = 120.0
#: How long the whole may take, seconds.
REST_LIMIT = 2400.0
#: From look to look, seconds.
LOOK_EVERY = 0.5


@dataclass(frozen=True)
class Group:
    """How far the deliveries of one shard to one endpoint have come."""

    #: The last event that was taken, and whether it is the last one of the stream.
    taken: bytes
    all_taken: bool
    #: How many events were taken and not acknowledged.
    pending: int


@dataclass(frozen=True)
class Standing:
    """How far one shard has come. After the load each number only falls, and each id only rises."""

    #: Whether every reservation's time has passed.
    overdue: bool
    #: Entries of the index.
    index: int
    #: Endpoint -> its group.
    groups: Mapping[str, Group]

    @property
    def unmet(self) -> list[str]:
        """What has not come to rest, in words; empty if all has."""
        found = [] if self.overdue else ["a deadline has not passed"]
        found += [f"{self.index} entries are in the index"] * (self.index > 0)
        for endpoint, group in self.groups.items():
            found += [f"{endpoint} has not taken all events"] * (not group.all_taken)
            found += [f"{endpoint} has {group.pending} events pending"] * (group.pending > 0)
        return found


def stand(shard: ShardStage, endpoints: Collection[str], last_end: int) -> Standing:
    """`last_end`: when the last grace ends, ms on Redis's clock. Raises redis.RedisError."""
    overdue = server_time(shard.client) > last_end
    index = int(shard.client.zcard(shard.keys.reservation_index))
    # Read after the index: an event that came later belongs to an entry that was counted.
    return Standing(overdue, index, {endpoint: _group(shard, endpoint) for endpoint in endpoints})


def _group(shard: ShardStage, endpoint: str) -> Group:
    found = shard.group(endpoint)
    taken: bytes = found["last-delivered-id"]
    return Group(taken, taken == shard.last_event, int(found["pending"]))


def await_rest(
    look: Callable[[], tuple[object, Sequence[str]]],
    meanwhile: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Sequence[str]:
    """
    Wait until nothing is unmet. `look` returns all that moves, and what is unmet; where it raises redis.RedisError
    nothing has moved. `meanwhile` is called after each look. Returns what is unmet when nothing has moved for
    STILL_LIMIT, or after REST_LIMIT.
    """
    began = moved_at = clock()
    before: object = None
    unmet: Sequence[str] = ["Redis does not answer"]
    while True:
        with contextlib.suppress(redis.RedisError):
            now, unmet = look()
            if not unmet:
                return []
            if now != before:
                before, moved_at = now, clock()
        meanwhile()
        if clock() - moved_at > STILL_LIMIT:
            return [f"nothing moved for {STILL_LIMIT:g} s", *unmet]
        if clock() - began > REST_LIMIT:
            return [f"not within {REST_LIMIT:g} s", *unmet]
        sleep(LOOK_EVERY)
