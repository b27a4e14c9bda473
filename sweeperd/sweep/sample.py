"""Samples entries spread evenly over the index of a kind."""

from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Kind

#: The largest sample.
MOST = 100


def spread(shard: Shard, index: bytes, count: int, most: int) -> list[tuple[bytes, float]]:
    """Ids and scores of up to `most` of the first `count` entries, evenly spread. Raises redis.RedisError."""
    if count <= most:
        return list(shard.client.zrange(index, 0, count - 1, withscores=True)) if count else []  # type: ignore[arg-type]
    pipeline = shard.client.pipeline(transaction=False)
    for number in range(most):
        rank = number * (count - 1) // max(1, most - 1)
        pipeline.zrange(index, rank, rank, withscores=True)
    return [entry for found in pipeline.execute() for entry in found]


def sample(shard: Shard, kind: Kind, most: int = MOST) -> list[bytes]:
    """The ids of up to `most` entries of the kind, due or not. Raises redis.RedisError."""
    chosen = spread(shard, kind.index, int(shard.client.zcard(kind.index)), most)
    return list(dict.fromkeys(entry for entry, _ in chosen))
