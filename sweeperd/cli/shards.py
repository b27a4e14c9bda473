"""Commands over several shards: a shard that is down does not hide the rest."""

import contextlib
from collections.abc import Iterator

import redis

from sweeperd.errors import RedisUnavailable
from sweeperd.store.errors import describe
from sweeperd.store.shard import Shard


@contextlib.contextmanager
def tolerated(shard: Shard, troubles: list[str]) -> Iterator[None]:
    """What goes wrong with this shard's Redis while the block lasts ends the block and becomes a line in `troubles`."""
    try:
        with shard.reaching():
            yield
    except RedisUnavailable as error:
        troubles.append(f"shard {shard.name}: redis is not available: {error}")
    except redis.RedisError as error:
        troubles.append(f"shard {shard.name}: {describe(error)}")
