"""
Waits after the load until all reservations have ended and all events are acknowledged, for as long as something moves:
a busy machine takes its time, and a delivery that stands still is a fault on any.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Sequence

import redis

from proof.soak.stage import ShardStage
from tests.support.harness import server_time

#: How long nothing may move, seconds. Much longer than each wait of the product: an event that failed comes again after
#: 8 s at most, an open circuit is probed as often, and the events of a dead process are taken over after 15 s.
STILL_LIMIT = 120.0
#: How long the whole may take, seconds.
REST_LIMIT = 2400.0
#: From look to look, seconds.
LOOK_EVERY = 0.5


def stand(shard: ShardStage, endpoints: Collection[str], last_end: int) -> tuple[object, list[str]]:
    """
    What moves on one shard, and what has not come to rest, in words. `last_end`: when the last grace ends, ms on
    Redis's clock. Raises redis.RedisError.
    """
    overdue = server_time(shard.client) > last_end
    index = int(shard.client.zcard(shard.keys.reservation_index))
    # Read after the index: a later event belongs to an entry that was counted.
    groups = {endpoint: shard.group(endpoint) for endpoint in endpoints}
    unmet = [] if overdue else ["a deadline has not passed"]
    unmet += [f"{index} entries are in the index"] * (index > 0)
    for endpoint, group in groups.items():
        unmet += [f"{endpoint} has not taken all events"] * (group["last-delivered-id"] != shard.last_event)
        unmet += [f"{endpoint} has {group['pending']} events pending"] * (group["pending"] > 0)
    moving = [(group["last-delivered-id"], group["pending"]) for group in groups.values()]
    return (overdue, index, moving), unmet


def await_rest(look: Callable[[], tuple[object, Sequence[str]]], meanwhile: Callable[[], None]) -> Sequence[str]:
    """
    Wait until nothing is unmet. `look` returns all that moves, and what is unmet; where it raises redis.RedisError
    nothing has moved. `meanwhile` is called after each look. Returns what is unmet when nothing has moved for
    STILL_LIMIT, or after REST_LIMIT.
    """
    began = moved_at = time.monotonic()
    before: object = None
    unmet: Sequence[str] = ["Redis does not answer"]
    while True:
        with contextlib.suppress(redis.RedisError):
            now, unmet = look()
            if not unmet:
                return []
            if now != before:
                before, moved_at = now, time.monotonic()
        meanwhile()
        if time.monotonic() - moved_at > STILL_LIMIT:
            return [f"nothing moved for {STILL_LIMIT:g} s", *unmet]
        if time.monotonic() - began > REST_LIMIT:
            return [f"not within {REST_LIMIT:g} s", *unmet]
        time.sleep(LOOK_EVERY)
