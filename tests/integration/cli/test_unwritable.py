"""Outputs that take nothing more, or that there are none of."""

import subprocess
import tempfile
from pathlib import Path

import pytest
import redis

from sweeperd.ops.actions import read_actions
from sweeperd.store import Shard
from tests.integration.cli.conftest import give_up
from tests.support.harness import SCOPES, command, environment, reserve, started
from tests.support.servers import Server

COMMANDS = ["--version", "--once --json", "acl", "actions --json", "check", "expired --format csv", "status"]


def run(server: Server, arguments: str, *, buffered: bool = True) -> tuple[int, str]:
    """With a standard output that is a full disk. Returns the exit code and what stands on standard error."""
    env = environment(server.url) | ({} if buffered else {"PYTHONUNBUFFERED": "1"})
    with Path("/dev/full").open("w") as disk, tempfile.TemporaryFile("w+") as told:
        code = started(arguments.split(), env, [0, disk.fileno(), told.fileno()]).wait(60)
        told.seek(0)
        return code, told.read()


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_full_disk_is_one_line(server: Server, client: redis.Redis, arguments: str) -> None:
    reserve(client, ["late"])
    code, told = run(server, arguments, buffered=len(arguments) % 2 == 0)
    assert (code, "No space left" in told.splitlines()[-1]) == (1, True)
    assert "Traceback" not in told
    assert "Exception ignored" not in told


def test_what_was_done_is_recorded_nevertheless(server: Server, client: redis.Redis, shard: Shard) -> None:
    give_up(shard, ["l1", "l2"])
    reserve(client, ["late"], overdue_by=-50_000)
    client.hincrby(f"budget:{SCOPES[0]}:TOKENS", "reserved", 7)
    assert run(server, "dead-letters drop --all --yes")[0] == 1
    assert run(server, f"reconcile --repair-budget {SCOPES[0]}:TOKENS --yes --json")[0] == 1
    assert client.xlen("sweeperd:dead-letters") == 0
    assert client.hgetall("sweeperd:action-counts") == {
        b"drop": b"1",
        b"drop:changed": b"2",
        b"repair-budget": b"1",
        b"repair-budget:changed": b"1",
    }
    assert [action.count for _, action in read_actions(shard)] == [2, 1]


def test_no_letter_is_deleted_whose_copy_was_not_printed(server: Server, client: redis.Redis, shard: Shard) -> None:
    give_up(shard, ["l1", "l2"])
    code, told = run(server, "dead-letters drop --all --yes --json")
    assert (code, "No space left" in told) == (1, True)
    assert client.xlen("sweeperd:dead-letters") == 2
    assert [(action.count, action.finished) for _, action in read_actions(shard)] == [(0, True)]


def test_without_standard_streams_it_works(server: Server) -> None:
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command("status")]
    assert subprocess.run(closed, env=environment(server.url), timeout=60, check=False).returncode == 0


def test_no_letter_is_dropped_where_a_copy_has_no_output(server: Server, client: redis.Redis, shard: Shard) -> None:
    give_up(shard, ["l1"])

    def drop(streams: str, *options: str) -> tuple[int, bytes]:
        arguments = ["dead-letters", "drop", "--all", "--yes", *options]
        line = ["sh", "-c", f'exec "$@" {streams}', "sh", *command(*arguments)]
        done = subprocess.run(line, env=environment(server.url), stderr=subprocess.PIPE, timeout=60, check=False)
        return done.returncode, done.stderr

    for streams in (">&-", "<&- >&-"):
        assert drop(streams, "--json") == (1, b"sweeperd: standard output is closed, so no copy can be kept\n")
    assert client.xlen("sweeperd:dead-letters") == 1
    assert drop(">/dev/null", "--json") == (0, b""), "no copy is wanted"
    give_up(shard, ["l2"])
    assert drop(">&-")[0] == 0, "no copy is asked for"
    assert client.xlen("sweeperd:dead-letters") == 0
