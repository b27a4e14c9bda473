"""Reads the recorded attempts of deliveries, for operators who look for an event."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId, StreamRow
from sweeperd.text import decode, whole

#: How many attempts of each endpoint are searched for an event.
SEARCH = 10_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request with an event or a batch, without secrets."""

    #: When the request ended, ms on Redis's clock.
    at_ms: int
    #: The id of the first event, and the id of the expired entry.
    event_id: str
    reservation: bytes
    #: The first and the last event in the stream, and how many events the request had.
    first: bytes
    last: bytes
    events: int
    #: The number of the hand-over of the first event, and of the attempt within the hand-over, both from 1.
    hand_over: int
    attempt: int
    #: `delivered`, `rejected` or `failed`.
    result: str
    #: The status, or why there was no response.
    reason: str
    milliseconds: int
    #: The beginning of the response's body, without secrets.
    answer: str
    #: The process that sent the request.
    replica: str
    #: Of the request: the id of the event, or of the batch.
    webhook_id: str = ""

    def fields(self) -> dict[str, str | bytes | int]:
        """The fields of the entry in the stream."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def parse(cls, fields: Mapping[bytes, bytes]) -> "Attempt":
        """The opposite of `fields`. If a field is missing, or is no number, the field counts as empty or as 0."""
        read: dict[Any, Callable[[bytes], Any]] = {int: lambda value: whole(value) or 0, str: decode, bytes: bytes}
        found = {each.name: read[each.type](fields.get(each.name.encode(), b"")) for each in dataclasses.fields(cls)}
        return cls(**found)

    def includes(self, entry: bytes) -> bool:
        """Whether this entry of the stream is in the range of the request's events."""
        try:
            return StreamId.parse(self.first) <= StreamId.parse(entry) <= StreamId.parse(self.last)
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt, with the shard and the endpoint."""

    shard: str
    endpoint: str
    attempt: Attempt


def read_attempts(shard: Shard, endpoint: str, limit: int) -> list[RecordedAttempt]:
    """The last attempts of one endpoint, newest first. Raises redis.RedisError."""
    rows: Any = shard.client.xrevrange(shard.keys.attempts(endpoint), count=limit)
    return [RecordedAttempt(shard.name, endpoint, Attempt.parse(fields)) for _, fields in cast(list[StreamRow], rows)]


def attempts_with(shard: Shard, endpoints: Iterable[str], entry: bytes) -> list[RecordedAttempt]:
    """
    The recorded attempts with this entry of the event stream, newest first. Only the first and the last entry of a
    batch are known: if a batch begins before this entry and ends after, the batch is included. Raises redis.RedisError.
    """
    found = [each for name in endpoints for each in read_attempts(shard, name, SEARCH) if each.attempt.includes(entry)]
    return sorted(found, key=lambda each: each.attempt.at_ms, reverse=True)


def attempts_as(
    shard: Shard, endpoints: Iterable[str], webhook_id: str, most: int
) -> tuple[list[RecordedAttempt], int]:
    """
    The recorded attempts of requests with this webhook id, or whose first event has this id, newest first; and how many
    attempts were read, at most `most`. Raises redis.RedisError.
    """
    found, left = list[RecordedAttempt](), most
    for name in endpoints:
        recorded = read_attempts(shard, name, min(left, SEARCH)) if left else []
        left -= len(recorded)
        found += [each for each in recorded if webhook_id in (each.attempt.webhook_id, each.attempt.event_id)]
    return sorted(found, key=lambda each: each.attempt.at_ms, reverse=True), most - left
