"""The last attempts to deliver, as the daemons have recorded them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from sweeperd.delivery.attempt import Attempt
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamRow

#: How many attempts of each endpoint are searched for those with one event.
SEARCH = 10_000


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt, and where it went."""

    shard: str
    endpoint: str
    attempt: Attempt


def read_attempts(shard: Shard, endpoint: str, limit: int) -> list[RecordedAttempt]:
    """The last attempts of one endpoint, the newest first. Raises redis.RedisError."""
    rows: Any = shard.client.xrevrange(shard.keys.attempts(endpoint), count=limit)
    return [RecordedAttempt(shard.name, endpoint, Attempt.parse(fields)) for _, fields in cast(list[StreamRow], rows)]


def attempts_with(shard: Shard, endpoints: Iterable[str], entry: bytes) -> list[RecordedAttempt]:
    """
    The recorded attempts with this entry of the event stream, the newest first. Of a batch the first and the last entry
    are known, so a batch that begins before this entry and ends after it is among them. Raises redis.RedisError.
    """
    found = [each for name in endpoints for each in read_attempts(shard, name, SEARCH) if each.attempt.includes(entry)]
    return sorted(found, key=lambda each: each.attempt.at_ms, reverse=True)
