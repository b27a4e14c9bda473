"""Adds many events to the stream at once: the script writes one, and copies of it are added in bulk."""

from collections.abc import Iterator
from typing import Any

import redis

from benchmarks import raw
from benchmarks.fill import entry_id, fill
from benchmarks.wire import Wire, encode
from sweeperd.store.keys import Keys

#: The number of the reservation that becomes the model.
MODEL = 10**8
#: Events sent in one piece.
PIECE = 500


def add_events(url: str, events: int, *, first: int = 0, event_bytes: int = 0) -> None:
    """
    Add events of expired reservations, numbered from `first`, to the stream. `event_bytes`: the least length of the
    values of each, reached by a long scope. The server must know expire.lua. Raises RuntimeError where not all arrived.
    """
    key = Keys().events
    with redis.Redis.from_url(url, protocol=2) as client:
        fields = _model(client, url, first)
        room = event_bytes - sum(map(len, fields.values()))
        fields[b"scope"] += b"/part:" + b"x" * room if room > 0 else b""
        command = encode("XADD", key, "*", *(word for pair in fields.items() for word in pair))
        before = client.xlen(key)
        with Wire(url, b"+OK\r\n") as wire:
            wire.send(encode("CLIENT", "REPLY", "OFF"))
            for piece in _pieces(command, fields[b"id"], first, events):
                wire.send(piece)
            wire.send(encode("CLIENT", "REPLY", "ON"))
            wire.await_replies(1)
        if (arrived := client.xlen(key) - before) != events:
            raise RuntimeError(f"of {events} events {arrived} are in the stream")


def _model(client: "redis.Redis", url: str, first: int) -> dict[bytes, bytes]:
    """The fields of an event that expire.lua wrote, which is removed from the stream."""
    number = MODEL + first
    fill(url, 1, first=number)
    raw.sweep(url, 1, length=1, ahead=1, first=number)
    rows: Any = client.xrevrange(Keys().events, count=1)
    ((stream_id, fields),) = rows
    client.xdel(Keys().events, stream_id)
    return dict(fields)


def _pieces(command: bytes, model: bytes, first: int, events: int) -> Iterator[bytes]:
    for start in range(first, first + events, PIECE):
        numbers = range(start, min(start + PIECE, first + events))
        yield b"".join([command.replace(model, entry_id(number)) for number in numbers])
