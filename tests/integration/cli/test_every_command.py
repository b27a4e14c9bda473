"""What every command has in common: it names its Redis, tells what is down, and needs no more secrets than it uses."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import redis
from click.testing import CliRunner, Result

from sweeperd.cli import main
from sweeperd.store import Shard
from tests.integration.cli.conftest import give_up
from tests.support.address import drop_address
from tests.support.harness import reserve
from tests.support.kind_settings import SEAT_HOLD
from tests.support.receiver import Receiver
from tests.support.servers import Server, free_port

PASSWORD = "hush"
#: Commands that print a table.
TABLES = [
    ["check"],
    ["status"],
    ["show", "r1"],
    ["expired"],
    ["quarantine", "list"],
    ["dead-letters", "list"],
    ["endpoints", "list"],
    ["endpoints", "attempts", "billing"],
    ["ledger", "show", "tenant:acme:TOKENS"],
    ["reconcile"],
    ["actions"],
    ["uninstall", "--yes"],
]
#: Commands that print lines, or nothing that is a table.
LINES = [
    ["--once", "--dry-run"],
    ["quarantine", "requeue", "r1", "--yes"],
    ["quarantine", "dismiss", "r1", "--yes"],
    ["quarantine", "adopt", "r1", "--yes"],
    ["dead-letters", "replay", "--all", "--yes"],
    ["dead-letters", "drop", "--all", "--yes"],
    ["kinds", "accept", "seat-hold", "--yes"],
    ["index", "--kind", "seat-hold", "--yes"],
    ["endpoints", "pause", "billing", "--yes"],
    ["endpoints", "resume", "billing", "--yes"],
    ["endpoints", "skip", "billing", "evt_1", "--yes"],
    ["endpoints", "drop", "billing", "--before", "1h", "--yes"],
    ["endpoints", "test", "billing"],
    ["replay", "--endpoint", "billing", "--since", "1h", "--detach", "--yes"],
    ["reconcile", "--repair-budget", "tenant:acme:TOKENS", "--yes"],
]
#: Commands with their own output format.
OTHERS = [["expired", "--format", "csv"], ["expired", "--json"], ["expired", "--count"], ["endpoints", "keys"]]
#: Commands that use no Redis of the settings; and `acl`, which names each Redis with its line.
WITHOUT = {"acl", "config schema", "demo", "init", "listen", "prove", "endpoints keygen"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def environment(
    shard: Shard, server: Server, receiver: Receiver, bare_environment: None, log_restored: None
) -> Iterator[dict[str, str]]:
    """Of a Redis with a password, a dead letter and an expiry."""
    give_up(shard, ["dead"])
    reserve(shard.client, ["r1"])
    shard.client.execute_command("ACL", "SETUSER", "someone", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    yield {
        "SWEEPERD_CONFIG": "/dev/null",
        "SWEEPERD_REDIS__URL": server.url.replace("redis://", f"redis://someone:{PASSWORD}@"),
        "SWEEPERD_WEBHOOKS__ENDPOINTS": json.dumps([{"name": "billing", "url": receiver.url}]),
        "SWEEPERD_KINDS": json.dumps([tomllib.loads(SEAT_HOLD)["kinds"][0]]),
    }
    shard.client.execute_command("ACL", "DELUSER", "someone")


def run(environment: Mapping[str, str], *arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments, env=dict(environment))
    assert PASSWORD not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_tables_name_it_in_their_first_line_and_all_else_on_standard_error(
    environment: dict[str, str], server: Server
) -> None:
    for arguments in TABLES:
        result = run(environment, *arguments)
        assert result.stdout.splitlines()[0] == server.url, arguments
        assert result.output.count(f"{server.url}\n") == 1, arguments
    nothing_found = [["show", "unknown"], ["ledger", "show", "unknown:TOKENS"]]
    for arguments in (*LINES, *OTHERS, *nothing_found):
        result = run(environment, *arguments)
        assert f"sweeperd: on {server.url}" in result.stderr.splitlines(), arguments
        assert server.url not in result.stdout, arguments


def test_a_json_document_names_it(environment: dict[str, str], server: Server) -> None:
    for arguments in (*TABLES, *LINES):
        if arguments != ["expired"]:  # JSON lines
            result = run(environment, *arguments, "--json")
            assert json.loads(result.stdout)["address"] == server.url, arguments


def test_each_command_is_among_these() -> None:
    def leaves(command: click.Command, name: str) -> Iterator[str]:
        if not isinstance(command, click.Group):
            yield name
            return
        context = click.Context(command)
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from leaves(below, f"{name} {each}".strip())

    tried = [" ".join(arguments) for arguments in (*TABLES, *LINES, *OTHERS)]
    for name in set(leaves(main, "")) - WITHOUT:
        assert any(f"{line} ".startswith(f"{name} ") for line in tried), name


def test_acl_names_it_with_each_line(environment: dict[str, str], server: Server) -> None:
    """Without the database: users are those of the whole server."""
    assert run(environment, "acl").stderr == f"{server.url.removesuffix('/0')}: default\n"


# ---- Redis that is down, or holds something else

#: Commands that report a Redis that is down in their own way, or need none.
OTHERWISE = (["check"], ["status"], ["endpoints", "keys"])


def test_redis_that_is_down_is_told(environment: dict[str, str]) -> None:
    url = f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0"
    for arguments in (*TABLES, *LINES, *OTHERS, ["dead-letters", "list", "--endpoint", "x"]):
        if arguments not in OTHERWISE:
            result = run(environment | {"SWEEPERD_REDIS__URL": url}, *arguments)
            told = [line for line in result.stderr.splitlines() if "redis is not available" in line]
            pattern = r"sweeperd: redis is not available: redis://127\.0\.0\.1:\d+/0: .+"
            assert (result.exit_code, bool(re.fullmatch(pattern, told[0]))) == (1, True), arguments


def test_nothing_is_said_of_a_shard_that_is_down(environment: dict[str, str]) -> None:
    down = environment | {"SWEEPERD_REDIS__URL": f"redis://127.0.0.1:{free_port()}/0"}
    said = run(down, "dead-letters", "replay", "--all", "--yes")
    assert (said.exit_code, said.stdout) == (1, "")


#: Commands, and a field of the document that the shard which lives fills.
FIELDS = {
    "actions": "actions",
    "dead-letters list": "dead_letters",
    "dead-letters drop --all --yes": "dropped",
    "endpoints list": "endpoints",
    "endpoints pause billing --yes": "shards",
    "endpoints resume billing --yes": "shards",
    "expired --count": "count",
    "kinds accept seat-hold --yes": "shards",
    "ledger show tenant:acme:TOKENS": "shards",
    "quarantine list": "shards",
    "quarantine dismiss --all --yes": "dismissed",
    "reconcile --repair --yes": "found",
    "show r1": "shards",
}


def test_a_dead_shard_hides_no_other(environment: dict[str, str], client: redis.Redis, server: Server) -> None:
    client.zadd("reservation:ttl", {"orphan": 9e15})
    client.zadd("sweeperd:quarantine", {"aside": 1})
    run(environment, "endpoints", "pause", "billing", "--yes")
    dead = f"redis://:{PASSWORD}@127.0.0.1:{free_port()}"
    shards = json.dumps([{"name": "dead", "url": dead}, {"name": "live", "url": server.url}])
    del environment["SWEEPERD_REDIS__URL"]
    for line, field in FIELDS.items():
        result = drop_address(run(environment | {"SWEEPERD_SHARDS": shards}, *line.split(), "--json"))
        document = json.loads(result.stdout)
        assert (result.exit_code, [each["shard"] for each in document["down"]]) == (1, ["dead"]), line
        assert document[field], line
        assert {each.get("shard") for each in document.get("shards", [])} <= {"live"}, line
        assert result.stderr.startswith("sweeperd: shard dead: redis is not available: "), line


def test_a_key_of_another_type_is_one_line(environment: dict[str, str], client: redis.Redis) -> None:
    for line, key in (
        ("dead-letters list", "sweeperd:dead-letters"),
        ("expired", "sweeperd:events"),
        ("quarantine list", "sweeperd:quarantine"),
        ("quarantine requeue --all --yes", "sweeperd:quarantine"),
        ("reconcile", "reservation:ttl"),
    ):
        client.delete(key)
        client.set(key, "text")
        result = drop_address(run(environment, *line.split()))
        assert (result.exit_code, result.stderr.count("\n"), "WRONGTYPE" in result.stderr) == (1, 1, True), line


def test_several_shards_and_a_prefix(server: Server, bare_environment: None, log_restored: None) -> None:
    dead = f"redis://127.0.0.1:{free_port()}/0"
    shards = [{"name": "eu", "url": server.url, "prefix": "{a}:"}, {"name": "us", "url": dead}]
    environment = {"SWEEPERD_CONFIG": "/dev/null", "SWEEPERD_SHARDS": json.dumps(shards)}
    lines = run(environment, "status").stdout.splitlines()
    assert lines[0] == f"eu {server.url} prefix {{a}}:, us {dead}"
    assert json.loads(run(environment, "status", "--json").stdout)["address"] == f"{server.url}, {dead}"
    assert run(environment, "status", "--shard", "eu").stdout.splitlines()[0] == f"{server.url} prefix {{a}}:"


def test_once_names_it_in_the_log_and_prints_the_keys_of_the_contract(
    server: Server, client: redis.Redis, bare_environment: None, log_restored: None
) -> None:
    environment = {"SWEEPERD_CONFIG": "/dev/null", "SWEEPERD_REDIS__URL": server.url}
    result = run(environment, "--log-format", "json", "--once", "--json")
    assert "address" not in json.loads(result.stdout)
    assert json.loads(result.stderr.splitlines()[-1])["shards"] == {"default": server.url}


# ---- secrets that cannot be read

#: What does not sign.
WITHOUT_SECRETS = [
    ["status"],
    ["show", "r1"],
    ["expired"],
    ["quarantine", "list"],
    ["dead-letters", "replay", "--all", "--yes"],
    ["endpoints", "list"],
    ["kinds", "accept", "seat-hold", "--yes"],
    ["endpoints", "pause", "billing", "--yes"],
    ["reconcile"],
    ["actions"],
]
#: What signs, or prints public keys.
WITH_SECRETS: list[list[str]] = [
    [],
    ["--once"],
    ["--once", "--json"],
    ["endpoints", "test", "billing"],
    ["endpoints", "keys"],
]


@pytest.fixture
def unreadable(environment: dict[str, str], receiver: Receiver, tmp_path: Path) -> dict[str, str]:
    """The environment where neither the file nor the variable of a secret is there."""
    path = tmp_path / "config.toml"
    secrets = f'secrets = ["file:{tmp_path}/gone", "env:GONE"]'
    path.write_text(f'[[webhooks.endpoints]]\nname = "billing"\nurl = "{receiver.url}"\n{secrets}\n')
    del environment["SWEEPERD_WEBHOOKS__ENDPOINTS"]
    return environment | {"SWEEPERD_CONFIG": str(path)}


def gone(environment: dict[str, str]) -> Path:
    return Path(environment["SWEEPERD_CONFIG"]).with_name("gone")


def test_a_command_that_needs_no_secret_works_without_them(unreadable: dict[str, str]) -> None:
    for arguments in WITHOUT_SECRETS:
        result = run(unreadable, *arguments)
        assert (result.exit_code, "gone" in result.output) == (0, False), result.output


def test_a_command_that_needs_secrets_names_file_and_key(unreadable: dict[str, Any]) -> None:
    key = f"{unreadable['SWEEPERD_CONFIG']}: webhooks.endpoints[0].secrets"
    for arguments in WITH_SECRETS:
        result = run(unreadable, *arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        first, second = result.stderr.splitlines()
        assert all(name in first for name in (f"{key}[0]", str(gone(unreadable)))), first
        assert all(name in second for name in (f"{key}[1]", "GONE")), second


def test_check_reports_them_and_checks_the_rest(unreadable: dict[str, str]) -> None:
    result = run(unreadable, "check", "--json")
    assert result.exit_code == 1
    checks = json.loads(result.stdout)["checks"]
    failed = [each["says"] for each in checks if each["check"] == "secrets"]
    assert [str(gone(unreadable)) in failed[0], "GONE" in failed[1], len(failed)] == [True, True, 2]
    assert {"reachable", "resolvable"} <= {each["check"] for each in checks if each["level"] == "ok"}


def test_a_credential_of_the_service_is_needed_by_the_service_alone(
    unreadable: dict[str, str], receiver: Receiver
) -> None:
    config = Path(unreadable["SWEEPERD_CONFIG"])
    config.write_text(
        f'[[webhooks.endpoints]]\nname = "billing"\nurl = "{receiver.url}"\nsecrets = ["credential:billing"]\n'
    )
    assert run(unreadable, "status").exit_code == 0
    result = run(unreadable, "check", "--json")
    (found,) = [each for each in json.loads(result.stdout)["checks"] if each["check"] == "secrets"]
    assert (result.exit_code, found["level"]) == (0, "warning")
    assert all(text in found["says"] for text in ("credential:billing", "$CREDENTIALS_DIRECTORY"))
    daemon = run(unreadable)
    assert (daemon.exit_code, "credential:billing" in daemon.stderr) == (2, True)
