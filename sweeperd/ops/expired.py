"""What expired in a span of time: the events of the stream, in order, once or as they come."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sweeperd.delivery.outbox import ONLY_FOR
from sweeperd.delivery.payload import Fields, is_expiry, message
from sweeperd.delivery.replay import AHEAD_MS, BEHIND_MS
from sweeperd.store import streams
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId
from sweeperd.sweep.kind import RESERVATIONS
from sweeperd.text import decode, rfc3339, whole


@dataclass(frozen=True)
class Expiry:
    """One event."""

    shard: str
    stream_id: bytes
    #: ms on Redis's clock.
    expired_at_ms: int
    #: From deadline and grace to the expiry; None where the event lacks one of the times.
    lag_ms: int | None
    #: What identifies the shard in ids of events, and the fields of the entry.
    origin: bytes
    fields: Fields

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        """The body of its webhook. Made when it is asked for: a count needs none, and it is most of the work."""
        body: dict[str, Any] = json.loads(message(self.origin, self.fields).body)
        return body

    @property
    def order(self) -> StreamId:
        """By time; within one shard, as Redis wrote them."""
        return StreamId.parse(self.stream_id)


class ExpiryReader:
    """
    Reads the events of one shard with `since_ms` <= expired_at < `until_ms` (None: no end), of all tenants and kinds or
    of one. What an operator had delivered again is no second expiry. It can be read again later, and goes on where it
    was.
    """

    def __init__(
        self,
        shard: Shard,
        since_ms: int,
        until_ms: int | None = None,
        tenant: str | None = None,
        kind: str | None = None,
    ) -> None:
        self.shard = shard
        self._since_ms = since_ms
        self._until_ms = until_ms
        self._tenant = tenant
        self._kind = None if kind is None else kind.encode()
        self._first = str(max(0, since_ms - BEHIND_MS)).encode()
        self._last = streams.LAST if until_ms is None else str(until_ms + AHEAD_MS).encode()

    def read(self) -> Iterator[Expiry]:
        """The events that are there and have not been read yet, page by page. Raises redis.RedisError."""
        for entry, fields in streams.read(self.shard, self.shard.keys.events, self._first, self._last):
            self._first = streams.after(entry)
            if ONLY_FOR not in fields and is_expiry(fields) and self._asked_for(fields):
                written = whole(fields.get(b"expired_at", b""))
                expired_at_ms = streams.milliseconds(entry) if written is None else written
                if expired_at_ms >= self._since_ms and (self._until_ms is None or expired_at_ms < self._until_ms):
                    yield self._expiry(entry, fields, expired_at_ms)

    def _asked_for(self, fields: dict[bytes, bytes]) -> bool:
        if self._kind not in (None, fields.get(b"kind", RESERVATIONS.encode())):
            return False
        if self._tenant is None:
            return True
        tenant = fields.get(b"tenant", b"")
        # What is not UTF-8 is asked for as it is shown, or as it is.
        return decode(tenant) == self._tenant or tenant == self._tenant.encode("utf-8", "surrogateescape")

    def _expiry(self, entry: bytes, fields: dict[bytes, bytes], expired_at_ms: int) -> Expiry:
        deadline, grace = whole(fields.get(b"expires_at", b"")), whole(fields.get(b"grace_ms", b""))
        lag = None if deadline is None or grace is None else expired_at_ms - deadline - grace
        return Expiry(self.shard.name, entry, expired_at_ms, lag, self.shard.origin, fields)


def retention_gap(shard: Shard, since_ms: int) -> str:
    """
    Why events from `since_ms` on may be missing from the stream; empty where none is. Without this an operator would
    read a gap as a time without expiries. Raises redis.RedisError.
    """
    info = streams.info(shard.client, shard.keys.events)
    if info is None:
        return "there is no event stream: nothing has expired here yet, or the stream was deleted"
    # Redis 6.2 does not count what was added.
    if info.get("entries-added") == info["length"] and info["length"]:
        return ""
    first = info["first-entry"]
    if first is None:
        return "" if info.get("entries-added") == 0 else "no event is kept any more"
    oldest_ms = streams.milliseconds(first[0])
    if oldest_ms <= since_ms:
        return ""
    return f"the oldest event that is still kept is of {rfc3339(oldest_ms)}; what expired before is not shown"
