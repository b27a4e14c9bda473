"""Turns the errors of a shard into one line for an operator."""

import contextlib
from collections.abc import Iterator

import redis

from sweeperd.config import DEFAULT_SHARD
from sweeperd.errors import KindRefused, RedisUnavailable
from sweeperd.store.errors import describe, describe_unavailable, is_unanswered
from sweeperd.store.shard import Shard


class ShardTrouble(Exception):
    """
    A command failed on a shard. `problem` is one line that names the shard's address, without credentials.
    `unanswered`: Redis may have done what it was asked, but did not answer.
    """

    def __init__(self, shard: Shard, problem: str, *, unanswered: bool = False) -> None:
        super().__init__(problem if shard.name == DEFAULT_SHARD else f"shard {shard.name}: {problem}")
        self.shard = shard.name
        self.address = shard.address
        self.problem = problem
        self.unanswered = unanswered

    def as_dict(self) -> dict[str, str]:
        """An item of the list `down` of the JSON documents."""
        return {"shard": self.shard, "address": self.address, "error": self.problem}


@contextlib.contextmanager
def working_on(shard: Shard) -> Iterator[None]:
    """Turns errors of Redis, or of a kind's script, inside the block into ShardTrouble."""
    try:
        with shard.reaching():
            yield
    except RedisUnavailable as error:
        unanswered = is_unanswered(error.__cause__)
        raise ShardTrouble(shard, describe_unavailable(error), unanswered=unanswered) from error
    except KindRefused as error:
        raise ShardTrouble(shard, f"{shard.address}: {error}") from error
    except redis.RedisError as error:  # a key of another type, say
        raise ShardTrouble(shard, f"{shard.address}: {describe(error)}") from error
