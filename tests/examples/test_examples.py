"""The examples: each is proved by the kit, and its writer and its sweep keep the books."""

import threading
import time
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from sweeperd.cli import main
from sweeperd.config import load
from sweeperd.runtime.once import OnceReport, run_once
from tests.support.harness import eventually
from tests.support.kind_load import EXAMPLES, KINDS, writer_of
from tests.support.servers import Server


@pytest.mark.parametrize("example", KINDS)
@pytest.mark.parametrize("own", [True, False], ids=["samples.json", "derived"])
def test_the_kit_proves_it(example: str, own: bool) -> None:
    folder = EXAMPLES / example
    if not own and list(folder.glob("*.lua")):
        pytest.skip("the samples of a script cannot be derived")
    samples = ["--samples", str(folder / "samples.json")] if own else []
    command = ["--config", str(folder / "config.toml"), "prove", "--kind", KINDS[example]]
    result = CliRunner().invoke(main, [*command, *samples])
    assert result.exit_code == 0, result.output
    assert "FAILED" not in result.output
    assert "warning" not in result.output


@pytest.mark.parametrize(
    ("text", "missing"),
    [("{}", "samples"), ('{"samples": [{"hash": {}}]}', "id"), ('{"samples": [{"id": "a"}]}', "hash")],
)
def test_a_file_of_samples_that_lacks_something(tmp_path: Path, text: str, missing: str) -> None:
    (file := tmp_path / "samples.json").write_text(text)
    command = ["--config", str(EXAMPLES / "locks" / "config.toml"), "prove", "--kind", KINDS["locks"]]
    result = CliRunner().invoke(main, [*command, "--samples", str(file)])
    assert (result.exit_code, f"samples.json: {missing} is missing" in result.output) == (2, True)


@pytest.mark.parametrize("example", KINDS)
def test_it_is_described_on_one_screen(example: str) -> None:
    text = (EXAMPLES / example / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert f"prove --kind {KINDS[example]}" in text


def sweep(example: str, server: Server) -> OnceReport:
    settings = load(EXAMPLES / example / "config.toml", {"SWEEPERD_REDIS__URL": server.url})
    report = run_once(settings, threading.Event())
    assert report.exit_code == 0, report
    return report


def test_seat_holds(server: Server, client: redis.Redis) -> None:
    box = writer_of("seat-holds").Box(client)
    box.open("hamlet", 10)
    assert box.hold("a", "hamlet", 3, "ada", 1)
    assert box.hold("b", "hamlet", 4, "bob", 60_000)
    assert not box.hold("c", "hamlet", 4, "cyd", 60_000)
    time.sleep(0.02)
    assert sweep("seat-holds", server).counts["expired"] == 1  # type: ignore[index]
    assert client.hgetall("seats:hamlet") == {b"free": b"6", b"held": b"4"}
    assert box.buy("b", "hamlet")
    assert not box.buy("a", "hamlet")
    assert client.hgetall("seats:hamlet") == {b"free": b"6", b"held": b"0"}


def test_locks(server: Server, client: redis.Redis) -> None:
    locks = writer_of("locks").Locks(client)
    assert locks.take("disk", "w1", 1) == 1
    assert locks.take("disk", "w2", 1) == 0
    time.sleep(0.02)
    assert sweep("locks", server).counts["expired"] == 1  # type: ignore[index]
    assert client.lrange("locks:waiting:free", 0, -1) == [b"disk"]
    assert locks.take("disk", "w2", 60_000) == 2
    assert not locks.release("disk", 1)
    assert locks.release("disk", 2)


def test_sessions(server: Server, client: redis.Redis) -> None:
    sessions = writer_of("sessions").Sessions(client)
    sessions.begin("s1", "ada", 60_000)
    sessions.begin("s2", "ada", 1)
    client.zadd("sessions:ttl", {"s1": 1})
    client.hset("sessions:s1", "expires_at", 1_700_000_000_000)
    assert sessions.use("s1")
    time.sleep(0.02)
    report = sweep("sessions", server)
    assert (report.counts["expired"], report.counts["not_due"]) == (1, 1)  # type: ignore[index]
    assert sessions.of("ada") == {b"s1"}
    assert int(client.hget("sessions:s1", "expires_at") or 0) > 1_700_000_000_000
    assert not sessions.use("s2")


def test_permits(server: Server, client: redis.Redis) -> None:
    permits = writer_of("permits").Permits(client)
    permits.allow("acme", 5)
    assert permits.take("c1", "acme", 2, 1)
    assert permits.take("c2", "acme", 3, 60_000)
    assert not permits.take("c3", "acme", 1, 60_000)
    with client.pubsub() as listener:
        listener.subscribe("permits:back")
        eventually(lambda: listener.get_message(timeout=1))
        time.sleep(0.02)
        assert sweep("permits", server).counts["expired"] == 1  # type: ignore[index]
        eventually(lambda: (listener.get_message(timeout=1) or {}).get("data") == b"acme")
    assert client.get("permits:free:acme") == b"2"
    assert permits.put_back("c2", "acme")
    assert not permits.put_back("c1", "acme")
    assert client.get("permits:free:acme") == b"5"
