"""Makes many reservations at once: the ledger writes one, and copies of it are sent in bulk."""

import itertools
from collections.abc import Sequence

import redis

from benchmarks.wire import Wire, encode
from sweeperd.store.keys import Keys
from tests.support.harness import TTL_MS, reserve, server_time

#: Four budgets an entry, named as they are in use.
SCOPES = (
    "tenant:acme",
    "tenant:acme/workspace:prod",
    "tenant:acme/workspace:prod/app:chat",
    "tenant:acme/workspace:prod/app:chat/agent:support",
)
TENANT, UNIT, AMOUNT = "acme", "TOKENS", 500
#: So many entries are sent in one piece.
PIECE = 500

#: Stand in the model for what differs from copy to copy, and are as wide.
_EXPIRES_AT, _CREATED_AT = b"@" * 13, b"#" * 13


def entry_id(number: int) -> bytes:
    """The id of one entry: as long as a UUID."""
    return b"%036d" % number


def fill(
    url: str,
    entries: int,
    *,
    scopes: Sequence[str] = SCOPES,
    due_ms: int = 60_000,
    spread_ms: int = 1000,
    grace_ms: int = 0,
    first: int = 0,
) -> None:
    """
    Put reservations into Redis: hash, index entry, idempotency record, and what they hold of each scope's budget. They
    are numbered from `first` in the order of their deadlines, the last of which passed `due_ms` ago (negative: is yet
    to come) and the first up to `spread_ms` before. Raises RuntimeError where not all of it arrived.
    """
    keys = Keys()
    with redis.Redis.from_url(url, protocol=2) as client:
        indexed, known = client.zcard(keys.reservation_index), client.dbsize()
        model = entry_id(first)
        reserve(client, [model], scopes=scopes, amount=AMOUNT, grace=grace_ms, tenant=TENANT)
        template = _template(client, keys, model)
        last = server_time(client) - due_ms
        copies = (
            _copy(template, model, entry_id(first + number), last - (entries - 1 - number) * spread_ms // entries)
            for number in range(entries)
        )
        with Wire(url, b"+OK\r\n") as wire:
            wire.send(encode("CLIENT", "REPLY", "OFF"))
            while piece := b"".join(itertools.islice(copies, PIECE)):
                wire.send(piece)
            wire.send(encode("CLIENT", "REPLY", "ON"))
            wire.await_replies(1)
        pipeline = client.pipeline()
        for scope in scopes:
            for field in ("allocated", "reserved"):
                pipeline.hincrby(keys.budget(scope.encode(), UNIT.encode()), field, AMOUNT * (entries - 1))
        pipeline.execute()
        arrived = client.zcard(keys.reservation_index) - indexed
        made = client.dbsize() - known
        if arrived < entries or made < 2 * entries:  # more, where somebody else reserves meanwhile
            raise RuntimeError(f"of {entries} reservations {arrived} are in the index, with {made} keys")


def check_books(url: str, expired: int, scopes: Sequence[str] = SCOPES) -> None:
    """
    See that this many entries have expired, each with its event, and that the budgets have back what they held. Raises
    RuntimeError where it is not so.
    """
    keys = Keys()
    with redis.Redis.from_url(url, protocol=2) as client:
        events = client.xlen(keys.events)
        if events != expired:
            raise RuntimeError(f"{expired} entries were to expire, and there are {events} events")
        for scope in scopes:
            held = client.hmget(keys.budget(scope.encode(), UNIT.encode()), "reserved", "remaining", "allocated")
            if held != [b"0", b"%d" % (expired * AMOUNT), b"%d" % (expired * AMOUNT)]:
                raise RuntimeError(f"the books of {scope} do not balance: reserved, remaining, allocated are {held}")


def _template(client: redis.Redis, keys: Keys, model: bytes) -> bytes:
    """The commands that write what the ledger wrote for this entry."""
    row = client.hgetall(keys.reservation(model)) | {b"expires_at": _EXPIRES_AT, b"created_at": _CREATED_AT}
    record = keys.idempotency(TENANT.encode(), "reserve", model)
    answered = client.get(record)
    assert isinstance(answered, bytes)
    fields = [word for pair in row.items() for word in pair]
    return (
        encode("HSET", keys.reservation(model), *fields)
        + encode("ZADD", keys.reservation_index, _EXPIRES_AT, model)
        + encode("SET", record, answered, "PX", client.pttl(record))
    )


def _copy(template: bytes, model: bytes, entry: bytes, expires_at: int) -> bytes:
    return (
        template.replace(model, entry)
        .replace(_EXPIRES_AT, b"%d" % expires_at)
        .replace(_CREATED_AT, b"%d" % (expires_at - TTL_MS))
    )
