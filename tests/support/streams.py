"""Reads and writes streams whose fields are bytes."""

from collections.abc import Mapping
from typing import Any, cast

import redis


def entries(client: redis.Redis, key: str | bytes) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Every entry of a stream, in order: its id and its fields."""
    # redis-py types its replies for every version of the protocol and every decoding at once.
    return cast(list[tuple[bytes, dict[bytes, bytes]]], cast(Any, client).xrange(key))


def append(client: redis.Redis, key: str | bytes, fields: Mapping[Any, Any], entry: str = "*") -> bytes:
    """Add an entry. Returns its id."""
    return cast(bytes, client.xadd(key, dict(fields), id=entry))
