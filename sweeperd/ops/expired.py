"""Reads expiries from the event stream."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sweeperd.document import CommandDocument, Count, Down
from sweeperd.outbox.event import ONLY_FOR, Fields, is_expiry, message
from sweeperd.outbox.replays import first_searched, last_searched
from sweeperd.store import streams
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId
from sweeperd.sweep.reservations import kind_of_event
from sweeperd.text import is_meant, rfc3339, whole


@dataclass(frozen=True)
class Expiry:
    shard: str
    stream_id: bytes
    #: From the end of the grace to the expiry; None if the event lacks the deadline or the grace.
    lag_ms: int | None
    #: The origin of the shard, a part of event ids; and the fields of the event.
    origin: bytes
    fields: Fields

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        """The body of the webhook. Made at the first use: most of the work, and a count needs no body."""
        body: dict[str, Any] = json.loads(message(self.origin, self.fields).body)
        return body

    @property
    def order(self) -> StreamId:
        """The key to sort by: time, and within one shard the order in the stream."""
        return StreamId.parse(self.stream_id)


@dataclass(eq=False)
class ExpiryReader:
    """
    Reads the events of one shard with `since_ms` <= expired_at < `until_ms` (None: no end), of this tenant and kind
    (None: all). An event that an operator had delivered again is no second expiry. Each `read` goes on after the last
    event of the `read` before.
    """

    shard: Shard
    since_ms: int
    until_ms: int | None
    tenant: str | None
    kind: str | None

    def __post_init__(self) -> None:
        self._first = first_searched(self.since_ms)

    def read(self) -> Iterator[Expiry]:
        """The events that have not been read yet, page by page. Raises redis.RedisError."""
        last = streams.LAST if self.until_ms is None else last_searched(self.shard, self.until_ms)
        for entry, fields in streams.read(self.shard, self.shard.keys.events, self._first, last):
            self._first = streams.after(entry)
            if ONLY_FOR not in fields and is_expiry(fields) and self._asked_for(fields):
                written = whole(fields.get(b"expired_at", b""))
                expired_at_ms = streams.milliseconds(entry) if written is None else written
                if expired_at_ms >= self.since_ms and (self.until_ms is None or expired_at_ms < self.until_ms):
                    yield self._expiry(entry, fields, expired_at_ms)

    def _asked_for(self, fields: dict[bytes, bytes]) -> bool:
        of_tenant = self.tenant is None or is_meant(self.tenant, fields.get(b"tenant", b""))
        return of_tenant and self.kind in (None, kind_of_event(fields))

    def _expiry(self, entry: bytes, fields: dict[bytes, bytes], expired_at_ms: int) -> Expiry:
        deadline, grace = whole(fields.get(b"expires_at", b"")), whole(fields.get(b"grace_ms", b""))
        lag = None if deadline is None or grace is None else expired_at_ms - deadline - grace
        return Expiry(self.shard.name, entry, lag, self.shard.origin, fields)


def retention_gap(shard: Shard, since_ms: int) -> str:
    """
    Why events from `since_ms` on may be missing from the stream; empty if none is missing. Without this an operator
    would read a gap as a time without expiries. Raises redis.RedisError.
    """
    info = streams.info(shard.client, shard.keys.events)
    if info is None:
        return "there is no event stream: nothing has expired here yet, or the stream was deleted"
    # Redis 6.2 does not count the entries that were added.
    if info.get("entries-added") == info["length"] and info["length"]:
        return ""
    first = info["first-entry"]
    if first is None:
        return "" if info.get("entries-added") == 0 else "no event is kept any more"
    oldest_ms = streams.milliseconds(first[0])
    if oldest_ms <= since_ms:
        return ""
    return f"the oldest event that is still kept is of {rfc3339(oldest_ms)}; what expired before is not shown"


class ExpiredCountDocument(CommandDocument, title="sweeperd expired --count --json"):
    count: Count
    down: Down
