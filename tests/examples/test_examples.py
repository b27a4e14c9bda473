"""The examples: each is proved by the kit; its writer and its sweep keep the books, and the rules for writers."""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from click.testing import CliRunner

from sweeperd.cli import main
from sweeperd.config import load
from sweeperd.runtime.once import OnceReport, run_once
from tests.support.documents import ROOT
from tests.support.examples import EXAMPLES, FORMS, KINDS, writer_of
from tests.support.harness import eventually, server_time
from tests.support.servers import Server

ALL = KINDS | FORMS


@pytest.mark.slow
@pytest.mark.parametrize("example", ALL)
@pytest.mark.parametrize("own", [True, False], ids=["samples.json", "derived"])
def test_the_kit_proves_it(example: str, own: bool) -> None:
    folder = EXAMPLES / example
    if not own and list(folder.glob("*.lua")):
        pytest.skip("the samples of a script cannot be derived")
    samples = ["--samples", str(folder / "samples.json")] if own else []
    command = ["--config", str(folder / "config.toml"), "prove", "--kind", ALL[example]]
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


@pytest.mark.parametrize("example", ALL)
def test_it_is_described_on_one_screen(example: str) -> None:
    text = (EXAMPLES / example / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert f"prove --kind {ALL[example]}" in text


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


def test_carts(server: Server, client: redis.Redis) -> None:
    carts = writer_of("carts").Carts(client, "books")
    lines = {f"book-{number}": 1 + number % 3 for number in range(40)}
    for sku in lines:
        carts.stock(sku, 5)
    assert carts.fill("a", "ada", lines, 1)
    assert carts.fill("b", "bob", {"book-0": 1, "book-1": 1}, 60_000)
    assert not carts.fill("c", "cyd", {"book-0": 1, "book-2": 3}, 60_000), "the second line is short of stock"
    time.sleep(0.02)
    assert sweep("carts", server).counts["expired"] == 1  # type: ignore[index]
    assert not carts.buy("a", lines)
    assert carts.buy("b", {"book-0": 1, "book-1": 1})
    stock = {sku: client.hmget(f"stock:{sku}", "free", "held") for sku in lines}
    assert stock == {sku: [b"4" if sku in ("book-0", "book-1") else b"5", b"0"] for sku in lines}


def test_spring_sessions(server: Server, client: redis.Redis) -> None:
    sessions = writer_of("spring-sessions").Sessions(client)
    assert sessions.start("s1", "ada", 0.001)
    assert sessions.start("s2", "bob", 60)
    assert sessions.start("s3", "cyd", 60)
    client.expire("spring:session:sessions:s2", 60)
    assert sessions.use("s2")
    assert client.ttl("spring:session:sessions:s2") == -1
    time.sleep(0.02)
    assert not sessions.use("s1"), "its deadline has passed"
    assert sweep("spring-sessions", server).counts["expired"] == 1  # type: ignore[index]
    assert sessions.end("s3", "cyd")
    assert client.smembers("users:online") == {b"bob"}
    ((_, event),) = cast(Any, client.xrange("sweeperd:events"))
    assert (event[b"id"], event[b"data.sessionAttr:user"]) == (b"s1", b"ada")


def test_semaphore(server: Server, client: redis.Redis) -> None:
    disk = writer_of("semaphore").Semaphore(client, "disk")
    disk.open(2)
    assert disk.take("w1", 1)
    assert disk.take("w2", 60_000)
    assert not disk.take("w3", 60_000)
    assert disk.take("w2", 60_000), "renewed"
    time.sleep(0.02)
    assert not disk.take("w1", 60_000), "its deadline has passed"
    assert sweep("semaphore", server).counts["expired"] == 1  # type: ignore[index]
    assert client.hget("semaphore:free", "disk") == b"1"
    assert not disk.release("w1")
    assert disk.release("w2")
    assert (client.hget("semaphore:free", "disk"), client.exists("semaphore:held")) == (b"2", 0)


# ---- the rules for writers

WAITING = (ROOT / "docs" / "how-to" / "waiting-list.md").read_text(encoding="utf-8")


class Offers:
    """The waiting list of docs/how-to/waiting-list.md: its `offer.lua`."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        (self._script,) = re.findall(r"^```lua\n(.*?)^```", WAITING, re.MULTILINE | re.DOTALL)

    def offer(self, offer: str, for_ms: int) -> object:
        keys = ["shows:hamlet", "waiting:hamlet", "offers:ttl", f"offers:{offer}"]
        return self._client.eval(self._script, 4, *keys, offer, "hamlet", for_ms)


@dataclass
class Rules:
    """How the rules are tried on one example. `service` is its writer, and each entry has the id `id`."""

    service: Callable[[redis.Redis], Any]
    #: Prepares the counters.
    prepare: Callable[[redis.Redis, Any], object]
    #: Makes an entry with this deadline, ms from now. The answer is true.
    make: Callable[[Any, int], object]
    #: Ways to end, to use or to renew it before its deadline.
    later: dict[str, Callable[[Any], object]]
    hash: str
    #: What must be as before once the entry has expired.
    books: Callable[[redis.Redis], object]
    id: str = "a"


RULES = {
    "seat-holds": Rules(
        lambda client: writer_of("seat-holds").Box(client),
        lambda _, box: box.open("hamlet", 10),
        lambda box, ms: box.hold("a", "hamlet", 2, "ada", ms),
        {"buy": lambda box: box.buy("a", "hamlet"), "release": lambda box: box.release("a", "hamlet")},
        "seats:hold:a",
        lambda client: client.hgetall("seats:hamlet"),
    ),
    "permits": Rules(
        lambda client: writer_of("permits").Permits(client),
        lambda _, permits: permits.allow("acme", 10),
        lambda permits, ms: permits.take("a", "acme", 2, ms),
        {"put_back": lambda permits: permits.put_back("a", "acme")},
        "permits:held:a",
        lambda client: client.get("permits:free:acme"),
    ),
    "locks": Rules(
        lambda client: writer_of("locks").Locks(client),
        lambda *_: None,
        lambda locks, ms: locks.take("disk", "w1", ms),
        {"renew": lambda locks: locks.renew("disk", 1, 60_000), "release": lambda locks: locks.release("disk", 1)},
        "locks:lease:disk:1",
        lambda client: client.get("locks:owner:disk"),
        "disk:1",
    ),
    "sessions": Rules(
        lambda client: writer_of("sessions").Sessions(client),
        lambda *_: None,
        lambda sessions, ms: sessions.begin("a", "ada", ms),
        {"use": lambda sessions: sessions.use("a")},
        "sessions:a",
        lambda client: client.smembers("users:ada:sessions"),
    ),
    "offers": Rules(
        Offers,
        lambda client, _: (client.hset("shows:hamlet", "free", 1), client.zadd("waiting:hamlet", {"ada": 1, "bob": 2})),
        lambda offers, ms: offers.offer("a", ms),
        {},
        "offers:a",
        lambda client: (client.hget("shows:hamlet", "free"), client.zcard("waiting:hamlet")),
    ),
}
EACH_EXAMPLE = pytest.mark.parametrize("example", RULES)
EACH_STEP = pytest.mark.parametrize(
    ("example", "step"), [(name, step) for name, each in RULES.items() for step in each.later]
)


def config_of(example: str, directory: Path) -> Path:
    """The settings file of an example."""
    if example != "offers":
        return EXAMPLES / example / "config.toml"
    (settings,) = re.findall(r"^```toml\n(.*?)^```", WAITING, re.MULTILINE | re.DOTALL)
    (path := directory / "config.toml").write_text(f"[reservations]\nenabled = false\n{settings}")
    return path


def contents(client: redis.Redis) -> dict[object, object]:
    """Every key, its value and its TTL."""
    return {key: (client.dump(key), client.pttl(key) >= 0) for key in client.keys("*")}


def prepared(example: str, client: redis.Redis) -> Any:
    service = RULES[example].service(client)
    RULES[example].prepare(client, service)
    return service


def past_deadline(client: redis.Redis) -> None:
    """Wait until the deadline of every entry has passed."""
    (index,) = client.keys("*:ttl")
    ((_, deadline),) = cast(Any, client.zrange(index, -1, -1, withscores=True))
    eventually(lambda: server_time(client) > deadline)


@EACH_EXAMPLE
def test_the_same_request_again_changes_nothing(
    example: str, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    rules, service = RULES[example], prepared(example, client)
    before = rules.books(client)
    first = rules.make(service, 1500)
    assert first
    after = contents(client)
    assert rules.make(service, 1500) == first
    assert contents(client) == after
    past_deadline(client)
    assert not rules.make(service, 1500), "its deadline has passed"
    assert contents(client) == after
    report = run_once(load(config_of(example, tmp_path), {"SWEEPERD_REDIS__URL": server.url}), threading.Event())
    assert report.counts["expired"] == 1  # type: ignore[index]
    assert rules.books(client) == before, "everything is back, once"


@EACH_STEP
def test_after_the_deadline_only_the_sweep_ends_it(
    example: str, step: str, server: Server, client: redis.Redis
) -> None:
    rules, service = RULES[example], prepared(example, client)
    assert rules.make(service, 1)
    past_deadline(client)
    late = contents(client)
    assert not rules.later[step](service)
    assert contents(client) == late
    assert sweep(example, server).counts["expired"] == 1  # type: ignore[index]
    assert not rules.later[step](service)


@EACH_STEP
def test_only_an_ended_hash_has_a_ttl(example: str, step: str, client: redis.Redis) -> None:
    rules, service = RULES[example], prepared(example, client)
    assert rules.make(service, 60_000)
    assert client.ttl(rules.hash) == -1
    assert rules.later[step](service)
    (index,) = client.keys("*:ttl") or [b"none"]
    if client.zscore(index, rules.id) is None:
        assert client.ttl(rules.hash) != -1, "it would stay forever"
    else:
        assert client.ttl(rules.hash) == -1


@EACH_EXAMPLE
def test_an_active_hash_has_no_ttl(example: str, client: redis.Redis) -> None:
    assert RULES[example].make(prepared(example, client), 60_000)
    assert client.ttl(RULES[example].hash) == -1


@EACH_EXAMPLE
def test_what_is_held_in_a_hash_is_declared_as_a_sum(example: str, tmp_path: Path) -> None:
    (kind,) = load(config_of(example, tmp_path), {}).kinds
    writes = [re.match(r"HINCRBY (\S+) (\S+) -", str(template)) for template in kind.give_back]
    held = {(write[1], write[2]) for write in writes if write}
    assert {(each.key, each.field) for each in kind.sums} == held


@EACH_STEP
def test_what_the_writer_calls_an_end_is_declared(example: str, step: str, client: redis.Redis, tmp_path: Path) -> None:
    (kind,) = load(config_of(example, tmp_path), {}).kinds
    rules, service = RULES[example], prepared(example, client)
    rules.make(service, 60_000)
    rules.later[step](service)
    state = cast(Any, client.hget(rules.hash, "state"))
    if state and kind.script is None:
        assert state.decode() in kind.over["state"]


def test_a_renewed_lock_is_held_longer(client: redis.Redis) -> None:
    locks = writer_of("locks").Locks(client)
    assert locks.take("disk", "w1", 30_000) == 1
    before: Any = client.zscore("locks:ttl", "disk:1")
    assert locks.renew("disk", 1, 60_000)
    after: Any = client.zscore("locks:ttl", "disk:1")
    assert client.hget("locks:lease:disk:1", "until") == b"%d" % after
    assert after > before
