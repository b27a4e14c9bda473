"""Reads what is in Redis: one moment of a shard under load, and a count of everything at the end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from proof.soak.stage import ShardStage
from sweeperd.ledger import Balance
from sweeperd.store.scripts import Call, Script
from tests.support.traffic.plan import BUDGETS, UNIT

# One script is one moment: a reservation that ends between two commands of a client would seem a fault.
#
# KEYS[1]  -> reservation:ttl         ZSET  the index
# KEYS[2..] -> budget:<scope>:<unit>  HASH  every budget
# ARGV[1] -> what comes before the id in the name of a reservation's HASH
# ARGV[2] -> what comes before <scope>:<unit> in the name of a budget's HASH
# ARGV[3..] -> ids of reservations that may be ACTIVE
#
# Amounts are below 2^53 here, so that Lua's numbers hold them exactly. Returns the numbers of Moment, in its order.
_LOOK = Script(
    "look",
    """
    local held = {}
    local entries = redis.call('ZRANGE', KEYS[1], 0, -1)
    local without_hash, without_entry = 0, 0
    for _, entry in ipairs(entries) do
      local row = redis.call('HMGET', ARGV[1] .. entry, 'state', 'estimate_amount', 'estimate_unit', 'budgeted_scopes')
      if row[1] == 'ACTIVE' then
        for _, scope in ipairs(cjson.decode(row[4])) do
          local key = ARGV[2] .. scope .. ':' .. row[3]
          held[key] = (held[key] or 0) + tonumber(row[2])
        end
      else
        without_hash = without_hash + 1
      end
    end
    for i = 3, #ARGV do
      if redis.call('HGET', ARGV[1] .. ARGV[i], 'state') == 'ACTIVE' and not redis.call('ZSCORE', KEYS[1], ARGV[i]) then
        without_entry = without_entry + 1
      end
    end
    local negative, unbalanced, drifted = 0, 0, 0
    for i = 2, #KEYS do
      local row = redis.call('HMGET', KEYS[i], 'allocated', 'remaining', 'reserved', 'spent', 'debt')
      for j = 1, 5 do
        row[j] = tonumber(row[j])
      end
      if math.min(row[1], row[2], row[3], row[4], row[5]) < 0 then
        negative = negative + 1
      end
      if row[2] ~= row[1] - row[4] - row[3] - row[5] then
        unbalanced = unbalanced + 1
      end
      if row[3] ~= (held[KEYS[i]] or 0) then
        drifted = drifted + 1
      end
    end
    return {#entries, without_hash, without_entry, negative, unbalanced, drifted}
    """,
)


@dataclass(frozen=True)
class Moment:
    """One shard at one moment; `at` is in seconds since the load's start."""

    at: float
    shard: str
    #: Entries of the index, those whose hash is missing or not ACTIVE, and ACTIVE hashes without an entry.
    entries: int
    without_hash: int
    without_entry: int
    #: Budgets with a negative number, budgets that do not add up, and budgets whose `reserved` is not the sum of what
    #: their ACTIVE reservations hold.
    negative: int
    unbalanced: int
    drifted: int


@dataclass(frozen=True)
class Census:
    """All that is in a shard when it is quiet."""

    #: State -> reservation hashes.
    reservations: dict[str, int]
    #: Records of answers under idempotency keys.
    idempotency_keys: int
    #: Entries of the event stream.
    events: int
    #: Entries of the index, those without an ACTIVE hash, and ACTIVE hashes without an entry: over all hashes.
    entries: int
    without_hash: int
    without_entry: int
    budgets: tuple[Balance, ...]


def look(shard: ShardStage, at: float, recent: Sequence[bytes]) -> Moment:
    """
    Read one moment: all entries of the index, but only ACTIVE hashes among `recent`. Raises redis.RedisError.
    """
    keys = shard.keys
    budgets = [keys.budget(scope.encode(), UNIT.encode()) for scope in BUDGETS]
    call = Call([keys.reservation_index, *budgets], [keys.reservation(b""), keys.budget_stem, *recent])
    return Moment(at, shard.name, *cast(list[int], _LOOK.run(shard.client, call)))


def take(shard: ShardStage) -> Census:
    """Count everything; right only while no client writes. Raises redis.RedisError, LedgerError."""
    client, keys = shard.client, shard.keys
    stem = keys.reservation(b"")
    found: set[bytes] = set()  # SCAN may return a key twice
    idempotency_keys: set[bytes] = set()
    for key in client.scan_iter(count=1000):
        if key.startswith(stem):
            found.add(key.removeprefix(stem))
        elif key.startswith(b"idem:"):
            idempotency_keys.add(key)
    states: Counter[str] = Counter()
    active: set[bytes] = set()
    ids = list(found)
    for start in range(0, len(ids), 1000):
        some = ids[start : start + 1000]
        pipeline = client.pipeline(transaction=False)
        for reservation_id in some:
            pipeline.hget(stem + reservation_id, "state")
        for reservation_id, state in zip(some, pipeline.execute(), strict=True):
            states[(state or b"none").decode()] += 1
            if state == b"ACTIVE":
                active.add(reservation_id)
    entries = set(client.zrange(keys.reservation_index, 0, -1))
    return Census(
        dict(states),
        len(idempotency_keys),
        client.xlen(keys.events),
        len(entries),
        len(entries - active),
        len(active - entries),
        tuple(shard.ledger.budget(scope, UNIT) for scope in BUDGETS),
    )
