"""Which reservations hold an amount of one budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import redis

from sweeperd.config import SweepSettings
from sweeperd.ops.reconcile.keyspace import Keyspace, Throttle
from sweeperd.ops.reconcile.reader import ReservationReader
from sweeperd.store.shard import Shard

_FIELDS = (b"tenant", b"state", b"created_at", b"expires_at", b"quarantined_at")


@dataclass(frozen=True, slots=True)
class Holder:
    """One reservation. `amount`: what it holds of the budget, over all mentions of the scope."""

    id: bytes
    amount: int
    tenant: bytes
    state: bytes
    created_at: bytes
    expires_at: bytes
    quarantined_at: bytes


def read_budget(shard: Shard, budget: bytes) -> dict[bytes, bytes] | None:
    """The fields of a budget, given by its key; None where there is no such hash. Raises redis.RedisError."""
    try:
        return cast(dict[bytes, bytes], shard.client.hgetall(budget)) or None
    except redis.ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        return None


def find_holders(
    shard: Shard, settings: SweepSettings, budget: bytes, throttle: Throttle | None = None
) -> Iterator[Holder]:
    """
    The reservations that hold an amount of the budget when they are read; quarantined ACTIVE ones hold too. One that
    SCAN returns twice comes once. Raises RedisUnavailable, redis.RedisError.
    """
    throttle, stem, known = throttle or Throttle(), shard.keys.reservation(b""), set[bytes]()
    now = shard.read_clock()
    with ReservationReader(shard, settings, throttle) as reader:
        for _, page in Keyspace(shard, throttle).keys(stem):
            for sight in reader.read([key.removeprefix(stem) for key in page], now):
                amount = _amount(shard, budget, sight.holding)
                if amount is not None and sight.entry not in known:
                    known.add(sight.entry)
                    row = cast(list[bytes | None], shard.client.hmget(stem + sight.entry, list(_FIELDS)))
                    yield Holder(sight.entry, amount, *(value or b"" for value in row))


def _amount(shard: Shard, budget: bytes, holding: Sequence[bytes]) -> int | None:
    """What a holding of reconcile_look.lua takes of this budget now; None where it is none of it."""
    if len(holding) < 4 or holding[0] == b"unreadable" or holding[1] not in (b"", b"?"):
        return None
    _, _, amount, unit, *scopes = holding
    mentions = sum(shard.keys.budget(scope, unit) == budget for scope in scopes)
    return int(amount) * mentions if mentions else None
