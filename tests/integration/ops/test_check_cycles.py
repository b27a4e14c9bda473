"""`check --cycles`: is it a Cycles installation, and can its sweep be taken over?"""

import contextlib
import json
import re
from collections.abc import Mapping

import pytest
import redis

from sweeperd.config import RedisSettings, Settings
from sweeperd.ops.check import cycles
from sweeperd.ops.check.cycles import CYCLES_CHECKS, RECENT
from sweeperd.ops.check.findings import CheckFinding, CheckLevel
from sweeperd.ops.check.server import check_shard
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.reconcile.last_walk import LastWalk
from sweeperd.store import Shard
from tests.fixture.cycles.load import load
from tests.integration.conftest import Cli
from tests.support.acl import PASSWORD, rules
from tests.support.harness import environment
from tests.support.servers import Server

OK, WARNING, FAILURE = CheckLevel.OK, CheckLevel.WARNING, CheckLevel.FAILURE
LEASE = "cycles:maintenance:lease:reservation_expiry"
RIGHTS = rules(cycles={"enabled": True})


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycles, "UNLOCKED_SECONDS", 0.0)


def found(shard: Shard, *, enabled: bool = False, **given: str) -> Mapping[str, CheckFinding]:
    settings = Settings.model_validate({"cycles": {"enabled": enabled} | given})
    return {finding.check: finding for finding in check_shard(shard, settings, cycles=True)}


def test_a_recorded_installation(shard: Shard, client: redis.Redis) -> None:
    load(client)
    findings = found(shard)
    assert findings["cycles installation"].level is OK
    assert "webhooks:_all" in findings["cycles installation"].says
    assert findings["cycles lease"].says == "free"
    assert findings["cycles rights"].level is OK
    assert findings["cycles subscriptions"].level is WARNING, "some of its records are unreadable for the runtime"
    assert "false" in findings["cycles enabled"].says
    assert "true" in found(shard, enabled=True)["cycles enabled"].says


def test_a_redis_that_is_none(shard: Shard) -> None:
    findings = found(shard)
    assert findings["cycles installation"].level is WARNING
    assert findings["cycles subscriptions"].level is OK
    settings = Settings.model_validate({})
    assert not CYCLES_CHECKS.keys() & {finding.check for finding in check_shard(shard, settings)}


def test_the_holder_of_the_lease(shard: Shard, client: redis.Redis) -> None:
    for holder, ttl, level in (("instance:run", 30_000, OK), ("sweeperd", 30_000, OK), ("instance:run", None, FAILURE)):
        client.set(LEASE, holder, px=ttl)
        finding = found(shard)["cycles lease"]
        assert (finding.level, holder in finding.says) == (level, True)


def test_the_dispatcher_and_its_lock(shard: Shard, client: redis.Redis) -> None:
    says = found(shard)["cycles dispatcher"].says
    assert says.startswith("none, or one older than 0.1.25.18; 0 deliveries")
    client.lpush("dispatch:pending", "a", "b")
    client.lpush("dispatch:processing", "c")
    assert "not at work; 2 deliveries wait, 1 are being sent, 0 could" in found(shard)["cycles dispatcher"].says
    for ttl, level in ((120_000, OK), (None, FAILURE)):
        client.set("dispatch:ordering:lock", "a-replica", px=ttl)
        finding = found(shard)["cycles dispatcher"]
        assert (finding.level, "a-replica holds the lock" in finding.says) == (level, True)
    client.delete("dispatch:ordering:lock")
    client.lpush("dispatch:failed", "{}")
    assert found(shard)["cycles dispatcher"].level is WARNING
    for key in ("dispatch:failed", "dispatch:pending", "dispatch:ordering:lock"):
        client.flushdb()
        client.hset(key, "not", "of this type")
        finding = found(shard)["cycles dispatcher"]
        assert (finding.level, finding.says[:9]) == (FAILURE, "WRONGTYPE")


def test_urls_that_the_dispatcher_will_block(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WebhookUrlGuard of cycles-server-events. A paused subscription has no deliveries."""
    monkeypatch.setattr(cycles, "NAMED", 100)
    urls = {
        "name": "https://hooks.example.com/a",
        "plain": "http://hooks.example.com/a",
        "private": "https://10.1.2.3/a",
        "mapped": "https://[::ffff:192.168.0.1]:8443/a",
        "local": "https://localhost/a",
        "own": "https://203.0.113.9/a",
        "ftp": "ftp://hooks.example.com/a",
        "none": "",
        "broken": "https://[hooks.example.com/a",
    }
    for name, url in urls.items():
        record = {"subscription_id": name, "status": "ACTIVE", "url": url}
        client.set(f"webhook:{name}", json.dumps(record))
        client.set(f"webhook:{name}-paused", json.dumps(record | {"status": "PAUSED"}))
        client.sadd("webhooks:_all", name, f"{name}-paused")

    def blocked(**rules: object) -> set[str]:
        if rules:
            client.set("config:webhook-security", json.dumps(rules))
        finding = found(shard)["cycles webhook rules"]
        assert finding.level is WARNING
        return set(re.findall(r"[:,] ([\w-]+) \(", finding.says))

    always = {"private", "mapped", "local", "ftp", "none", "broken"}
    assert blocked() == always | {"plain"}
    assert blocked(allow_http=True, blocked_cidr_ranges=["203.0.113.0/24"], more=1) == always | {"own"}
    assert blocked(allow_http=True, allowed_url_patterns=["https://*.example.com/*"]) == always | {"plain", "own"}
    client.set("config:webhook-security", '{"blocked_cidr_ranges": ["example.com"]}')
    finding = found(shard)["cycles webhook rules"]
    assert (finding.level, "sends nothing" in finding.says) == (WARNING, True)


def test_unreadable_subscriptions_are_named(shard: Shard, client: redis.Redis) -> None:
    client.sadd("webhooks:_all", "good", "bad", "deleted")
    client.sadd("webhooks:__system__", "list")
    client.set("webhook:good", json.dumps({"subscription_id": "good", "status": "ACTIVE"}))
    client.set("webhook:bad", '{"subscription_id": "bad", "status": "active", "event_types": ["no.such"]}')
    client.rpush("webhook:list", "x")
    finding = found(shard)["cycles subscriptions"]
    assert (finding.level, finding.says[:6]) == (WARNING, "2 of 4")
    assert all(text in finding.says for text in ('bad (status is "active")', "list ("))


def test_the_retention_is_compared_with_that_of_the_services(shard: Shard, client: redis.Redis) -> None:
    """Its records are two days old, and the services set EVENT_TTL_DAYS=90 and DELIVERY_TTL_DAYS=14."""
    load(client)
    finding = found(shard)["cycles retention"]
    assert (finding.level, "events 90 d, deliveries 14 d" in finding.says) == (OK, True)
    for given, says, advice in (
        ({"event_ttl": "7d"}, "events 90 d", "cycles.event_ttl (7 d)"),
        ({"delivery_ttl": "30d"}, "deliveries 14 d", "cycles.delivery_ttl (30 d)"),
    ):
        finding = found(shard, enabled=False, **given)["cycles retention"]
        assert (finding.level, says in finding.says, advice in finding.advice) == (WARNING, True, True), given
    # Records of sweeperd say nothing about the services.
    client.flushall()
    now = shard.read_clock()
    for number, source in enumerate(["cycles-admin", *["sweeperd"] * 20]):
        client.set(f"event:e{number}", json.dumps({"source": source}), ex=86_400)
        client.zadd("events:_all", {f"e{number}": now + number})
    assert found(shard)["cycles retention"].says.endswith("events 1 d")
    client.set("event:e0", json.dumps({"source": "sweeperd"}), ex=86_400)
    client.zadd("events:_all", {"hash": now + 100, "list": now + 101, "gone": now + 102, "text": now + 103})
    client.hset("event:hash", "a", "b")
    client.rpush("event:list", "a")
    client.set("event:text", "no JSON")
    finding = found(shard)["cycles retention"]
    assert (finding.level, "unknown" in finding.says) == (OK, True)


def test_the_created_at_index(shard: Shard, client: redis.Redis) -> None:
    """ReservationCreatedAtIndexService of cycles-server: only READY and its count are compared with ZCARD."""
    assert "READY" not in found(shard)["cycles created-at index"].says
    for tenant, count in (("acme", 2), ("b", 0), ("globex", 1)):
        client.sadd("tenants", tenant)
        client.hset(f"reservation:idxmeta:{tenant}:created_at_ms", mapping={"state": "READY", "expected_count": count})
    client.zadd("reservation:idx:acme:created_at_ms", {"r1": 1, "r2": 2})
    client.zadd("reservation:idx:globex:created_at_ms", {"r3": 3})
    client.sadd("tenants", "without")
    assert "READY for 3 of 4" in found(shard)["cycles created-at index"].says
    client.zadd("reservation:idx:acme:created_at_ms", {"r4": 4})
    client.set("reservation:idx:without:created_at_ms", "text")
    finding = found(shard)["cycles created-at index"]
    assert finding.level is WARNING
    assert [each.partition(":")[0] for each in finding.says.split("; ")] == ["acme", "without"]
    client.delete("reservation:idxmeta:b:created_at_ms")
    client.rpush("reservation:idxmeta:b:created_at_ms", "x")
    client.hset("reservation:idxmeta:globex:created_at_ms", "expected_count", "many")
    says = found(shard)["cycles created-at index"].says
    assert [each.partition(":")[0] for each in says.split("; ")] == ["acme", "b", "globex"]


def test_the_retention_is_looked_at_within_bounds(shard: Shard, client: redis.Redis) -> None:
    now = shard.read_clock()
    client.set("event:old", json.dumps({"source": "cycles-server"}), ex=86_400)
    client.zadd("events:_all", {"old": now})
    pipeline = client.pipeline(transaction=False)
    for number in range(RECENT):
        pipeline.set(f"event:{number}", json.dumps({"source": "sweeperd"}))
        pipeline.zadd("events:_all", {str(number): now + number + 1})
    pipeline.execute()
    assert found(shard)["cycles retention"].level is OK
    client.zrem("events:_all", "0")
    assert found(shard)["cycles retention"].level is WARNING


def test_what_the_last_walk_found(shard: Shard, client: redis.Redis) -> None:
    assert found(shard)["cycles quarantine"].level is OK
    walk = LastWalk(finished_at=1, found={Fault.FOREIGN_QUARANTINE: 3}, foreign_expiries=2)
    client.hset("sweeperd:reconcile", "last", walk.model_dump_json())
    findings = found(shard)
    assert (findings["cycles quarantine"].level, findings["other sweepers"].level) == (WARNING, WARNING)
    assert findings["cycles quarantine"].says.startswith("3 reservations")
    client.hset("sweeperd:reconcile", "last", LastWalk(finished_at=1, found={}).model_dump_json())
    assert found(shard)["cycles quarantine"].level is OK


def test_the_rights_of_the_document_suffice(server: Server, client: redis.Redis) -> None:
    url = server.url.replace("redis://", f"redis://sweeperd:{PASSWORD}@")
    asked = OK if client.info()["redis_version"].startswith("6.") else FAILURE  # 6.2 has no way to ask for this one
    try:
        for further, level in (
            (RIGHTS, OK),
            ([], FAILURE),
            ([*RIGHTS, "-smembers"], FAILURE),
            ([*RIGHTS, "-lpush"], asked),
        ):
            client.execute_command("ACL", "SETUSER", "sweeperd", "reset", f">{PASSWORD}", *rules(), *further)
            with contextlib.closing(Shard(RedisSettings.model_validate({"url": url}))) as shard:
                findings = found(shard)
                assert findings["cycles rights"].level is level, further
                # Only an operator's user may look.
                names = ("retention", "created-at index", "dispatcher", "webhook rules")
                for name in (f"cycles {each}" for each in names):
                    assert (findings[name].level, "may not run" in findings[name].says) == (OK, True)
    finally:
        client.execute_command("ACL", "DELUSER", "sweeperd")


def test_the_option(cli: Cli, server: Server) -> None:
    done = cli("check", environment(server.url), "--cycles", "--json")
    assert done.exit_code == 0, done.output
    assert CYCLES_CHECKS.keys() <= {each["check"] for each in json.loads(done.stdout)["checks"]}
