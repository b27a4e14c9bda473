"""The one flow behind every command that changes something: find, ask, act, record."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import Result

from sweeperd.cli.output import Output
from sweeperd.ops.reconcile.walk import mend
from sweeperd.outbox import Outbox
from sweeperd.store import Shard
from sweeperd.store.scripts import Script, own_text, read_all, source
from tests.integration.cli.conftest import Run, expire, give_up
from tests.support.harness import reserve
from tests.support.kind_settings import SEAT_HOLD
from tests.support.servers import Server, free_port

ENDPOINTS = [{"name": "billing", "url": "http://127.0.0.1:1/"}]


def places(server: Server, *names: str) -> list[dict[str, Any]]:
    """Shards of the test's server, and one that is down if it has this name."""
    down = f"redis://127.0.0.1:{free_port()}"
    return [{"name": name, "url": down if name == "down" else server.url, "prefix": f"{name}:"} for name in names]


def test_another_version_is_installed_while_the_question_waits(
    invoke: Run, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for read in (own_text, source, read_all):
        read.cache_clear()

    def installed(*_: object, **__: object) -> None:
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("a script was read after the question"))

    monkeypatch.setattr(Output, "confirm", installed)
    monkeypatch.setattr(Script, "source", property(lambda self: source(self.name)))
    assert invoke("endpoints", "pause", "billing", endpoints=ENDPOINTS).exit_code == 0
    assert client.hexists("sweeperd:endpoints", "billing")


@pytest.mark.parametrize(("verb", "done"), [("replay", "replayed"), ("drop", "dropped")])
def test_the_question_counts_the_dead_letters_of_each_endpoint(
    verb: str, done: str, invoke: Run, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(shard, ["a", "b"])
    give_up(shard, ["c"], endpoint="audit")
    asked: list[str] = []
    monkeypatch.setattr(Output, "confirm", lambda _output, question, *, yes: asked.append(question))
    result = invoke("dead-letters", verb, "--all", endpoints=[*ENDPOINTS, {"name": "audit", "url": "http://h/"}])
    (question,) = asked
    assert all(text in question for text in ("3 dead letters", "1 of audit", "2 of billing")), question
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"3 {done}"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("dead-letters", "drop", "7-0"),
        ("dead-letters", "replay", "7-0"),
        ("quarantine", "requeue", "nobody"),
        ("quarantine", "dismiss", "nobody"),
        ("quarantine", "adopt", "nobody"),
    ],
)
def test_an_unknown_id_may_be_on_the_shard_that_is_down(
    arguments: tuple[str, ...], invoke: Run, server: Server
) -> None:
    def run(*names: str) -> Result:
        return invoke(*arguments, "--yes", shards=places(server, *names), endpoints=ENDPOINTS)

    alive, partly = run("eu"), run("eu", "down")
    assert (alive.exit_code, arguments[-1] in alive.stderr) == (1, True)
    assert (partly.exit_code, arguments[-1] in partly.stderr, "shard down" in partly.stderr) == (1, False, True)


def test_what_is_nowhere_is_said_of_the_shards_that_could_be_used(invoke: Run, server: Server) -> None:
    result = invoke("dead-letters", "drop", "--all", "--yes", shards=places(server, "eu", "down"))
    assert (result.exit_code, result.stdout) == (1, "no dead letters match on the shards that could be used\n")


@pytest.mark.parametrize("verb", ["list", "replay", "drop"])
def test_an_empty_name_is_no_endpoint(verb: str, invoke: Run, shard: Shard) -> None:
    """It selects nothing, instead of everything."""
    give_up(shard, ["a"])
    refused = invoke("dead-letters", verb, "--endpoint", "", *["--yes"] * (verb != "list"), endpoints=ENDPOINTS)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert shard.client.xlen(shard.keys.dead_letters) == 1


def test_shards_are_reported_in_the_order_of_the_settings(invoke: Run, server: Server, tmp_path: Any) -> None:
    (tmp_path / "config.toml").write_text(SEAT_HOLD)
    result = invoke(
        "kinds", "accept", "seat-hold", "--yes", "--json", shards=places(server, "us", "down", "eu", "asia")
    )
    document = json.loads(result.stdout)
    assert [each["shard"] for each in document["shards"]] == ["us", "eu", "asia"]
    assert (result.exit_code, [each["shard"] for each in document["down"]]) == (1, ["down"])


def test_a_repair_leaves_a_clean_shard_alone(
    invoke: Run, server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for prefix in ("clean:", "dirty:"):
        reserve(client, ["kept"], overdue_by=-50_000, prefix=prefix)
    client.zrem("dirty:reservation:ttl", "kept")
    mended = list[str]()

    def watched(subject: Any, report: Any) -> Any:
        mended.append(subject.shard.name)
        return mend(subject, report)

    monkeypatch.setattr("sweeperd.cli.reconcile.mend", watched)
    result = invoke("reconcile", "--repair", "--yes", "--json", shards=places(server, "clean", "dirty"))
    assert (result.exit_code, mended) == (0, ["dirty"]), result.output
    assert client.zcard("dirty:reservation:ttl") == 1
    assert client.xlen("dirty:sweeperd:actions") == 1
    assert not client.exists("clean:sweeperd:actions")


@pytest.fixture
def refusing(own_shard: Shard, own_server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server with dead letters, an event that waits, and entries in quarantine; it refuses every write."""
    client = own_shard.client
    give_up(own_shard, ["l1", "l2"])
    outbox = Outbox(own_shard, "test")
    reserve(client, ["late"])
    expire(client, ["late"])
    outbox.read("billing", 1)
    reserve(client, ["aside"], overdue_by=-50_000)
    client.zrem("reservation:ttl", "aside")
    client.zadd("sweeperd:quarantine", {"aside": 1})
    if request.param == "replica":
        client.replicaof("127.0.0.1", 1)
        yield own_server.url
        return
    reads = ["+@read", "+@connection", "+time", "+eval", "+evalsha", "+script", "+hset"]
    client.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">only-for-tests", "~*", *reads)
    yield own_server.url.replace("redis://", "redis://reader:only-for-tests@")


@pytest.mark.parametrize(
    ("refusing", "arguments", "said"),
    [
        (refusing, arguments, said)
        for arguments, said in (
            ("dead-letters replay --all", ["0 replayed, 2 unchanged", "2 unchanged: "]),
            ("dead-letters drop --all", ["0 dropped, 2 unchanged", "2 unchanged: "]),
            ("endpoints drop billing --before 0s", []),
            ("endpoints drop billing --before 0s --dead-letters", []),
            ("quarantine dismiss --all", []),
            ("quarantine requeue aside", []),
        )
        for refusing in ("replica", "no right")
        if (refusing, arguments) != ("no right", "quarantine requeue aside")  # says why the entry stays
    ],
    indirect=["refusing"],
)
def test_of_a_refused_change_nothing_is_said_to_be_done(
    arguments: str, said: list[str], invoke: Run, own_shard: Shard, refusing: str
) -> None:
    before = {key: own_shard.client.dump(key) for key in own_shard.client.scan_iter()}
    result = invoke(*arguments.split(), "--yes", url=refusing, endpoints=ENDPOINTS)
    assert result.exit_code == 1
    assert "sweeperd: redis is not available: " in result.stderr or "lacks a right" in result.stderr, result.output
    lines = result.stdout.splitlines()
    assert (len(lines), [line[: len(text)] for line, text in zip(lines, said, strict=True)]) == (len(said), said)
    assert {key: own_shard.client.dump(key) for key in own_shard.client.scan_iter()} == before


@pytest.mark.parametrize("refusing", ["replica", "no right"], indirect=True)
@pytest.mark.parametrize(
    ("verb", "results"), [("drop", ["dropped", "dropped", "left", "left"]), ("replay", ["left"] * 2)]
)
def test_a_letter_that_redis_refuses_to_change_is_printed_as_left(
    verb: str, results: list[str], invoke: Run, refusing: str
) -> None:
    result = invoke("dead-letters", verb, "--all", "--yes", "--json", url=refusing, endpoints=ENDPOINTS)
    document = json.loads(result.stdout)
    told = document["dead_letters"]
    assert [letter["result"] for letter in told] == results
    assert all(letter["problem"] for letter in told[-2:])
    assert {letter["id"] for letter in told} == {letter["id"] for letter in told[-2:]}
    assert (result.exit_code, document["left"], len(document["down"])) == (1, 2, 1)
