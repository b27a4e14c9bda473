"""Samples entries spread evenly over the index of a kind, with what their keys hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Kind

#: The largest sample.
MOST = 100
_SAMPLE = Script("sweep/sample")


@dataclass(frozen=True, slots=True)
class SampledEntry:
    """One entry and its key, read in one step."""

    id: bytes
    #: The deadline as the index has it, ms.
    score: float
    #: The type of the entry's key: `hash`, `none`, or another type of Redis.
    type: str
    #: The key's TTL as PTTL returns it, ms.
    ttl_ms: int
    #: The deadline, `expired_at` and the fields of `active` and of the known ends; None if a field is missing.
    fields: Mapping[str, bytes | None]

    def is_active(self, kind: Kind) -> bool:
        """Whether each field of `active` has its value. If a script decides, each hash counts as active."""
        return self.type == "hash" and all(self._is_one_of(name, values) for name, values in kind.active.items())

    def has_ended(self, kind: Kind) -> bool:
        """Whether a field has a value that marks an ended entry."""
        return any(self._is_one_of(name, ends) for name, ends in kind.ends.items())

    def _is_one_of(self, name: str, values: Sequence[str]) -> bool:
        return (self.fields.get(name) or b"").decode(errors="replace") in values


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
    if not ids:
        return []
    fields = list(dict.fromkeys([*([kind.deadline] if kind.deadline else []), "expired_at", *kind.active, *kind.ends]))
    call = Call([kind.index, *map(kind.entry_key, ids)], [len(fields), *fields, *ids])
    rows: Any = _SAMPLE.run(shard.client, call)
    return [
        SampledEntry(entry, kind.moment_of(score), type_.decode(), ttl, dict(zip(fields, values, strict=False)))
        for entry, score, type_, ttl, values in rows
    ]
