"""Runs the script of a kind without its writes, to explain what a sweep would do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.scripts import batches
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Decision, Kind, Outcome


class CounterChange(NamedTuple):
    """A change of a counter. The field is empty if the key is a string."""

    key: bytes
    field: bytes
    #: What the counter holds now.
    holds: int
    change: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a sweep would decide now, the commands it would write, and the counters that these would change."""

    decision: Decision
    writes: tuple[tuple[bytes, ...], ...] = ()
    changes: tuple[CounterChange, ...] = ()


def explain(shard: Shard, kind: Kind, ids: Sequence[bytes], batch: int, *, proven: bool = True) -> list[Explanation]:
    """
    Explain each id, `batch` ids per round trip. `proven`: as if the kind is proven. If the script would fail for an
    entry, or is broken, the outcome is `error`. Raises redis.RedisError if the server cannot answer at all.
    """

    def explanation(entry: bytes, reply: Any) -> Explanation:
        if isinstance(reply, Exception):
            if not kind.breaks(reply) and is_server_trouble(reply):
                raise reply
            return Explanation(Decision(entry, Outcome.ERROR, describe(reply)))
        answer, writes, changes = reply
        return Explanation(kind.decision(entry, answer), tuple(map(tuple, writes)), tuple(map(_change, changes)))

    found = list[Explanation]()
    # The first entry alone, so that a script that has to be killed runs only once.
    for part in (ids[:1], *batches(ids[1:], batch)):
        if kind.broken:
            found += [Explanation(Decision(entry, Outcome.ERROR, kind.broken)) for entry in part]
            continue
        # No event is written, so the trace id is empty.
        replies = kind.explainer.run_many(shard.client, [kind.call(entry, "", proven) for entry in part])
        found += [explanation(entry, reply) for entry, reply in zip(part, replies, strict=True)]
    return found


def _change(row: Sequence[bytes]) -> CounterChange:
    key, field, holds, to = row
    return CounterChange(key, field, int(holds), int(to) - int(holds) if field else int(to))
