"""One moment of a shard while all goes on: index, hashes and budgets, read in one script."""

from dataclasses import dataclass
from typing import cast

from proof.soak.census import IndexLook, look
from proof.soak.chaos.stage import ShardStage
from sweeperd.store.scripts import Call, Script
from tests.support.traffic.plan import BUDGETS, UNIT

# KEYS[1]  -> reservation:ttl        ZSET  the index
# KEYS[2..] -> budget:<scope>:<unit>  HASH  every budget
# ARGV[1] -> what comes before the id in the name of a reservation's HASH
# ARGV[2] -> what comes before <scope>:<unit> in the name of a budget's HASH
#
# Amounts are below 2^53 here, so that Lua's numbers hold them exactly.
# Returns {budgets with a negative number, budgets that do not add up, budgets whose `reserved` is not what the ACTIVE
# reservations of the index hold}.
_BUDGETS = Script(
    "chaos_budgets",
    """
    local held = {}
    for _, entry in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
      local row = redis.call('HMGET', ARGV[1] .. entry, 'state', 'estimate_amount', 'estimate_unit', 'budgeted_scopes')
      if row[1] == 'ACTIVE' then
        for _, scope in ipairs(cjson.decode(row[4])) do
          local key = ARGV[2] .. scope .. ':' .. row[3]
          held[key] = (held[key] or 0) + tonumber(row[2])
        end
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
    return {negative, unbalanced, drifted}
    """,
)


@dataclass(frozen=True)
class BudgetLook:
    """How many budgets of a shard were wrong at one moment, and how."""

    negative: int
    unbalanced: int
    #: `reserved` is not the sum of what its ACTIVE reservations hold.
    drifted: int


@dataclass(frozen=True)
class Moment:
    """One shard at one moment; `at` is in seconds since the load's start."""

    at: float
    shard: str
    index: IndexLook
    budgets: BudgetLook


def take(shard: ShardStage, at: float, recent: list[bytes]) -> Moment:
    """`recent`: ids of reservations that may be ACTIVE. Raises redis.RedisError."""
    keys = shard.keys
    budgets = [keys.budget(scope.encode(), UNIT.encode()) for scope in BUDGETS]
    arguments = [keys.reservation(b""), keys.budget_stem]
    found = cast(list[int], _BUDGETS.run(shard.client, Call([keys.reservation_index, *budgets], arguments)))
    return Moment(at, shard.name, look(shard.client, keys, recent), BudgetLook(*found))
