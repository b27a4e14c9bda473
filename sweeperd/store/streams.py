"""A stream read in pages."""

from collections.abc import Iterator
from typing import Any, cast

from sweeperd.store.shard import Shard

#: How many entries are read in one go.
PAGE = 500

StreamRow = tuple[bytes, dict[bytes, bytes]]


def read(
    shard: Shard, key: bytes, first: bytes = b"-", last: bytes = b"+", *, backwards: bool = False
) -> Iterator[StreamRow]:
    """
    The entries with ids from `first` to `last` (`(id`: without that one), each with its fields; `backwards`: the newest
    first. Raises redis.RedisError.
    """
    client = shard.client
    while True:
        rows = client.xrevrange(key, last, first, PAGE) if backwards else client.xrange(key, first, last, PAGE)
        for row in cast(list[StreamRow], rows):
            yield row
            if backwards:
                last = b"(" + row[0]
            else:
                first = b"(" + row[0]
        if len(cast(list[Any], rows)) < PAGE:
            return


def parse_id(entry: bytes) -> tuple[int, int]:
    """The two halves of an id: ms on Redis's clock and a number within the ms. They compare as ids do in Redis."""
    first, _, second = entry.partition(b"-")
    return int(first), int(second or 0)


def milliseconds(entry: bytes) -> int:
    """When an entry was added, ms on Redis's clock: the first half of its id."""
    return parse_id(entry)[0]
