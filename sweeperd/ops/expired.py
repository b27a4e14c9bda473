"""Reads expiries from the event stream."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sweeperd.document import Count, ShardsDocument
from sweeperd.outbox.event import ONLY_FOR, Fields, is_expiry, message
from sweeperd.outbox.replays import first_searched, last_searched, time_of
from sweeperd.store import streams
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId
from sweeperd.sweep.reservations import kind_of_event
from sweeperd.text import candidates, rfc3339, whole


@dataclass(frozen=True)
class Expiry:
    shard: str
    stream_id: bytes
    #: From the end of the grace to the expiry; None if the event lacks deadline or grace.
    lag_ms: int | None
    #: The origin of the shard, which is part of event ids.
    origin: bytes
    fields: Fields

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        """The body of the webhook; built on demand, because it is most of the work and a count does not need it."""
        body: dict[str, Any] = json.loads(message(self.origin, self.fields).body)
        return body

    @property
    def order(self) -> StreamId:
        """The sort key: by time, and within a shard in the order of the stream."""
        return StreamId.parse(self.stream_id)


@dataclass(eq=False)
class ExpiryReader:
    """
    Reads the expiries of one shard from `since_ms` until before `until_ms` (None: no end), of this tenant and kind
    (None: all), without replays. Each `read` continues after the previous one.
    """

    shard: Shard
    since_ms: int
    until_ms: int | None
    tenant: str | None
    kind: str | None

    def __post_init__(self) -> None:
        self._first = first_searched(self.since_ms)
        self._tenants = None if self.tenant is None else candidates(self.tenant)

    def read(self) -> Iterator[Expiry]:
        """The expiries that were not read yet, page by page."""
        last = streams.LAST if self.until_ms is None else last_searched(self.shard, self.until_ms)
        for entry, fields in streams.read(self.shard, self.shard.keys.events, self._first, last):
            self._first = streams.after(entry)
            if ONLY_FOR in fields or not is_expiry(fields) or not self._is_wanted(fields):
                continue
            expired_at, deadline, grace = (
                whole(fields.get(name, b"")) for name in (b"expired_at", b"expires_at", b"grace_ms")
            )
            at = streams.milliseconds(entry) if expired_at is None else expired_at
            if at >= self.since_ms and (self.until_ms is None or at < self.until_ms):
                lag = None if deadline is None or grace is None else at - deadline - grace
                yield Expiry(self.shard.name, entry, lag, self.shard.origin, fields)

    def _is_wanted(self, fields: dict[bytes, bytes]) -> bool:
        of_tenant = self._tenants is None or fields.get(b"tenant", b"") in self._tenants
        return of_tenant and self.kind in (None, kind_of_event(fields))


def retention_gap(shard: Shard, since_ms: int, lost: str) -> str:
    """
    Why expiries after `since_ms` may be missing from the stream, as if there had been none; or empty. `lost` continues
    `what expired before`.
    """
    info = streams.info(shard.client, shard.keys.events)
    if info is None:
        return "there is no event stream: nothing has expired here yet, or the stream was deleted"
    # Redis 6.2 does not count added entries.
    if info.get("entries-added") == info["length"] and info["length"]:
        return ""
    first = info["first-entry"]
    if first is None:
        return "" if info.get("entries-added") == 0 else "no event is kept any more"
    oldest_ms = streams.milliseconds(first[0])
    if oldest_ms > shard.read_clock():  # the clock was set back since
        oldest_ms = time_of(*first)
    if oldest_ms <= since_ms:
        return ""
    return f"the oldest event that is still kept is of {rfc3339(oldest_ms)}; what expired before {lost}"


class ExpiredCountDocument(ShardsDocument, title="sweeperd expired --count --json"):
    count: Count
