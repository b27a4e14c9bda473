"""
Measures the server time of one `expire` call against a bare release of the same four scopes.

The bare release is what the release itself costs: one HMGET, two HINCRBY a scope, HSET, ZREM, PEXPIRE; no checks and no
event. The unchecked one reads and writes all that `expire` does, and adds the event, and checks nothing: what lies
between it and `expire` is the price of the checks. All run in turn on one server; the times are the server's own
(`INFO commandstats`).
"""

from collections.abc import Callable
from statistics import median

import redis

from benchmarks.fill import SCOPES, UNIT, entry_id, fill
from benchmarks.lab import Lab
from benchmarks.raw import TRACE_ID
from benchmarks.row import Goal, Row, Sample
from sweeperd.config import SweepSettings
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call, Script
from sweeperd.sweep.reservations import reservations

#: Calls sent in one go.
BATCH = 50

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


def measure(lab: Lab) -> Sample:
    """The medians over several turns."""
    entries, turns = lab.size("entries", 1000, 1000), lab.size("turns", 10, 3)
    keys = Keys()
    kind = reservations(keys, SweepSettings())
    ids = [entry_id(number) for number in range(entries)]
    budgets = [keys.budget(scope.encode(), UNIT.encode()) for scope in SCOPES]
    bare_calls = [
        Call([keys.reservation(entry), keys.reservation_index, *budgets], [entry, 1_800_000_000_000, 2_592_000_000])
        for entry in ids
    ]
    expire_calls = [kind.call(entry, TRACE_ID) for entry in ids]
    contestants = {
        "bare": (Script("bare", BARE), bare_calls),
        "unchecked": (Script("unchecked", UNCHECKED), expire_calls),
        "expire": (kind.script, expire_calls),
    }
    with lab.server() as server, redis.Redis.from_url(server.url, protocol=2) as client:
        times = [
            {
                name: server_microseconds(client, run, calls, lambda: fill(server.url, entries))
                for name, (run, calls) in contestants.items()
            }
            for _ in range(turns)
        ]
    return Sample(
        {
            "expire": median(one["expire"] / one["bare"] for one in times),
            "unchecked": median(one["unchecked"] / one["bare"] for one in times),
        },
        {f"{name}_microseconds": median(one[name] for one in times) for name in contestants},
    )


def server_microseconds(client: redis.Redis, run: Script, calls: list[Call], refill: Callable[[], None]) -> float:
    """Server time of one call, over calls on what `refill` has written to the empty server."""
    client.flushall()
    client.script_load(run.source)
    refill()
    client.config_resetstat()
    for start in range(0, len(calls), BATCH):
        run.run_many(client, calls[start : start + BATCH])
    return float(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])


ROW = Row(
    "expire",
    "server time of one `expire` call",
    "a bare release of the same scopes",
    {"expire": Goal("at_most", 1.75)},
    measure,
)
