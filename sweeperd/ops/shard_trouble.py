"""The trouble of one shard, in one line. A shard that is down must not hide the rest."""

import contextlib
from collections.abc import Iterator

import redis

from sweeperd.config import DEFAULT_SHARD
from sweeperd.errors import RedisUnavailable
from sweeperd.store.errors import describe
from sweeperd.store.shard import Shard


class ShardTrouble(Exception):
    """What was asked of one shard could not be done. The message is one line, without credentials."""


@contextlib.contextmanager
def working_on(shard: Shard) -> Iterator[None]:
    """Turn every error of Redis into ShardTrouble."""
    named = "" if shard.name == DEFAULT_SHARD else f"shard {shard.name}: "
    try:
        with shard.reaching():
            yield
    except RedisUnavailable as error:
        raise ShardTrouble(f"{named}redis is not available: {error}") from error
    except redis.RedisError as error:  # a key of another type, say
        raise ShardTrouble(f"{named}{shard.address}: {describe(error)}") from error
