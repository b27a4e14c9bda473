"""Whether a shard holds any key that sweeperd works on: a wrong database or prefix looks healthy otherwise."""

from typing import Any, cast

import redis

from sweeperd.config import Settings
from sweeperd.store.errors import is_refused
from sweeperd.store.shard import Shard

#: How many keys are visited in search of one, and how many in one call.
VISITED, PAGE = 10_000, 1_000
WARNING = "no reservation, budget or index entry here: right database and prefix?"


def is_empty(shard: Shard, settings: Settings) -> bool:
    """
    Whether there is neither an index entry nor an event, and no reservation or budget among the first VISITED keys.
    False where the user may not run SCAN. Raises redis.RedisError.
    """
    keys, client = shard.keys, shard.client
    indexes = [keys.kind_index(kind.index) for kind in settings.kinds]
    if settings.reservations.enabled:
        indexes.append(keys.reservation_index)
    if client.exists(*indexes, keys.events):
        return False
    stems, cursor = (keys.reservation(b""), keys.budget_stem), 0
    try:
        for _ in range(0, VISITED, PAGE):
            cursor, page = cast(Any, client.scan(cursor, count=PAGE))
            if any(key.startswith(stems) for key in page):
                return False
            if not cursor:
                return True
    except redis.RedisError as error:
        if not is_refused(error):
            raise
        return False
    return True
