"""Corrects stored moments that lie ahead of Redis's clock."""

import logging

import redis

from sweeperd.store import streams
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: How far ahead of Redis's clock a noted moment may be without the clock having been set back, ms.
CLOCK_ERROR = 1000
_CORRECT_MOMENTS = Script("delivery/correct_moments")


def correct_moments(shard: Shard) -> int:
    """
    Correct the stored states and notes that are ahead of Redis's clock. Returns how far the clock is behind the last
    event or the latest note, ms, or 0. If Redis refuses the writes, the notes stay unchanged. Raises redis.RedisError.
    """
    keys = shard.keys
    call = Call([keys.events, keys.endpoints, keys.circuits, keys.processes], [CLOCK_ERROR])
    try:
        return max(0, int(_CORRECT_MOMENTS.run(shard.client, call)))
    except redis.ResponseError as error:
        if is_server_trouble(error):
            raise
        log.warning("moments are not corrected", extra={"shard": shard.name, "error": describe(error)})
        return max(0, streams.milliseconds(streams.last_id(shard.client, keys.events)) - shard.read_clock())
