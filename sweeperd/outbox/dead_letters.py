"""Reads, replays and drops dead letters, the deliveries that sweeperd gave up on."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from sweeperd.config import EndpointSettings
from sweeperd.outbox.event import message
from sweeperd.store import streams
from sweeperd.store.scripts import Call, Script, batches, run_commands
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId
from sweeperd.text import decode, whole

#: How many dead letters to replay or drop in one batch.
PAGE = 100
#: Up to how many dead letters of a shard are counted, and how many in one call.
COUNTED, COUNT_PAGE = 10_000, 500
_COUNT = Script("ops/letters")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that was not delivered to an endpoint."""

    shard: str
    id: str
    endpoint: str
    reason: str
    #: How many times the event was delivered to a sender.
    attempts: int
    #: The tenant's name as stored in Redis.
    tenant: bytes
    #: The webhook body; None if the event had been trimmed before sweeperd gave up.
    body: dict[str, Any] | None

    @property
    def at_ms(self) -> int:
        """When sweeperd gave up, ms on Redis's clock."""
        return streams.milliseconds(self.id)

    @property
    def order(self) -> StreamId:
        return StreamId.parse(self.id)


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """
    Selects dead letters by endpoint and tenant. None selects all. The tenant is spelled as `decode` shows it or as raw
    bytes: a drop must not select a second tenant whose name only resembles this one.
    """

    endpoint: str | None = None
    tenant: str | None = None

    def fits(self, letter: DeadLetter) -> bool:
        of_tenant = self.tenant in (None, decode(letter.tenant), letter.tenant.decode("utf-8", "surrogateescape"))
        return of_tenant and self.endpoint in (None, letter.endpoint)


class Replayed(StrEnum):
    """The outcome of a replay of one dead letter."""

    REPLAYED = "replayed"
    GONE = "gone"
    NO_EVENT = "no_event"
    NO_GROUP = "no_group"

    @property
    def why_not(self) -> str:
        """The reason, for operators; empty if the letter was replayed."""
        return _WHY_NOT[self]


_WHY_NOT = {
    Replayed.REPLAYED: "",
    Replayed.GONE: "another command has already replayed or dropped it",
    Replayed.NO_EVENT: "the event is lost: it had been trimmed from the stream before sweeperd gave up",
    Replayed.NO_GROUP: "the endpoint has no consumer group: start a sweeperd that is configured with it first",
}


def last_id(shard: Shard) -> str | None:
    """The id of the newest dead letter, if there is one. Raises redis.RedisError."""
    newest = cast(list[streams.StreamRow], shard.client.xrevrange(shard.keys.dead_letters, count=1))
    return newest[0][0].decode() if newest else None


def read(
    shard: Shard, wanted: DeadLetterFilter, last: str | None = None, *, newest_first: bool = False
) -> Iterator[DeadLetter]:
    """The selected dead letters up to the id `last`, page by page. Raises redis.RedisError."""
    end = b"+" if last is None else last.encode()
    for entry, fields in streams.read(shard, shard.keys.dead_letters, b"-", end, backwards=newest_first):
        letter = _letter(shard, entry, fields)
        if wanted.fits(letter):
            yield letter


def find(shard: Shard, ids: Sequence[str]) -> list[DeadLetter]:
    """The dead letters with these ids, as far as they exist. Raises redis.RedisError."""
    found = (streams.exactly(shard.client, shard.keys.dead_letters, part) for part in batches(ids, PAGE))
    return [_letter(shard, *row) for part in found for rows in part for row in rows]


class LetterCounts:
    """Counts the dead letters of a shard by endpoint, and again only if they have changed."""

    def __init__(self) -> None:
        self._counted: tuple[int, bytes] | None = None
        #: How many there are.
        self.total = 0
        #: The oldest COUNTED of them.
        self.by_endpoint = Counter[str]()

    @property
    def complete(self) -> bool:
        return self.total <= self.by_endpoint.total()

    def read(self, shard: Shard) -> "LetterCounts":
        info = streams.info(shard.client, shard.keys.dead_letters)
        present = (info["length"], info["last-generated-id"]) if info else (0, b"")
        if present != self._counted:
            self.total, self.by_endpoint = present[0], _by_endpoint(shard) if present[0] else Counter()
            self._counted = present
        return self


def _by_endpoint(shard: Shard) -> Counter[str]:
    counts, first = Counter[str](), streams.FIRST
    for _ in range(0, COUNTED, COUNT_PAGE):
        reply = _COUNT.run(shard.client, Call([shard.keys.dead_letters], [first, COUNT_PAGE]))
        if not reply:
            break
        first = streams.after(reply[0])
        for endpoint, count in zip(reply[1::2], reply[2::2], strict=True):
            counts[decode(endpoint)] += count
        if sum(reply[2::2]) < COUNT_PAGE:
            break
    return counts


def objection(letter: DeadLetter, endpoints: Sequence[EndpointSettings]) -> str:
    """Why a replay would not reach its endpoint with these settings; empty if it would."""
    for endpoint in endpoints:
        if endpoint.name == letter.endpoint:
            if letter.body is None:
                return Replayed.NO_EVENT.why_not
            wants = endpoint.tenants is None or letter.tenant in [tenant.encode() for tenant in endpoint.tenants]
            return "" if wants else "the endpoint no longer selects this tenant"
    return "the endpoint is no longer configured"


def replay(shard: Shard, ids: Sequence[str]) -> list[Replayed | Exception]:
    """
    Replace each of these letters by its event, in one step each; the error for a letter that Redis refuses to replace.
    Raises redis.RedisError, perhaps halfway.
    """
    script, keys = Script("ops/replay"), [shard.keys.events, shard.keys.dead_letters]
    replies = script.run_many(shard.client, [Call(keys, [letter_id]) for letter_id in ids])
    return [reply if isinstance(reply, Exception) else Replayed(reply[0].decode()) for reply in replies]


def drop(shard: Shard, ids: Sequence[str]) -> list[bool | Exception]:
    """
    Remove these letters. False if a letter was already replayed or dropped; the error if Redis refuses to remove it.
    Raises redis.RedisError, perhaps halfway.
    """
    replies = run_commands(shard.client, (("XDEL", shard.keys.dead_letters, letter_id) for letter_id in ids))
    return [reply if isinstance(reply, Exception) else bool(reply) for reply in replies]


def _letter(shard: Shard, entry: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
    return DeadLetter(
        shard.name,
        entry.decode(),
        decode(fields.get(b"endpoint", b"")),
        decode(fields.get(b"reason", b"")),
        whole(fields.get(b"attempts", b"")) or 0,
        fields.get(b"tenant", b""),
        json.loads(message(shard.origin, fields).body) if b"id" in fields else None,
    )
