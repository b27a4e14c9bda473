"""Finds the events that an endpoint was due and has not accepted."""

from collections import Counter
from collections.abc import Collection
from enum import StrEnum
from typing import Any

import redis

from sweeperd.outbox import is_waiting
from sweeperd.store import Keys
from sweeperd.store.streams import StreamId, groups
from tests.support.streams import entries

#: Pending events that are listed in one round trip.
PAGE = 1000


class Place(StrEnum):
    """Where such an event is."""

    UNTAKEN = "not taken yet"
    PARKED = "waiting for another delivery"
    IN_HAND = "in the hands of a process"
    DEAD = "dead letters"
    LOST = "acknowledged and not accepted"


def places(client: redis.Redis, keys: Keys, endpoint: str, missing: Collection[bytes]) -> Counter[Place]:
    """How many of the events with these ids are where. Raises redis.RedisError."""
    if not missing:
        return Counter()
    last = StreamId.parse(groups(client, keys.events)[endpoint.encode()]["last-delivered-id"])
    owners = _owners(client, keys, endpoint)
    dead = {
        fields[b"event"] for _, fields in entries(client, keys.dead_letters) if fields[b"endpoint"] == endpoint.encode()
    }
    found: Counter[Place] = Counter()
    for event in missing:
        if StreamId.parse(event) > last:
            found[Place.UNTAKEN] += 1
        elif event in owners:
            found[Place.PARKED if is_waiting(owners[event]) else Place.IN_HAND] += 1
        else:
            found[Place.DEAD if event in dead else Place.LOST] += 1
    return found


def _owners(client: redis.Redis, keys: Keys, endpoint: str) -> dict[bytes, bytes]:
    """Each pending event of the endpoint -> who has it."""
    owners: dict[bytes, bytes] = {}
    first = "-"
    while True:
        page: Any = client.xpending_range(keys.events, endpoint, first, "+", PAGE)
        owners |= {row["message_id"]: row["consumer"] for row in page}
        if len(page) < PAGE:
            return owners
        first = f"({page[-1]['message_id'].decode()}"
