"""deploy/redis/sweeperd.acl: all that sweeperd does works under it, nothing in it is too much, all else is refused."""

import json
import re
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.acl import ACL, PASSWORD, limited, rules
from tests.support.harness import Daemon, budget, daemon, environment, eventually, once, reserve, run
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Binary, Server

pytestmark = pytest.mark.every_redis

#: How Redis 6.2 and 7 say no, to a client and to a script; DEBUG is refused to all before that.
REFUSED = r"(?i)no permissions|can't (run this command|access at least one)|ACL failure|DEBUG command not allowed"


def page(running: Daemon) -> tuple[str, int]:
    """What it says is wrong, and how many it shows in quarantine."""
    (shard,) = json.loads(running.get("/status.json")[1])["shards"]
    return shard["error"], shard["status"]["quarantined"]


def granted() -> set[str]:
    return {rule[1:].split("|")[0] for rule in rules() if rule.startswith("+")}


def used(client: redis.Redis) -> set[str]:
    """Every command that the server has run since its statistics were reset, those in scripts too."""
    names = client.info("commandstats")
    return {name.removeprefix("cmdstat_").split("|")[0] for name in names}


def test_redis_takes_it_as_its_acl_file(redis_binary: Binary, tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    path.write_text("user default on nopass ~* &* +@all\n" + ACL.read_text())
    with Server(redis_binary, ["--aclfile", str(path)]) as server, redis.Redis.from_url(server.url) as client:
        assert client.acl_users() == ["default", "sweeperd"]
        # Until somebody has set a password, every login is refused.
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port, username="sweeperd", password="", retry=Retry(NoBackoff(), 0)).ping()
        client.execute_command("ACL", "SETUSER", "sweeperd", f">{PASSWORD}")
        client.execute_command("ACL", "SAVE")
        assert PASSWORD not in path.read_text()
        assert once(environment(server.url.replace("redis://", f"redis://sweeperd:{PASSWORD}@"))).code == 0


def test_all_that_it_does_works_and_nothing_is_granted_besides(own_server: Server, tmp_path: Path) -> None:
    prefix = "{tenant-a}:"
    with connected(own_server) as client, limited(own_server, client, prefix) as url:
        with (
            Receiver() as good,
            Receiver(lambda *_: Answer(422)) as batches,
            Receiver(lambda *_: Answer(500)) as bad,
            Receiver(lambda *_: Answer(410)) as gone,
        ):
            env = environment(
                url,
                keys__prefix=prefix,
                sweep__interval="100ms",
                webhooks__attempts=1,
                webhooks__redelivery_initial="100ms",
                webhooks__redelivery_max="100ms",
                webhooks__max_age="1s",
                events__retention="1s",
                reconcile__interval="1s",
                endpoints=[
                    {"name": "good", "url": good.url},
                    # Refused batches are halved until each event stands alone, and then each is parked alone.
                    {"name": "batches", "url": batches.url, "batch_size": 10},
                    {"name": "bad", "url": bad.url},
                    {"name": "gone", "url": gone.url},
                ],
            )
            commands: set[str] = set()
            client.config_resetstat()
            with daemon(env, tmp_path) as running:
                eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
                commands |= used(client)
                # Nothing is swept until the statistics have been reset.
                lease = f"{prefix}sweeperd:lease:sweep"
                eventually(lambda: client.set(lease, "the test's", nx=True))
                reserve(client, ["one", "two", "no budget"], prefix=prefix)
                client.hset(f"{prefix}reservation:res_odd", "state", "BROKEN")
                client.zadd(f"{prefix}reservation:ttl", {"odd": 1, "orphan": 2})
                client.delete(f"{prefix}budget:tenant:acme:TOKENS")
                # From here on the statistics hold the commands of sweeperd and of this test.
                client.script_flush()
                client.config_resetstat()
                client.unlink(lease)
                for outcome, count in (("quarantined", 1), ("not_found", 1), ("expired", 3)):
                    eventually(lambda o=outcome, c=count: running.metric("sweeperd_candidates_total", outcome=o) == c)
                good.wait_for(lambda requests: len(requests) == 3)
                # A replay: an operator with other rights begins it.
                operator = env | {"SWEEPERD_REDIS__URL": own_server.url}
                line = ["replay", "--endpoint", "good", "--since", "1m", "--yes"]
                assert run(line, operator, timeout=60).returncode == 0
                assert len(good.requests) == 6
                gone.wait_for(lambda requests: len(requests) >= 1)
                for name in ("bad", "batches"):
                    eventually(lambda n=name: running.metric("sweeperd_webhook_dead_letters_total", endpoint=n) == 3)
                eventually(lambda: running.logged("the endpoint is gone and is paused until it is resumed"))
                walks = running.metric("sweeperd_reconcile_runs_total", result="ok")
                eventually(lambda: running.metric("sweeperd_reconcile_runs_total", result="ok") > walks)
                assert running.metric("sweeperd_reconcile_runs_total", result="error") == 0
                # What the page shows is read with the same rights.
                eventually(lambda: page(running) == ("", 1))
                for path in (
                    "search.json?q=one",
                    "entry.json?id=one",
                    "expired.json",
                    "dead-letters.json",
                    "quarantine.json",
                ):
                    assert json.loads(running.get(f"/{path}")[1])["down"] == []
                assert running.metric("sweeperd_sweeps_total", result="error") == 0
                assert running.terminate() == 0
            assert client.xlen(f"{prefix}sweeperd:dead-letters") == 6
            assert client.hget(f"{prefix}sweeperd:endpoints", "gone")
            again = once(env)
            assert again.code in (0, 3), again.errors
            shown = run(["show", "one"], env, timeout=60)
            assert shown.returncode == 0, shown.stderr
            commands |= used(client)
        looks = {"acl", "config", "info", "script", "hello", "auth", "ping", "unlink"}
        assert commands - looks - {"client"} <= granted() | {"hgetall"}, "what is used is granted"
        assert granted() <= commands, "what is granted is used"


def connected(server: Server) -> redis.Redis:
    return redis.Redis.from_url(server.url, protocol=2)


def test_the_database_may_be_numbered(own_server: Server) -> None:
    numbered = {"url": "redis://localhost/3"}
    with connected(own_server) as client, limited(own_server, client, redis=numbered) as url:
        with redis.Redis.from_url(own_server.url.removesuffix("/0") + "/3", protocol=2) as third:
            reserve(third, ["one"])
            done = once(environment(url.removesuffix("/0") + "/3"))
            assert (done.code, done.report["expired"], budget(third)) == (0, 1, (0, 5))


#: What the user may not run: other commands, and its own commands on keys that are not its own.
FORBIDDEN = [
    "FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG GET maxmemory", "CONFIG SET maxmemory 1", "ACL LIST", "ACL WHOAMI",
    "SHUTDOWN NOSAVE", "DEBUG SLEEP 0", "MONITOR", "CLIENT LIST", "CLIENT KILL ID 1", "SCRIPT FLUSH", "ZSCAN other 0",
    "HGET sweeperd:other report", "REPLICAOF NO ONE", "PUBLISH channel text", "SUBSCRIBE channel",
    "UNLINK reservation:ttl", "RENAME sweeperd:events other", "EXPIRE reservation:res_one 1",
    "XDEL sweeperd:events 1-1", "XGROUP DESTROY other billing", "XGROUP SETID other billing 0", "GET other",
    "SET other text", "DEL other", "HGET user:1 password", "HGETALL user:1", "HDEL user:1 password",
    "HMGET idem:reserve:4:acme:job reply", "SET sweeperd:lease:other token", "ZADD reservation:other 1 a",
    "XADD sweeperd:other * a b", "EVALSHA 0000000000000000000000000000000000000000 1 other",
    "EVAL redis.call('FLUSHALL') 0", "EVAL return(redis.call('GET','other')) 0",
    "EVAL return(redis.call('KEYS','*')) 0",
]  # fmt: skip


def test_all_else_is_refused(server: Server, client: redis.Redis) -> None:
    client.set("other", "secret")
    client.execute_command("ACL", "SETUSER", "sweeperd", "reset", f">{PASSWORD}", *rules())
    try:
        with redis.Redis(port=server.port, username="sweeperd", password=PASSWORD) as user:
            assert [command for command in FORBIDDEN if not refused(user, command)] == []
        assert client.get("other") == b"secret"
    finally:
        client.acl_deluser("sweeperd")


def refused(user: redis.Redis, command: str) -> bool:
    try:
        user.execute_command(*command.split())
    except redis.ResponseError as error:
        return re.search(REFUSED, str(error)) is not None
    return False


def test_it_is_one_line_of_plain_rules() -> None:
    """Redis takes no comment in such a file, and a rule such as `+@write` would grant unknown commands."""
    assert len(ACL.read_text().splitlines()) == 1
    assert all(
        re.fullmatch(r"on|resetkeys|resetchannels|-@all|~[\w:*-]+|\+[a-z]+(\|[a-z]+)?", rule) for rule in rules()
    )
