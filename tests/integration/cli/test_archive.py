"""`expired --chain`, `--count`, `--limit`, and `verify-archive` on what they wrote."""

import json
from pathlib import Path

import pytest
import redis

from sweeperd.ops.expired import PREVIOUS, START
from tests.integration.cli.conftest import HOSTILE, Run
from tests.integration.cli.test_expired import AT, T, add, ids

SPAN = ["--since", AT + "00Z", "--until", AT + "59Z"]


def head_of(stderr: str) -> str:
    (line,) = [line for line in stderr.splitlines() if "the head of these" in line]
    return line.rpartition(" ")[2]


def test_an_archive_in_two_parts(invoke: Run, client: redis.Redis, tmp_path: Path) -> None:
    for number, name in enumerate(HOSTILE):
        add(client, T + 1000 * number, name, tenant=name)
    first = invoke("expired", "--json", "--chain", "--since", AT + "00Z", "--until", AT + "03Z")
    head = head_of(first.stderr)
    rest = invoke("expired", "--json", "--chain", "--chain-from", head, "--since", AT + "03Z", "--until", AT + "59Z")
    assert ids(first.stdout) + ids(rest.stdout) == HOSTILE
    lines = [json.loads(line) for line in (first.stdout + rest.stdout).splitlines()]
    assert [line[PREVIOUS] for line in lines][::3] == [START, head]
    plain = [json.loads(line) for line in invoke("expired", "--json", *SPAN).stdout.splitlines()]
    assert [{key: line[key] for key in line if key != PREVIOUS} for line in lines] == plain
    whole = tmp_path / "whole.jsonl"
    whole.write_text(first.stdout + rest.stdout)
    last = head_of(rest.stderr)
    verified = invoke("verify-archive", str(whole), "--head", last.upper())
    assert (verified.exit_code, verified.stderr) == (0, "")
    assert verified.stdout == f"{whole}: the chain is whole: {len(HOSTILE)} lines, head {last}\n"
    part = tmp_path / "part.jsonl"
    part.write_text(rest.stdout)
    assert invoke("verify-archive", str(part), "--chain-from", head, "--head", last).exit_code == 0
    assert invoke("verify-archive", str(part)).exit_code == 1


def test_a_broken_archive(invoke: Run, client: redis.Redis, tmp_path: Path) -> None:
    for number in range(4):
        add(client, T + number, f"r{number}")
    archived = invoke("expired", "--json", "--chain", *SPAN)
    path = tmp_path / "archive.jsonl"
    path.write_text(archived.stdout.replace("r1", "r9"))
    result = invoke("verify-archive", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"sweeperd: {path}: line 3: it does not continue the line before")
    document = json.loads(invoke("verify-archive", str(path), "--json").stdout)
    assert (document["whole"], document["broken_line"], document["lines"]) == (False, 3, 3)
    path.write_text("".join(archived.stdout.splitlines(keepends=True)[:2]))
    assert invoke("verify-archive", str(path)).exit_code == 0
    assert invoke("verify-archive", str(path), "--head", head_of(archived.stderr)).exit_code == 1


def test_count_and_limit(invoke: Run, client: redis.Redis) -> None:
    for number in range(5):
        add(client, T + number, f"r{number}", tenant="acme" if number % 2 else "globex")
    counted = invoke("expired", "--count", *SPAN)
    assert (counted.exit_code, counted.stdout) == (0, "5\n")
    assert invoke("expired", "--count", "--tenant", "acme", *SPAN).stdout == "2\n"
    assert json.loads(invoke("expired", "--count", "--json", *SPAN).stdout)["count"] == 5
    limited = invoke("expired", "--json", "--limit", "3", *SPAN)
    assert ids(limited.stdout) == ["r0", "r1", "r2"]
    assert "there are more than 3; --limit shows more" in limited.stderr
    assert "there are more" not in invoke("expired", "--json", "--limit", "5", *SPAN).stderr
    chained = invoke("expired", "--json", "--chain", "--limit", "2", *SPAN)
    assert "the head of these 2 lines is" in chained.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["expired", "--chain"], "--chain goes with --json"),
        (["expired", "--json", "--chain-from", START], "--chain-from with --chain"),
        (["expired", "--json", "--chain", "--chain-from", "x"], "'x' is no SHA-256"),
        (["expired", "--follow", "--limit", "1"], "leave --until, --limit and --count out"),
        (["expired", "--follow", "--count"], "leave --until, --limit and --count out"),
        (["expired", "--count", "--limit", "1"], "--count prints a number only"),
        (["expired", "--count", "--format", "csv"], "--count prints a number only"),
        (["expired", "--limit", "0"], "is not in the range"),
        (["verify-archive", "gone.jsonl"], "No such file or directory"),
        (["verify-archive", "/dev/null", "--head", "0"], "'0' is no SHA-256"),
        (["verify-archive"], "Missing argument 'FILE'"),
    ],
)
def test_bad_options(arguments: list[str], problem: str, invoke: Run) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in result.stderr


def test_a_directory_is_no_archive(invoke: Run, tmp_path: Path) -> None:
    result = invoke("verify-archive", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Is a directory" in result.stderr
