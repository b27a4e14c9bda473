"""What a sweep would decide now, and what it would write, asked of expire.lua itself and without doing it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeperd.config import SweepSettings
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.scripts import Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Decision, Outcome
from sweeperd.sweep.reservations import reservations


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a sweep would do with one entry. `writes`: the commands, in order, each with its arguments."""

    decision: Decision
    writes: tuple[tuple[bytes, ...], ...]


def explain(
    shard: Shard, settings: SweepSettings, ids: Sequence[bytes], script: Script | None = None
) -> list[Explanation]:
    """
    Ask for each of these ids, in batches of `pipeline_depth`. Nothing is written. An entry whose sweep would fail has
    the outcome `error`. Raises redis.RedisError where the server as a whole cannot answer.
    """
    kind = reservations(shard.keys, settings)
    script = script or Script("ops/explain")

    def explanation(entry: bytes, reply: Any) -> Explanation:
        if isinstance(reply, Exception):
            if is_server_trouble(reply):
                raise reply
            return Explanation(Decision(entry, Outcome.ERROR, describe(reply)), ())
        answer, writes = reply
        return Explanation(kind.decision(entry, answer), tuple(tuple(write) for write in writes))

    found = []
    for start in range(0, len(ids), settings.pipeline_depth):
        part = ids[start : start + settings.pipeline_depth]
        # The trace id is of the event that is not written.
        replies = script.run_many(shard.client, [kind.call(entry, "") for entry in part])
        found += [explanation(entry, reply) for entry, reply in zip(part, replies, strict=True)]
    return found
