"""What the status page shows of one shard beyond `status`: the quarantine by reason, and the last attempts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeperd.config import Settings
from sweeperd.delivery.attempt import Attempt
from sweeperd.ops.attempts import read_attempts
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured_kinds import all_kinds
from sweeperd.sweep.kind import Kind
from sweeperd.text import decode

#: How many entries of each quarantine are counted by reason, the newest first, and how many of a reason are named.
COUNTED, NEWEST = 1000, 3
#: How many of them are read in one round trip.
SLICE = 250
#: How many attempts of each endpoint are shown.
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """The quarantined entries of one kind with one reason."""

    kind: str
    #: Empty: the hash is gone, or has no mark any more.
    reason: str
    count: int
    newest: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Details:
    """Of one shard, for people who look closer."""

    reasons: tuple[ReasonCount, ...] = ()
    #: Endpoint -> its last attempts, the newest first.
    attempts: Mapping[str, Sequence[Attempt]] = field(default_factory=dict)


def read_details(settings: Settings, shard: Shard) -> Details:
    """Raises redis.RedisError."""
    reasons = [count for kind in all_kinds(settings, shard.keys) for count in _reasons(shard, kind)]
    names = [endpoint.name for endpoint in settings.webhooks.endpoints] if settings.events.attempts_kept else []
    attempts = {name: [each.attempt for each in read_attempts(shard, name, ATTEMPTS)] for name in names}
    return Details(tuple(sorted(reasons, key=lambda each: -each.count)), attempts)


def _reasons(shard: Shard, kind: Kind) -> list[ReasonCount]:
    entries: Any = shard.client.zrange(kind.quarantine, -COUNTED, -1)
    found: dict[str, list[str]] = {}
    for start in range(0, len(entries), SLICE):
        pipeline = shard.client.pipeline(transaction=False)
        part = entries[start : start + SLICE]
        for entry in part:
            pipeline.hmget(kind.hash_key(entry), ["quarantine_reason"])
        # A key that is no hash is the fault of WRONG_TYPE.
        for entry, row in zip(part, pipeline.execute(raise_on_error=False), strict=True):
            named = "WRONG_TYPE" if isinstance(row, Exception) else decode(row[0] or b"")
            found.setdefault(named, []).append(decode(entry))
    return [
        ReasonCount(kind.name, reason, len(entries), tuple(reversed(entries[-NEWEST:])))
        for reason, entries in found.items()
    ]
