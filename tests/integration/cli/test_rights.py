"""The rights that these commands need, as the documents name them: with them everything works, and none is too much."""

import json

import pytest
import redis

from sweeperd.outbox import Outbox
from sweeperd.store import Shard
from tests.integration.cli.conftest import Run, expire, give_up
from tests.support.acl import rules
from tests.support.harness import reserve
from tests.support.receiver import Receiver
from tests.support.servers import Server

pytestmark = pytest.mark.every_redis

RIGHTS = (
    "~sweeperd:events ~sweeperd:dead-letters ~sweeperd:endpoints ~sweeperd:groups ~sweeperd:circuits ~sweeperd:actions "
    "~sweeperd:action-counts ~sweeperd:attempts:* ~sweeperd:filters "
    "+client|setname +select +time +eval +evalsha +hget +hgetall +hset +hdel +xlen "
    "+xtrim +xrange +xrevrange +xadd +xdel +xpending +xack +xclaim +xreadgroup +xgroup|create "
    "+xgroup|destroy +xgroup|delconsumer +xinfo|stream +xinfo|groups"
)
#: Granted for a database number in the URL.
SPARE = {"select"}


def test_the_rights_suffice_and_none_is_too_much(invoke: Run, own_shard: Shard, own_server: Server) -> None:
    client = own_shard.client
    letters = [letter.decode() for letter in give_up(own_shard, ["a", "b", "c"])]
    client.script_flush()
    client.execute_command("ACL", "SETUSER", "operator", "reset", "on", ">only-for-tests", "-@all", *RIGHTS.split())
    client.acl_log_reset()
    client.config_resetstat()
    outbox = Outbox(own_shard, "test")
    reserve(client, ["parked", "untaken"])
    expire(client, ["parked", "untaken"])
    outbox.nack("billing", outbox.read("billing", 1))
    url = own_server.url.replace("redis://", "redis://operator:only-for-tests@")
    with Receiver() as receiver:
        for arguments in (
            ["expired"],
            ["dead-letters", "list"],
            ["dead-letters", "drop", letters[0], "--yes"],
            ["dead-letters", "replay", letters[1], "--yes"],
            ["dead-letters", "replay", "--all", "--yes"],
            ["endpoints", "list"],
            ["endpoints", "attempts", "billing"],
            ["endpoints", "pause", "billing", "--yes"],
            ["endpoints", "resume", "billing", "--yes"],
            ["endpoints", "test", "billing"],
            ["endpoints", "drop", "billing", "--before", "1ms", "--yes"],
            ["replay", "--endpoint", "billing", "--since", "1h", "--detach", "--yes"],
            ["replay", "--endpoint", "billing", "--cancel", "--yes"],
        ):
            result = invoke(*arguments, url=url, endpoints=[{"name": "billing", "url": receiver.url}])
            assert (result.exit_code, "permissions" in result.stderr) == (0, False), (arguments, result.stderr)
    used = {name.removeprefix("cmdstat_").split("|")[0] for name in client.info("commandstats")}
    granted = {rule[1:].split("|")[0] for rule in RIGHTS.split() if rule.startswith("+")}
    assert granted - used <= SPARE | {"client"}
    assert client.xlen("sweeperd:dead-letters") == 0


@pytest.mark.parametrize("command", ["xack", "xgroup", "hget"])
def test_once_tells_a_missing_right_from_an_outage(
    invoke: Run, server: Server, client: redis.Redis, command: str
) -> None:
    """Whether a client's command or a script's is refused."""
    assert invoke("--once", url=server.url).exit_code == 0
    client.delete("sweeperd:events")
    client.execute_command("ACL", "SETUSER", "sweeperd", "reset", "on", ">only-for-tests", *rules(), f"-{command}")
    try:
        url = server.url.replace("redis://", "redis://sweeperd:only-for-tests@")
        refused = invoke("--once", url=url, endpoints=[{"name": "billing", "url": "http://127.0.0.1:9/"}])
    finally:
        client.execute_command("ACL", "DELUSER", "sweeperd")
    assert refused.exit_code == 1
    said = json.loads(refused.stderr.splitlines()[-1])["message"]
    assert said.startswith("this user of redis lacks a right: ")
    assert "user_script" not in said


def test_show_needs_no_more_than_the_shipped_rights(invoke: Run, server: Server, client: redis.Redis) -> None:
    reserve(client, ["r1"])
    client.execute_command("ACL", "SETUSER", "sweeperd", "reset", "on", ">only-for-tests", *rules())
    url = server.url.replace("redis://", "redis://sweeperd:only-for-tests@")
    try:
        assert invoke("show", "r1", url=url).exit_code == 0
        client.execute_command("ACL", "SETUSER", "sweeperd", "-type")
        refused = invoke("show", "r1", url=url)
        assert refused.exit_code == 1
        assert refused.stderr.startswith("sweeperd: this user of redis lacks a right: ")
        assert "'type'" in refused.stderr
    finally:
        client.execute_command("ACL", "DELUSER", "sweeperd")
