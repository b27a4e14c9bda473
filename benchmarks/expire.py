"""
`python -m benchmarks.expire`: the server time of one `expire` call beside a bare release of the same four scopes.

The bare release is what the release itself costs: one HMGET, two HINCRBY a scope, HSET, ZREM, PEXPIRE; no checks and no
event. Both run in turn on one server; the times are the server's own (`INFO commandstats`).
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
    for binary in binaries():
        with Server(binary) as server, redis.Redis.from_url(server.url, protocol=2) as client:
            rounds = [
                (
                    microseconds(client, Script("bare", BARE), bare_calls),
                    microseconds(client, kind.script, expire_calls),
                )
                for _ in range(ROUNDS)
            ]
        bare, expire = (median(times) for times in zip(*rounds, strict=True))
        ratio = median(expire / bare for bare, expire in rounds)
        least = min(expire for _, expire in rounds) / min(bare for bare, _ in rounds)
        print(
            f"{binary}: bare {bare:.1f} µs, expire {expire:.1f} µs; ratio {ratio:.2f} (of the least times {least:.2f})"
        )


if __name__ == "__main__":
    main()
