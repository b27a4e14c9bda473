"""`sweeperd acl`: the rights that it prints suffice for all that sweeperd does with these settings."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.config import load
from sweeperd.ledger import Ledger, MissingRight, NoBudget
from sweeperd.ops.acl import acl_users
from sweeperd.store.scripts import Call, Script, script_names, source
from tests.integration.conftest import Cli
from tests.support.acl import ACL, PASSWORD, refusals, rules
from tests.support.harness import SCOPES, Daemon, daemon, environment, eventually, once, reserve
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.receiver import Receiver
from tests.support.servers import Server

pytestmark = pytest.mark.every_redis

MINUTE = timedelta(minutes=1)
ROOT = Path(__file__).parents[3]
#: A kind with templates, one with a script, a channel, an endpoint that asks for spikes and an order, and Cycles.
SETTINGS = (
    """
[cycles]
enabled = true
"""
    + SEAT_HOLD
    + """retention = "0s"
give_back = [
  "HINCRBY seats:{show} free {qty}", "INCRBY seats:count 1", "LPUSH seats:log:{show} {id}", "PUBLISH seats.{show} {id}",
]
channels = ["seats.*"]
unless = "EXISTS jobs:running:{id}"
unless_recheck = "200ms"
sums = [{ key = "seats:{show}", field = "free", of = "qty" }]

[[kinds]]
name = "session"
index = "sessions:ttl"
key = "sessions:{id}"
deadline = "expires_at"
ended = { state = "EXPIRED" }
script = "file:%s/examples/sessions/session.lua"
commands = ["SREM"]
writes = ["users:*"]
unless = { busy = "yes" }

[[webhooks.endpoints]]
name = "billing"
url = "%s"
events = ["reservation", "seat-hold", "session", "reservation.expiry_rate_spike"]
order = "key"
"""
)


def environment_of(tmp_path: Path, url: str, receiver: str, **settings: object) -> dict[str, str]:
    config = tmp_path / "config.toml"
    config.write_text(SETTINGS % (ROOT, receiver))
    return environment(url, sweep__interval="100ms", config=config, **settings)


def fill(client: redis.Redis) -> None:
    """Entries of each kind: one that expires, one that cannot be decided; and one that is protected for a while."""
    reserve(client, ["one", "two"])
    client.hset("reservation:res_odd", "state", "BROKEN")
    client.zadd("reservation:ttl", {"odd": 1})
    client.hset("seats:hamlet", "free", 1)
    client.set("seats:count", 1)
    for number, quantity in enumerate(("1", "none")):
        hold_seats(client, str(number), quantity, 10**12)
    hold_seats(client, "guarded", "1", 10**12)
    client.set("jobs:running:guarded", 1)
    for number, state in enumerate(("ACTIVE", "")):
        session: dict[Any, Any] = {"state": state, "user": "ada", "expires_at": 10**12, "last_seen": 1, "idle_ms": 1000}
        client.hset(f"sessions:{number}", mapping=session)
        client.zadd("sessions:ttl", {str(number): 10**12})


def decided(running: Daemon) -> bool:
    expiries = [("reservations", 2), ("seat-hold", 2)]
    return all(
        running.metric("sweeperd_candidates_total", kind=kind, outcome="expired") == count for kind, count in expiries
    )


def freed(running: Daemon, client: redis.Redis) -> bool:
    """When an entry was seen to be protected, nothing protects it any more."""
    if not running.metric("sweeperd_candidates_total", kind="seat-hold", outcome="not_due"):
        return False
    client.delete("jobs:running:guarded")
    return True


@pytest.fixture
def limited_url(own_server: Server, tmp_path: Path) -> str:
    return own_server.url.replace("redis://", f"redis://sweeperd:{PASSWORD}@")


def grant(client: redis.Redis, env: dict[str, str], role: str = "all", *, commands: bool = False) -> None:
    settings = load(Path(env["SWEEPERD_CONFIG"]), env)
    (user,) = acl_users(settings, settings.all_shards, role, commands=commands)  # type: ignore[arg-type]
    client.execute_command("ACL", "SETUSER", "sweeperd", "reset", f">{PASSWORD}", *user.rules)
    client.acl_log_reset()


def test_the_shipped_file_is_what_the_command_prints(cli: Cli) -> None:
    printed = cli("acl", environment("redis://127.0.0.1:6379/0"), "--file")
    assert (printed.exit_code, printed.stderr) == (0, "redis://127.0.0.1:6379: default\n")
    assert printed.stdout == ACL.read_text()


def test_the_documents_name_what_the_command_adds() -> None:
    daemons = set(rules())
    operating = (ROOT / "docs" / "reference" / "rights.md").read_text()
    (named,) = re.findall(r"\| also `(\+[^`]*)` \|", operating)
    assert set(named.split()) == set(rules(commands=True)) - daemons
    (named,) = re.findall(r"leaves out `(\+[^`]*)`", operating)
    without = daemons - set(rules(reconcile={"interval": ""}))
    assert set(named.split()) == {rule for rule in without if rule.startswith("+")}


def test_every_command_works_under_the_rights(own_server: Server, limited_url: str, cli: Cli, tmp_path: Path) -> None:
    with redis.Redis.from_url(own_server.url, protocol=2) as client, Receiver() as receiver:
        env = environment_of(tmp_path, limited_url, receiver.url)
        grant(client, env)
        fill(client)
        with daemon(env, tmp_path) as running:
            eventually(lambda: freed(running, client))
            eventually(lambda: decided(running))
            eventually(lambda: len(receiver.requests) >= 3)
            eventually(lambda: json.loads(running.get("/status.json")[1])["shards"][0]["status"])
            assert running.metric("sweeperd_sweeps_total", result="error") == 0
            assert running.terminate() == 0
        reserve(client, ["three"])
        done = once(env, "--delivery-limit", "10s")
        assert (done.code, done.report["expired"]) == (0, 1), done.errors
        told = cli("--once", env, "--dry-run", "--json")
        assert (told.exit_code, json.loads(told.stdout)["errors"]) == (0, 0), told.stderr
        assert refusals(client) == []
        grant(client, env, commands=True)
        checked = json.loads(cli("check", env, "--cycles", "--sample", "10", "--json").stdout)["checks"]
        assert [each for each in checked if "may not" in each["says"] and "CONFIG" not in each["says"]] == []
        assert {each[1] for each in refusals(client)} <= {b"config", b"config|get"}
        client.acl_log_reset()
        client.hset("seats:hold:1", "qty", 3)  # as much as `free` holds by now
        for arguments in (
            ["status"],
            ["show", "one"],
            ["expired"],
            ["quarantine", "list"],
            ["quarantine", "dismiss", "odd", "--yes"],
            ["quarantine", "list", "--kind", "seat-hold"],
            ["quarantine", "requeue", "1", "--kind", "seat-hold", "--yes"],
            ["show", "1", "--kind", "seat-hold"],
            ["expired", "--kind", "seat-hold"],
            ["reconcile"],
            ["reconcile", "--repair-budget", f"{SCOPES[0]}:TOKENS", "--yes"],
            ["reconcile", "--kind", "seat-hold"],
            ["reconcile", "--kind", "session", "--repair", "--yes"],
            ["index", "--kind", "session", "--yes"],
            ["endpoints", "list"],
            ["endpoints", "pause", "billing", "--yes"],
            ["endpoints", "resume", "billing", "--yes"],
            ["dead-letters", "list"],
            ["actions"],
        ):
            result = cli(arguments[0], env, *arguments[1:])
            assert result.exit_code == 0, (arguments, result.output)
            assert refusals(client) == [], arguments


def test_no_signing_secret_of_cycles_is_open(own_server: Server, limited_url: str, tmp_path: Path) -> None:
    """Neither to read nor to write; and where the server can tell both apart, a subscription may only be read."""
    with (
        redis.Redis.from_url(own_server.url, protocol=2) as client,
        redis.Redis.from_url(limited_url, protocol=2) as user,
    ):
        can_tell = not client.info("server")["redis_version"].startswith("6.")
        settings = load(None, {"SWEEPERD_CYCLES__ENABLED": "true"})
        (rights,) = acl_users(settings, settings.all_shards, "all", commands=True, read_only=can_tell)
        client.execute_command("ACL", "SETUSER", "sweeperd", "reset", f">{PASSWORD}", *rights.rules)
        client.mset({"webhook:whsub_a": "{}", "webhook:secret:whsub_a": "whsec_", "webhook:secret:a": "whsec_"})
        assert user.get("webhook:whsub_a") == b"{}"
        for key in ("webhook:secret:whsub_a", "webhook:secret:a"):
            with pytest.raises(redis.ResponseError, match=r"(?i)noperm|no permissions"):
                user.get(key)
            with pytest.raises(redis.ResponseError, match=r"(?i)noperm|no permissions"):
                user.set(key, "mine")
        if can_tell:
            with pytest.raises(redis.ResponseError, match=r"(?i)noperm|no permissions"):
                user.set("webhook:whsub_a", "mine")
        # The relay reads it as before.
        found = Script("delivery/subscriptions").run(user, Call([b"webhooks:acme"], ["webhook:"]))
        assert found == [[], []]
        client.sadd("webhooks:acme", "whsub_a")
        found = Script("delivery/subscriptions").run(user, Call([b"webhooks:acme"], ["webhook:"]))
        assert found == [[b"whsub_a"], [b"whsub_a", b"{}"]]


@pytest.mark.newest_redis
@pytest.mark.parametrize("role", ["sweep", "deliver"])
def test_a_role_works_under_its_rights(own_server: Server, limited_url: str, tmp_path: Path, role: str) -> None:
    with redis.Redis.from_url(own_server.url, protocol=2) as client, Receiver() as receiver:
        env = environment_of(tmp_path, limited_url, receiver.url, role=role)
        grant(client, env, role)
        fill(client)
        with daemon(env, tmp_path) as running:
            if role == "sweep":
                eventually(lambda: freed(running, client))
                eventually(lambda: decided(running))
            else:
                eventually(lambda: client.exists("sweeperd:events"))
                eventually(lambda: {b"billing"} & {each["name"] for each in client.xinfo_groups("sweeperd:events")})
                client.xadd("sweeperd:events", {"type": "seat-hold.expired", "kind": "seat-hold", "id": "h"})
                eventually(lambda: receiver.requests)
            client.xgroup_destroy("sweeperd:events", "billing")
            eventually(lambda: running.metric("sweeperd_groups_remade_total", shard="default") == 1)
            eventually(lambda: json.loads(running.get("/status.json")[1])["shards"][0]["status"])
            assert running.terminate() == 0
        assert refusals(client) == []


def test_the_ledger_works_under_its_rights(own_server: Server, cli: Cli) -> None:
    url = own_server.url.replace("redis://", f"redis://ledger:{PASSWORD}@")
    printed = cli("acl", environment(own_server.url), "--ledger").stdout.split()
    assert printed[:3] == ["ACL", "SETUSER", "ledger"]
    with redis.Redis.from_url(own_server.url, protocol=2) as client, Ledger.from_url(url) as ledger:
        client.execute_command(*printed, f">{PASSWORD}")
        client.acl_log_reset()
        client.set("tenant:acme", '{"status":"ACTIVE"}')
        ledger.open_budget("acme", "TOKENS", 1000)
        held = [
            ledger.reserve("acme", ["acme"], "TOKENS", 10, ttl=MINUTE, idempotency_key=str(number)).reservation_id
            for number in range(2)
        ]
        for _ in range(2):
            ledger.extend("acme", held[0], 2000 * MINUTE, idempotency_key="a")
        ledger.commit("acme", held[0], 7, idempotency_key="b")
        ledger.release("acme", held[1], idempotency_key="c")
        ledger.event("acme", ["acme"], "TOKENS", 1, idempotency_key="d")
        with pytest.raises(NoBudget):
            ledger.event("acme", ["nobody"], "TOKENS", 1, idempotency_key="e")
        assert ledger.budget("acme", "TOKENS").remaining == 992
        assert refusals(client) == []
        # None of it is too much for it: each is used by a script of the ledger, or to run one.
        texts = "".join(source(name) for name in script_names() if name.startswith("ledger/")).lower()
        used = {rule[1:].partition("|")[0] for rule in printed[3:] if rule.startswith("+")} - {
            "client",
            "eval",
            "evalsha",
        }
        assert {name for name in used if f"'{name}'" not in texts} == set()

        checks = {
            each["check"]: each
            for each in json.loads(cli("check", environment(url), "--ledger", "--json").stdout)["checks"]
        }
        assert [checks[name]["level"] for name in ("reachable", "writable", "rights", "scripts")] == ["ok"] * 4
        client.execute_command("ACL", "SETUSER", "ledger", "-set", "-zadd")
        failed = cli("check", environment(url), "--ledger", "--json")
        checks = {each["check"]: each for each in json.loads(failed.stdout)["checks"]}
        assert failed.exit_code == 1
        assert checks["rights"]["level"] == "failure"
        assert "ZADD reservation:ttl, SET idem:*" in checks["rights"]["says"]
        assert "`sweeperd acl --ledger`" in checks["rights"]["advice"]


def test_the_ledger_works_beside_a_cycles_service(own_server: Server, cli: Cli) -> None:
    url = own_server.url.replace("redis://", f"redis://ledger:{PASSWORD}@")
    printed = cli("acl", environment(own_server.url), "--ledger", "--cycles").stdout.split()
    without = set(cli("acl", environment(own_server.url), "--ledger").stdout.split())
    added = ["~reservation:idx:*:created_at_ms", "~reservation:idxmeta:*:created_at_ms", "+type", "+zscore"]
    assert set(printed) - without == set(added)
    with (
        redis.Redis.from_url(own_server.url, protocol=2) as client,
        Ledger.from_url(own_server.url) as admin,
        Ledger.from_url(url, cycles=True) as ledger,
    ):
        client.execute_command(*printed, f">{PASSWORD}")
        client.acl_log_reset()
        admin.open_budget("tenant:acme", "TOKENS", 1000)
        metadata = "reservation:idxmeta:acme:created_at_ms"
        for number, count in enumerate(["0", "none"]):
            client.hset(metadata, mapping={"state": "READY", "expected_count": count})
            ledger.reserve(
                "acme",
                ["tenant:acme"],
                "TOKENS",
                10,
                ttl=MINUTE,
                action={"kind": "llm", "name": "gpt"},
                idempotency_key=str(number),
            )
        assert client.zcard("reservation:idx:acme:created_at_ms") == 2
        assert not client.exists(metadata)
        assert refusals(client) == []
        checked = cli("check", environment(url), "--ledger", "--cycles", "--json")
        assert {each["check"]: each["level"] for each in json.loads(checked.stdout)["checks"]}["rights"] == "ok"
        client.execute_command("ACL", "SETUSER", "ledger", "-zscore")
        checked = cli("check", environment(url), "--ledger", "--cycles", "--json")
        rights = {each["check"]: each for each in json.loads(checked.stdout)["checks"]}["rights"]
        assert "ZSCORE reservation:idx:*:created_at_ms" in rights["says"]
        assert "`sweeperd acl --ledger --cycles`" in rights["advice"]


@pytest.mark.newest_redis
def test_tenants_that_the_ledger_may_only_read(own_server: Server, cli: Cli) -> None:
    """Redis asks for the whole right to each key that a script is given, whether the script writes it or not."""
    if own_server.binary.numbers < (7, 0):
        pytest.skip("Redis 6.2 knows no right to read alone")
    url = own_server.url.replace("redis://", f"redis://ledger:{PASSWORD}@")
    printed = cli("acl", environment(own_server.url), "--ledger").stdout.split()
    with redis.Redis.from_url(own_server.url, protocol=2) as client, Ledger.from_url(url) as ledger:
        client.execute_command(*printed, f">{PASSWORD}")
        ledger.open_budget("acme", "TOKENS", 1000)
        rules = [f"%R{rule}" if rule == "~tenant:*" else rule for rule in printed]
        client.execute_command(*rules)
        with pytest.raises(MissingRight):
            ledger.event("acme", ["acme"], "TOKENS", 1, idempotency_key="a")
        assert "EVAL tenant:*" in cli("check", environment(url), "--ledger").stdout


def test_the_ledger_has_its_own_user(cli: Cli) -> None:
    own = set(cli("acl", environment("redis://localhost"), "--ledger", "--user", "books").stdout.split())
    assert "books" in own
    assert [rule for rule in own if "sweeperd" in rule] == ["~sweeperd:events"]
    assert not own & {"+del", "+scan", "+xack", "+xtrim"}


def test_shards_on_one_redis_share_a_user(cli: Cli) -> None:
    env = environment(
        shards=[
            {"name": "a", "url": "redis://one:1/0", "prefix": "a [x]'\":"},
            {"name": "b", "url": "redis://one:1/1", "prefix": "b:"},
            {"name": "c", "url": "redis+cluster://two:1,three:1", "prefix": "{c}:"},
        ]
    )
    users = json.loads(cli("acl", env, "--json", "--user", "ops").stdout)["users"]
    assert [(user["address"], user["shards"]) for user in users] == [
        ("redis://one:1", ["a", "b"]),
        ("redis+cluster://two:1,three:1", ["c"]),
    ]
    first, second = (user["rules"] for user in users)
    # A rule can hold no space and no quote, and brackets are special in a pattern.
    assert {r"~a?\[x\]??:reservation:ttl", "~b:reservation:ttl", "+select"} <= set(first)
    assert {"~{c}:budget:*", "+asking", "+cluster|slots"} <= set(second)
    assert users[0]["line"].startswith("ACL SETUSER ops on resetkeys resetchannels -@all ~")
    only = cli("acl", env, "--shard", "c").stdout
    assert only.count("\n") == 1
    assert "~b:" not in only


def test_a_walk_that_is_turned_off_needs_no_names_of_keys(cli: Cli) -> None:
    env = environment("redis://localhost", reconcile__interval="")
    assert not re.search(r"\+(scan|zscan|dbsize)\b", cli("acl", env).stdout)
    assert "+scan" in cli("acl", env, "--commands").stdout


def test_reservations_that_are_not_swept_need_no_rights(cli: Cli, tmp_path: Path) -> None:
    env = environment_of(tmp_path, "redis://localhost", "http://localhost")
    env |= {"SWEEPERD_RESERVATIONS__ENABLED": "false", "SWEEPERD_CYCLES__ENABLED": "false"}
    printed = cli("acl", env).stdout.split()
    assert not [rule for rule in printed if "reservation" in rule or "budget" in rule]
    assert {"~seats:hold:*", "~seats:ttl", "~sweeperd:quarantine:seat-hold", "&seats.*", "+publish"} <= set(printed)
