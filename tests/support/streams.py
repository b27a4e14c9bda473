"""Reads and writes streams whose fields are bytes."""

import hashlib
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

import redis


def entries(client: redis.Redis, key: str | bytes) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Every entry of a stream, in order: its id and its fields."""
    # redis-py types its replies for every version of the protocol and every decoding at once.
    return cast(list[tuple[bytes, dict[bytes, bytes]]], cast(Any, client).xrange(key))


def append(client: redis.Redis, key: str | bytes, fields: Mapping[Any, Any], entry: str = "*") -> bytes:
    """Add an entry. Returns its id."""
    return cast(bytes, client.xadd(key, dict(fields), id=entry))


def parse_rfc3339(instant: str) -> int:
    """The moment in an event, ms since the epoch."""
    return round(datetime.fromisoformat(instant).timestamp() * 1000)


def delivery_id(event_id: str, subscription_id: str) -> str:
    """The id that the service of Cycles gives a delivery: Java's UUID.nameUUIDFromBytes, cut to 16 digits."""
    name = f"{event_id}|{subscription_id}".encode()
    digest = hashlib.md5(name, usedforsecurity=False).digest()
    return f"del_{uuid.UUID(bytes=digest, version=3).hex[:16]}"
