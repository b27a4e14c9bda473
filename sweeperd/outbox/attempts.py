"""Reads the recorded delivery attempts."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeperd.store.scripts import accepted, batches, run_commands
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId, StreamRow
from sweeperd.text import decode, whole

#: How many attempts per endpoint to search for an event.
SEARCH = 10_000
#: How many endpoints to read in a round trip.
ENDPOINTS = 100


@dataclass(frozen=True, slots=True)
class Attempt:
    """A recorded webhook request, without secrets."""

    #: When the request ended, ms on Redis's clock.
    at_ms: int
    #: The id of the first event, and the id of the expired entry.
    event_id: str
    reservation: bytes
    #: The stream ids of the first and the last event of the request, and the number of its events.
    first: bytes
    last: bytes
    events: int
    #: The delivery number of the first event, and the attempt number within the delivery. Both start at 1.
    hand_over: int
    attempt: int
    #: `delivered`, `rejected` or `failed`.
    result: str
    #: The HTTP status, or why there was no response.
    reason: str
    milliseconds: int
    #: The start of the response body, without secrets.
    answer: str
    #: The process that sent the request.
    replica: str
    #: The `webhook-id` of the request.
    webhook_id: str = ""

    def fields(self) -> dict[str, str | bytes | int]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def parse(cls, fields: Mapping[bytes, bytes]) -> "Attempt":
        """The inverse of `fields`. A missing or malformed field is read as empty or 0."""
        read: dict[Any, Callable[[bytes], Any]] = {int: lambda value: whole(value) or 0, str: decode, bytes: bytes}
        found = {each.name: read[each.type](fields.get(each.name.encode(), b"")) for each in dataclasses.fields(cls)}
        return cls(**found)

    def includes(self, entry: bytes) -> bool:
        """Whether the stream id lies between the request's first and last event."""
        try:
            return StreamId.parse(self.first) <= StreamId.parse(entry) <= StreamId.parse(self.last)
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """An attempt with its shard and endpoint."""

    shard: str
    endpoint: str
    attempt: Attempt


def read_attempts(shard: Shard, endpoint: str, limit: int) -> list[RecordedAttempt]:
    """The latest attempts of one endpoint, newest first. Raises redis.RedisError."""
    return read_all_attempts(shard, [endpoint], limit)[endpoint]


def read_all_attempts(shard: Shard, endpoints: Sequence[str], limit: int) -> dict[str, list[RecordedAttempt]]:
    """The latest attempts by endpoint, newest first, with a round trip for many endpoints. Raises redis.RedisError."""
    found = dict[str, list[RecordedAttempt]]()
    for names in batches(endpoints, ENDPOINTS):
        commands = (("XREVRANGE", shard.keys.attempts(name), "+", "-", "COUNT", limit) for name in names)
        replies: list[list[StreamRow]] = accepted(run_commands(shard.client, commands))
        for name, rows in zip(names, replies, strict=True):
            found[name] = [RecordedAttempt(shard.name, name, Attempt.parse(fields)) for _, fields in rows]
    return found


def attempts_with(shard: Shard, endpoints: Iterable[str], entry: bytes) -> list[RecordedAttempt]:
    """The attempts whose first and last event span this stream entry, newest first. Raises redis.RedisError."""
    found = [each for name in endpoints for each in read_attempts(shard, name, SEARCH) if each.attempt.includes(entry)]
    return sorted(found, key=lambda each: each.attempt.at_ms, reverse=True)


def attempts_as(
    shard: Shard, endpoints: Iterable[str], webhook_id: str, most: int
) -> tuple[list[RecordedAttempt], int]:
    """The attempts with this id of the webhook or of its first event, newest first, and how many were read."""
    found, left = list[RecordedAttempt](), most
    for name in endpoints:
        recorded = read_attempts(shard, name, min(left, SEARCH)) if left else []
        left -= len(recorded)
        found += [each for each in recorded if webhook_id in (each.attempt.webhook_id, each.attempt.event_id)]
    return sorted(found, key=lambda each: each.attempt.at_ms, reverse=True), most - left
