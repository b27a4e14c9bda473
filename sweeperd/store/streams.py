"""Reads Redis streams: ids, entries page by page, groups."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self, cast

import redis

from sweeperd.store.errors import is_missing_key
from sweeperd.store.scripts import accepted, run_commands
from sweeperd.store.shard import Shard

#: How many entries to read in one call.
PAGE = 500
#: The bounds of a range with all entries.
FIRST, LAST = b"-", b"+"

StreamRow = tuple[bytes, dict[bytes, bytes]]


#: The greatest second half of an id.
GREATEST = 2**64 - 1


class StreamId(NamedTuple):
    """The id of an entry. Ids compare as Redis orders them."""

    #: When the entry was added, ms on Redis's clock.
    milliseconds: int
    #: The position among the entries of the same millisecond.
    sequence: int = 0

    @classmethod
    def parse(cls, text: bytes | str) -> Self:
        """Parse `1795248005123-0`, or `1795248005123` for the first id of the millisecond. Raises ValueError."""
        milliseconds, _, sequence = (text.decode() if isinstance(text, bytes) else text).partition("-")
        return cls(int(milliseconds), int(sequence or 0))

    @classmethod
    def at(cls, milliseconds: int) -> Self:
        """The first possible id at this time. A time before the epoch counts as the epoch."""
        return cls(max(0, milliseconds))

    @property
    def before(self) -> "StreamId":
        """The greatest smaller id; the smallest id returns itself."""
        if self.sequence:
            return StreamId(self.milliseconds, self.sequence - 1)
        return StreamId(self.milliseconds - 1, GREATEST) if self.milliseconds else self

    def __str__(self) -> str:
        return f"{self.milliseconds}-{self.sequence}"

    def __bytes__(self) -> bytes:
        return str(self).encode()


#: Before all entries.
START = StreamId(0)


def milliseconds(entry: bytes | str) -> int:
    return StreamId.parse(entry).milliseconds


def after(entry: bytes) -> bytes:
    """The exclusive bound of a range that starts after this entry, or ends before it when read backwards."""
    return b"(" + entry


def read(
    shard: Shard, key: bytes, first: bytes = FIRST, last: bytes = LAST, *, backwards: bool = False, page: int = PAGE
) -> Iterator[StreamRow]:
    """The entries with ids from `first` to `last`, with their fields, `page` a round trip. Raises redis.RedisError."""
    client = shard.client
    while True:
        rows = client.xrevrange(key, last, first, page) if backwards else client.xrange(key, first, last, page)
        for row in cast(list[StreamRow], rows):
            yield row
            if backwards:
                last = after(row[0])
            else:
                first = after(row[0])
        if len(cast(list[Any], rows)) < page:
            return


def exactly(client: redis.Redis, key: bytes, ids: Iterable[bytes | str]) -> list[list[StreamRow]]:
    """For each id a list with its entry, empty if there is none, in one round trip. Raises redis.RedisError."""
    return accepted(run_commands(client, (("XRANGE", key, entry, entry) for entry in ids)))


def info(client: redis.Redis, key: bytes) -> dict[str, Any] | None:
    """The reply of XINFO STREAM; None if the key doesn't exist. Raises redis.RedisError."""
    try:
        return client.xinfo_stream(key)
    except redis.ResponseError as error:
        if is_missing_key(error):
            return None
        raise


def groups(client: redis.Redis, key: bytes) -> dict[bytes, dict[str, Any]]:
    """The reply of XINFO GROUPS for each group, by name; empty if the key doesn't exist. Raises redis.RedisError."""
    try:
        rows = client.xinfo_groups(key)
    except redis.ResponseError as error:
        if is_missing_key(error):
            return {}
        raise
    return {row["name"]: row for row in rows}


def last_id(client: redis.Redis, key: bytes) -> bytes:
    """The last id that the stream generated; `0-0` if the key doesn't exist. Raises redis.RedisError."""
    found = info(client, key)
    return bytes(START) if found is None else cast(bytes, found["last-generated-id"])
