"""A service that sweeps by the rules of Cycles runs next to sweeperd, and takes over when no replica lives."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from tests.support.books import Property, check, read
from tests.support.harness import SCOPES, budget, daemon, environment, eventually, reserve, run
from tests.support.servers import Server

LEASE = "cycles:maintenance:lease:reservation_expiry"
#: The service's own TTL of the lease, ms. It sweeps every 5 s, here more often.
TTL, SWEEP_EVERY = 30_000, 0.5
AMOUNT = 5
#: Expires one ACTIVE reservation and gives its amount back; it writes no event.
EXPIRE = """
if redis.call('HGET', KEYS[1], 'state') ~= 'ACTIVE' then return 0 end
redis.call('HSET', KEYS[1], 'state', 'EXPIRED', 'expired_at', ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[2])
for i = 3, #KEYS do
  redis.call('HINCRBY', KEYS[i], 'reserved', '-' .. ARGV[3])
  redis.call('HINCRBY', KEYS[i], 'remaining', ARGV[3])
end
return 1
"""


class Rival:
    """One replica of the service, which sweeps under the lease."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.runs: list[str] = []
        self.expired: list[str] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(10)
            assert not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            if self._client.set(LEASE, "rival", nx=True, px=TTL):
                self._sweep()
                self._client.delete(LEASE)
                self.runs.append("success")
            else:
                self.runs.append("skipped_locked")
            if self._stop.wait(SWEEP_EVERY):
                return

    def _sweep(self) -> None:
        seconds, micros = self._client.time()
        now = seconds * 1000 + micros // 1000
        for entry in self._client.zrange("reservation:ttl", "-inf", now, byscore=True):
            name = entry.decode()
            keys = [f"reservation:res_{name}", "reservation:ttl", *(f"budget:{scope}:TOKENS" for scope in SCOPES)]
            if self._client.eval(EXPIRE, len(keys), *keys, now, name, AMOUNT):
                self.expired.append(name)


def test_it_waits_while_a_replica_lives_and_takes_over_when_none_does(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    env = environment(server.url, cycles__enabled="true", sweep__interval="200ms")
    rival = Rival(client)
    ours: list[str] = []

    def swept(name: str) -> None:
        """Both have had their chance to sweep these; sweeperd did."""
        ids = [f"{name}-{number}" for number in range(20)]
        skipped = len(rival.runs)
        reserve(client, ids, amount=AMOUNT)
        ours.extend(ids)
        eventually(lambda: client.xlen("sweeperd:events") == len(ours))
        eventually(lambda: len(rival.runs) > skipped)
        assert not rival.expired
        assert set(rival.runs) == {"skipped_locked"}
        assert client.get(LEASE) == b"sweeperd"

    with daemon(env, tmp_path) as one, daemon(env, tmp_path) as other:
        eventually(lambda: client.get(LEASE) == b"sweeperd")
        with rival.running():
            swept("both")
            one.kill()
            swept("one")
            other.kill()
            assert 0 < client.pttl(LEASE) <= TTL
            theirs = [f"none-{number}" for number in range(20)]
            reserve(client, theirs, amount=AMOUNT)
            client.pexpire(LEASE, 1)  # the time that is left passes
            eventually(lambda: len(rival.expired) == len(theirs))
            eventually(lambda: rival.runs[-1] == "success")

    assert sorted(rival.expired) == sorted(theirs)
    assert client.xlen("sweeperd:events") == len(ours), "each of ours has its one event, and no other has one"
    assert budget(client) == (0, AMOUNT * len(ours + theirs)), "each amount came back once"
    check(
        read(client), {Property.NOT_NEGATIVE, Property.BALANCED, Property.HELD, Property.ONE_ENDING, Property.INDEXED}
    )
    done = run(["reconcile", "--json"], env, timeout=60)
    report = json.loads(done.stdout)
    (shard,) = report.get("shards", [report])
    assert shard["foreign_expiries"] == len(theirs), done.stderr
    assert set(shard["foreign_expired_ids"]) <= set(theirs)
    assert shard["foreign_expired_ids"]
