"""Checks that a missing right stops every move and is named."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.config import RedisSettings, Settings
from sweeperd.context import ShardContext
from sweeperd.errors import KindRefused
from sweeperd.metrics import Metrics
from sweeperd.runtime.schedule import Complete, Incomplete
from sweeperd.runtime.sweeps import KindSweep
from sweeperd.store import Shard
from sweeperd.sweep import Outcome
from tests.support.acl import rules
from tests.support.builders import reservations_kind
from tests.support.harness import daemon, environment, eventually, reserve
from tests.support.servers import Server

pytestmark = pytest.mark.every_redis

PASSWORD = "only-for-tests"
READ_ONLY = "Redis 6.2 has no rights to read only"


class Limited:
    """A sweep as a user with fewer and fewer rights."""

    def __init__(self, server: Server, client: redis.Redis) -> None:
        self._client = client
        self.url = server.url.replace("redis://", f"redis://limited:{PASSWORD}@")
        self.allow("reset", "on", f">{PASSWORD}", *(rule for rule in rules() if rule != "on"))
        self.shard = Shard(RedisSettings.model_validate({"url": self.url}))
        settings = Settings()
        kind = reservations_kind(self.shard.keys, settings.sweep)
        self.decided: list[Any] = []
        #: What happens after each batch.
        self.then: Callable[[], object] = lambda: None
        context = ShardContext(settings, self.shard, Metrics(), threading.Event(), 1)
        self.sweep = KindSweep(context, kind, self._observe)

    def _observe(self, decisions: Sequence[Any]) -> None:
        self.decided += decisions
        self.then()

    def ids(self, outcome: Outcome) -> list[bytes]:
        """The entries that were decided so."""
        return [decision.id for decision in self.decided if decision.outcome is outcome]

    def failure(self) -> str:
        """Why a run did not reach its end."""
        outcome = self.sweep.run()
        assert isinstance(outcome, Incomplete)
        return outcome.failure

    def refused(self) -> None:
        """A run in which a right is missing. A new connection is tried before it is used."""
        with contextlib.suppress(KindRefused):
            assert "a right is missing: " in self.failure()

    def allow(self, *changes: str) -> None:
        self._client.execute_command("ACL", "SETUSER", "limited", *changes)

    def dump(self) -> dict[bytes, Any]:
        """Every key but those of the lease and of the last sweep."""
        keys: list[bytes] = self._client.execute_command("KEYS", "*")
        keys = [key for key in keys if not key.startswith((b"sweeperd:lease", b"sweeperd:ticks"))]
        return {key: self._client.dump(key) for key in keys}


@pytest.fixture
def limited(server: Server, client: redis.Redis) -> Iterator[Limited]:
    user = Limited(server, client)
    reserve(client, ["a", "b"])
    yield user
    user.shard.close()
    client.acl_deluser("limited")


def test_the_shipped_rights_suffice(limited: Limited) -> None:
    assert isinstance(limited.sweep.run(), Complete)
    assert [decision.outcome for decision in limited.decided] == [Outcome.EXPIRED] * 2


@pytest.mark.parametrize("command", ["XADD", "HMGET"])
def test_a_command_that_is_missing_moves_nothing_and_is_named(limited: Limited, command: str) -> None:
    before = limited.dump()
    limited.allow(f"-{command.lower()}")
    for _ in range(2):
        with pytest.raises(KindRefused, match=rf"run .*\b{command}\b.* on "):
            limited.sweep.run()
        assert limited.dump() == before
    limited.allow(f"+{command.lower()}")
    assert isinstance(limited.sweep.run(), Complete)


def test_a_key_that_is_missing_moves_nothing_and_is_named(limited: Limited) -> None:
    before, key = limited.dump(), "sweeperd:events"
    kept = [rule for rule in rules() if rule.startswith("~") and rule != f"~{key}"]
    limited.allow("resetkeys", *kept)
    with pytest.raises(KindRefused, match=key):
        limited.sweep.tick()
    assert limited.dump() == before


def test_each_connection_is_checked(limited: Limited) -> None:
    assert isinstance(limited.sweep.run(), Complete)
    limited.allow("-xadd")
    limited.shard.client.connection_pool.disconnect()
    with pytest.raises(KindRefused, match="XADD on sweeperd:events"):
        limited.sweep.run()


@pytest.mark.parametrize("pattern", ["budget:*"])
def test_hashes_that_may_only_be_read_fail_the_tick(
    limited: Limited, client: redis.Redis, redis_version: tuple[int, ...], pattern: str
) -> None:
    if redis_version < (7, 0):
        pytest.skip(READ_ONLY)
    before = limited.dump()
    limited.allow("resetkeys", *(rule for rule in rules() if rule.startswith("~") and rule != f"~{pattern}"))
    limited.allow(f"%R~{pattern}")
    assert "a right is missing: " in limited.failure()
    assert limited.dump() == before


@pytest.mark.parametrize("command", ["zrem", "hset"])
def test_a_right_that_is_taken_away_in_the_middle_moves_nothing_more(
    limited: Limited, client: redis.Redis, command: str
) -> None:
    ids = [f"r{number}" for number in range(300)]
    reserve(client, ids)
    limited.then = lambda: limited.allow(f"-{command}")
    assert "a right is missing: " in limited.failure()
    first = len(limited.ids(Outcome.EXPIRED))
    assert 0 < first < 150
    assert client.xlen("sweeperd:events") == first
    assert client.zcard("reservation:ttl") == 302 - first
    assert client.exists("sweeperd:quarantine") == 0
    assert client.hget("reservation:res_r299", "state") == b"ACTIVE"
    before = limited.dump()
    limited.refused()
    assert limited.dump() == before
    limited.then = lambda: None
    limited.allow(f"+{command}")
    while client.zcard("reservation:ttl"):
        assert isinstance(limited.sweep.run(), Complete)
    assert sorted(limited.ids(Outcome.EXPIRED)) == sorted(name.encode() for name in [*ids, "a", "b"])
    assert client.xlen("sweeperd:events") == 302
    budgets = client.keys("budget:*")
    assert budgets
    assert {client.hget(budget, "reserved") for budget in budgets} == {b"0"}


def test_the_daemon_is_not_ready_and_names_the_right(
    limited: Limited, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    limited.allow("-hset")
    before = limited.dump()
    with daemon(environment(limited.url, sweep__interval="100ms"), tmp_path) as running:
        status, text = eventually(lambda: answer if "HSET" in (answer := running.get("/readyz"))[1] else None)
        assert status == 503
        assert "HSET on reservation:ttl" in text
        assert eventually(lambda: running.metric("sweeperd_sweeps_total", shard="default", result="error")) > 0
        assert limited.dump() == before
        limited.allow("+hset")
        eventually(lambda: running.get("/readyz")[0] == 200)
    assert client.zcard("reservation:ttl") == 0


@pytest.fixture
def redis_version(client: redis.Redis) -> tuple[int, ...]:
    return tuple(map(int, client.info("server")["redis_version"].split(".")))
