"""Samples entries spread evenly over the index of a kind."""

from dataclasses import dataclass

from sweeperd.store.scripts import accepted, run_commands
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Kind

#: The largest sample.
MOST = 100


@dataclass(frozen=True, slots=True)
class SampledEntry:
    """One entry and its key."""

    id: bytes
    #: The type of the entry's key: `hash`, `none`, or another type of Redis.
    type: str
    #: The key's TTL as PTTL returns it, ms.
    ttl_ms: int


def spread(shard: Shard, index: bytes, count: int, most: int) -> list[tuple[bytes, float]]:
    """Ids and scores of up to `most` of the first `count` entries, evenly spread. Raises redis.RedisError."""
    if count <= most:
        return list(shard.client.zrange(index, 0, count - 1, withscores=True)) if count else []  # type: ignore[arg-type]
    pipeline = shard.client.pipeline(transaction=False)
    for number in range(most):
        rank = number * (count - 1) // max(1, most - 1)
        pipeline.zrange(index, rank, rank, withscores=True)
    return [entry for found in pipeline.execute() for entry in found]


def sample(shard: Shard, kind: Kind, most: int = MOST) -> list[SampledEntry]:
    """Up to `most` entries of the kind, due or not. Raises redis.RedisError."""
    chosen = spread(shard, kind.index, int(shard.client.zcard(kind.index)), most)
    ids = list(dict.fromkeys(entry for entry, _ in chosen))
    looks = [(command, kind.entry_key(entry)) for entry in ids for command in ("TYPE", "PTTL")]
    replies = accepted(run_commands(shard.client, looks))
    return [
        SampledEntry(entry, type_.decode(), ttl)
        for entry, type_, ttl in zip(ids, replies[::2], replies[1::2], strict=True)
    ]
