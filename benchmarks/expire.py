"""
`python -m benchmarks.expire`: the server time of one `expire` call beside a bare release of the same four scopes.

The bare release is what the release itself costs: one HMGET, two HINCRBY a scope, HSET, ZREM, PEXPIRE; no checks and no
event. The unchecked one reads and writes all that `expire` does, and adds the event, and checks nothing: what lies
between it and `expire` is the price of the checks. All run in turn on one server; the times are the server's own
(`INFO commandstats`).
"""

from statistics import median

import redis

from sweeperd.config import SweepSettings
from sweeperd.embedded import Server, binaries
from sweeperd.lua import Call, Script
from sweeperd.reservation import reservations
from sweeperd.shard import Keys
from tests.world import reserve

SCOPES = (
    "tenant:acme",
    "tenant:acme/workspace:prod",
    "tenant:acme/workspace:prod/app:chat",
    "tenant:acme/workspace:prod/app:chat/agent:support",
)
ENTRIES, ROUNDS, SLICE = 1000, 25, 50

BARE = """
local row = redis.call('HMGET', KEYS[1], 'state', 'expires_at', 'grace_ms', 'estimate_amount', 'estimate_unit')
for i = 3, #KEYS do
  redis.call('HINCRBY', KEYS[i], 'reserved', '-' .. row[4])
  redis.call('HINCRBY', KEYS[i], 'remaining', row[4])
end
redis.call('HSET', KEYS[1], 'state', 'EXPIRED', 'expired_at', ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""

UNCHECKED = """
local call = redis.call
call('TIME')
local row = call('HMGET', KEYS[1], 'state', 'expires_at', 'grace_ms', 'estimate_amount', 'estimate_unit',
  'budgeted_scopes', 'tenant', 'scope_path', 'created_at', 'extension_count')
local scopes, budgets = cjson.decode(row[6]), {}
for i = 1, #scopes do
  scopes[i] = ARGV[2] .. scopes[i] .. ':' .. row[5]
  budgets[i] = call('HMGET', scopes[i], 'reserved', 'remaining')
end
call('ZREM', KEYS[2], ARGV[1])
call('XADD', KEYS[3], '*', 'id', ARGV[1], 'tenant', row[7], 'scope', row[8], 'unit', row[5], 'amount', row[4],
  'created_at', row[9], 'expires_at', row[2], 'expired_at', '1800000000000', 'grace_ms', row[3],
  'extensions', row[10], 'missing', '[]', 'trace_id', ARGV[5])
for i = 1, #scopes do
  call('HSET', scopes[i], 'reserved', budgets[i][1], 'remaining', budgets[i][2])
end
call('HSET', KEYS[1], 'state', 'EXPIRED', 'expired_at', '1800000000000')
call('PEXPIRE', KEYS[1], ARGV[4])
return {'expired', row[7], 1, '[]'}
"""


def microseconds(client: redis.Redis, run: Script, calls: list[Call]) -> float:
    """Server time of one call, over calls on fresh reservations."""
    client.flushall()
    client.script_load(run.source)
    reserve(client, [call.args[0] for call in calls], scopes=SCOPES, amount=500)
    client.config_resetstat()
    for start in range(0, len(calls), SLICE):
        run.run_many(client, calls[start : start + SLICE])
    return float(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])


def main() -> None:
    """Measure on each Redis at hand."""
    keys = Keys()
    kind = reservations(keys, SweepSettings())
    ids = [b"%036d" % number for number in range(ENTRIES)]
    budgets = [keys.budget_stem + scope.encode() + b":TOKENS" for scope in SCOPES]
    bare_calls = [
        Call([keys.reservation(entry), keys.reservation_index, *budgets], [entry, 1_800_000_000_000, 2_592_000_000])
        for entry in ids
    ]
    expire_calls = [kind.call(entry, "0af7651916cd43dd8448eb211c80319c") for entry in ids]
    contestants = {
        "bare": (Script("bare", BARE), bare_calls),
        "unchecked": (Script("unchecked", UNCHECKED), expire_calls),
        "expire": (kind.script, expire_calls),
    }
    for binary in binaries():
        with Server(binary) as server, redis.Redis.from_url(server.url, protocol=2) as client:
            rounds = [
                {name: microseconds(client, run, calls) for name, (run, calls) in contestants.items()}
                for _ in range(ROUNDS)
            ]
        for name in contestants:
            time = median(times[name] for times in rounds)
            ratio = median(times[name] / times["bare"] for times in rounds)
            print(f"{binary}: {name:9} {time:5.1f} µs, {ratio:.2f} times the bare release")


if __name__ == "__main__":
    main()
