"""What a sweep would decide now, and what it would write, asked of the kind's own script and without doing it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeperd.config import SweepSettings
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.scripts import Script, own_text
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import RESERVATIONS, Decision, Kind, Outcome
from sweeperd.sweep.reservations import reservations


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a sweep would do with one entry. `writes`: the commands, in order, each with its arguments."""

    decision: Decision
    writes: tuple[tuple[bytes, ...], ...]


def explain(shard: Shard, settings: SweepSettings, ids: Sequence[bytes], kind: Kind | None = None) -> list[Explanation]:
    """
    Ask for each of these ids of a kind (None: reservations), in batches of `pipeline_depth`. Nothing is written. An
    entry whose sweep would fail has the outcome `error`. Raises redis.RedisError where the server as a whole cannot
    answer.
    """
    kind = kind or reservations(shard.keys, settings)
    script = _script(kind.name, kind.script.source)

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


@functools.lru_cache(maxsize=64)
def _script(kind: str, source: str) -> Script:
    """The script of the kind with a `redis` that records the writes and sends none."""
    if kind == RESERVATIONS:
        return Script("ops/explain")
    # The code before the user's script stands on one line, so that its errors name the lines of the user's file.
    lines = (line.strip() for line in own_text("include/recorder").splitlines())
    recorder = " ".join(line for line in lines if line and not line.startswith("--"))
    return Script(
        f"explain {kind}",
        f"{recorder} local redis, writes = recorder(redis) local reply = (function() {source}\nend)()\n"
        "if reply.err then\n  return reply\nend\nreturn {reply, writes}\n",
    )
