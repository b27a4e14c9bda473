"""`sweeperd status`."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import redis

from sweeperd.config import SweepSettings
from sweeperd.store import Shard
from tests.integration.conftest import HOSTILE, Sweeperd, only_printable
from tests.support.builders import make_sweeper, reservations_kind
from tests.support.harness import command, environment, eventually, heed_interrupts, reserve, server_time
from tests.support.kind_settings import SEAT_HOLD
from tests.support.servers import Server, free_port

BILLING = json.dumps([{"name": "billing", "url": "http://127.0.0.1:9/"}])


def test_as_text(sweeperd: Sweeperd, client: redis.Redis) -> None:
    reserve(client, ["a", "b"], overdue_by=65_000)
    reserve(client, ["grace"], overdue_by=-60_000, grace=100_000)
    client.zadd("sweeperd:quarantine", {"x": 1})
    ran = sweeperd("status", SWEEPERD_WEBHOOKS__ENDPOINTS=BILLING)
    assert ran.code == 0
    lines = [line.split(": ", 2)[2].partition(": start")[0] for line in ran.err.splitlines()]
    assert re.fullmatch(r"reservations: 2 overdue, the oldest for 1 m \d s; see `sweeperd check`", lines.pop(3))
    assert lines == [
        "no process sweeps",
        "no process delivers",
        "no walk has run yet over reservations; see `sweeperd reconcile`",
        "reservations: 1 in quarantine; see `sweeperd quarantine list`",
    ]
    (row,) = ran.rows
    assert row["oldest overdue"] in ("1 m 5 s", "1 m 6 s", "1 m 7 s", "1 m 8 s")
    del row["oldest overdue"]
    assert row == {
        "shard": "default",
        "kind": "reservations",
        "alive": "3",
        "due": "3",
        "in grace": "1",
        "overdue": "2",
        "held": "",
        "deferred": "",
        "protected": "",
        "quarantined": "1",
    }
    _, sweep, shards, endpoints = ran.out.split("\n\n")
    assert sweep.splitlines()[1].split("\t") == ["default", "reservations", "never", "", "", "", "", "", ""]
    assert shards.splitlines()[1].startswith("default\t0\t")
    assert shards.splitlines()[1].endswith(" MiB")
    assert endpoints.splitlines()[1].split("\t") == [
        "default",
        "billing",
        "no process delivers",
        "no group",
        "",
        "",
        "",
        "0",
        "",
    ]


def test_as_json(sweeperd: Sweeperd, client: redis.Redis) -> None:
    reserve(client, ["a"])
    assert sweeperd("--once", SWEEPERD_WEBHOOKS__ENDPOINTS="[]").code == 0
    reserve(client, ["b"])
    for arguments in (["status", "--json"], ["--json", "status"]):
        ran = sweeperd(*arguments, SWEEPERD_WEBHOOKS__ENDPOINTS=BILLING)
        (shard,) = ran.document["shards"]
        assert (shard["shard"], shard["reachable"], shard["due"]["overdue"]) == ("default", True, 1)
        assert (shard["tick"]["expired"], shard["tick"]["complete"], shard["tick_age_seconds"] < 20) == (1, True, True)
        assert shard["endpoints"][0]["state"] == "stopped"
        assert ran.document["down"] == []
        assert (shard["endpoints"][0]["pending"], shard["endpoints"][0]["position"]) == (None, None), "no group"
        assert ran.err == ""


def test_processes_are_listed_and_a_silent_one_is_named(sweeperd: Sweeperd, client: redis.Redis) -> None:
    now = server_time(client)
    usual = {"sweeps": True, "delivers": True, "version": "0.1.0", "since": now - 3_600_000, "kinds": ["reservations"]}
    for name, at in (("well", now), ("gone", now - 120_000)):
        note = usual | {"process": name, "at": at}
        client.hset("sweeperd:processes", f"{name}-0123abcd", json.dumps(note))
    (shard,) = sweeperd("status", "--json").document["shards"]
    gone, well = shard["processes"]
    assert [(each["process"], each["silent"], each["role"]) for each in (gone, well)] == [
        ("gone", True, "all"),
        ("well", False, "all"),
    ]
    assert (gone["in_hand"], gone["kinds"], gone["version"]) == (0, ["reservations"], "0.1.0")
    assert gone["heartbeat_age_seconds"] >= 120
    ran = sweeperd("status")
    table = ran.out.split("\n\n")[-1].splitlines()
    assert [line.split("\t")[1:3] for line in table[1:]] == [["gone", "all"], ["well", "all"]]
    assert "silent" in table[1]
    assert "silent" not in table[2]
    (silent,) = [line for line in ran.err.splitlines() if "process gone has been silent for 2 m" in line]
    assert "Redis refuses its writes" in silent
    assert "sweeperd check" in silent


def test_a_large_backlog_is_marked_as_estimated(sweeperd: Sweeperd, client: redis.Redis) -> None:
    client.zadd("reservation:ttl", {f"orphan {number}": 1 + number for number in range(500)})
    (row,) = sweeperd("status").rows
    assert (row["due"], row["in grace"], row["overdue"]) == ("500", "~0", "~500")


def test_a_dead_shard_hides_no_other(sweeperd: Sweeperd, server: Server) -> None:
    dead = f"redis://:hush@127.0.0.1:{free_port()}/0"
    shards = json.dumps([{"name": "dead", "url": dead}, {"name": "well", "url": server.url}])
    environment = {"SWEEPERD_SHARDS": shards}
    ran = sweeperd("status", url="", **environment)
    assert (ran.code, [row["kind"] for row in ran.rows]) == (1, ["down", "reservations"])
    note, *roles, trouble = ran.err.splitlines()
    assert all("shard well: no process " in line for line in roles)
    assert trouble.startswith("sweeperd: shard dead: redis://127.0.0.1:")
    assert (
        note.startswith("sweeperd: shard well: "),
        note.endswith("may be wrong; see `sweeperd check --shard well`"),
    ) == (
        True,
        True,
    )
    ran = sweeperd("status", "--json", url="", **environment)
    assert ran.code == 1
    assert [shard["reachable"] for shard in ran.document["shards"]] == [False, True]
    assert "hush" not in ran.out + ran.err
    assert sweeperd("status", "--shard", "well", url="", **environment).code == 0
    assert sweeperd("status", "--shard", "dead", url="", **environment).code == 1


def test_a_limit_that_is_passed_ends_with_4_and_says_which(sweeperd: Sweeperd, client: redis.Redis) -> None:
    limits = ("--fail-if", "overdue > 60s", "--fail-if", "quarantined > 0")
    reserve(client, ["a"], overdue_by=30_000)
    assert sweeperd("status", *limits).code == 0
    reserve(client, ["b"], overdue_by=65_000)
    client.zadd("sweeperd:quarantine", {"x": 1})
    for form in ((), ("--json",)):
        ran = sweeperd("status", *limits, *form)
        lines = [line for line in ran.err.splitlines() if "limit" in line]
        assert (ran.code, len(lines)) == (4, 2)
        assert "overdue of reservations is 1 m" in lines[0]
        assert lines[1].endswith("quarantined of reservations is 1, limit quarantined > 0")
    assert ran.document["shards"][0]["due"]["overdue"] == 2, "the document is printed, too"
    assert sweeperd("status", "--fail-if", "memory > 1%").code == 0, "there is no maxmemory"


def test_a_shard_that_is_down_ends_with_1_whatever_the_limits(sweeperd: Sweeperd, server: Server) -> None:
    dead = f"redis://127.0.0.1:{free_port()}/0"
    shards = json.dumps([{"name": "dead", "url": dead}, {"name": "well", "url": server.url}])
    ran = sweeperd("status", "--fail-if", "unswept > 1m", url="", SWEEPERD_SHARDS=shards)
    assert ran.code == 1
    assert "shard well: unswept of reservations is never swept" in ran.err
    assert "shard dead" in ran.err


@pytest.mark.parametrize("arguments", [["late > 5s"], ["memory > 5s"], ["overdue > 5s", "--watch"]])
def test_what_is_no_limit(sweeperd: Sweeperd, arguments: list[str]) -> None:
    assert sweeperd("status", "--fail-if", *arguments).code == 2


def test_a_value_that_may_not_be_read_is_above(sweeperd: Sweeperd, server: Server, client: redis.Redis) -> None:
    client.acl_setuser("blind", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info"])
    try:
        url = server.url.replace("redis://", "redis://blind:x@")
        ran = sweeperd("status", "--fail-if", "memory > 99%", url=url)
        assert (ran.code, "memory is not known" in ran.err) == (4, True)
    finally:
        client.acl_deluser("blind")


def test_hostile_names(sweeperd: Sweeperd, client: redis.Redis) -> None:
    client.xadd("sweeperd:dead-letters", {"endpoint": HOSTILE})
    client.hset("sweeperd:ticks", mapping={"at": 1, "by": HOSTILE, "seconds": 1, "complete": 1, "expired": 1})
    client.hset("sweeperd:ticks", mapping={"earlier_at": 1, "earlier_expired": 1})
    client.hset("sweeperd:endpoints", "billing", json.dumps({"paused_at": 1, "reason": HOSTILE.decode("latin-1")}))
    client.set("sweeperd:lease:sweep", HOSTILE)
    ran = sweeperd("status", SWEEPERD_WEBHOOKS__ENDPOINTS=BILLING)
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 12
    only_printable(ran.out)
    assert sweeperd("status", "--json", SWEEPERD_WEBHOOKS__ENDPOINTS=BILLING).document


def test_a_pause_whose_record_cannot_be_read_has_no_age(sweeperd: Sweeperd, client: redis.Redis) -> None:
    client.hset("sweeperd:endpoints", "billing", "nonsense")
    ran = sweeperd("status", SWEEPERD_WEBHOOKS__ENDPOINTS=BILLING)
    (row,) = [line for line in ran.out.splitlines() if "cannot be read" in line]
    assert " ago" not in row


@contextlib.contextmanager
def ended(process: "subprocess.Popen[Any]") -> Iterator[None]:
    """No process outlives its test, however the test ends."""
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_a_note_of_the_sweep_that_cannot_be_read_stops_neither_status_nor_sweep(
    sweeperd: Sweeperd, client: redis.Redis
) -> None:
    reserve(client, ["r1"])
    client.hset("sweeperd:ticks", mapping={"deferred": "x", "held": "y", "held_because": "z"})
    assert sweeperd("status", "--json").document["shards"][0]["kinds"][0]["due"] == 1
    assert sweeperd("--once", "--json").document["expired"] == 1


def test_watching_with_json_ends_cleanly_on_ctrl_c(server: Server, client: redis.Redis) -> None:
    watching = subprocess.Popen(
        command("status", "--watch", "--json", "--interval", "0.1"),
        env=environment(server.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - the child only sets a signal
    )
    with ended(watching):
        output = watching.stdout
        assert output
        first = json.loads(output.readline())
        client.zadd("sweeperd:quarantine", {"x": 1})
        eventually(lambda: json.loads(output.readline())["shards"][0]["quarantined"] == 1)
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=20)
        assert (watching.returncode, errors) == (0, "")
    assert first["shards"][0]["quarantined"] == 0


def test_watching_on_a_terminal(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.xadd("sweeperd:dead-letters", {"endpoint": HOSTILE})
    leader, follower = pty.openpty()
    watching = subprocess.Popen(
        command("status", "--watch", "--interval", "0.1"),
        env=environment(server.url) | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - the child only sets a signal
    )
    os.close(follower)
    seen = b""

    def reads(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(leader, 65536)

    with ended(watching):
        reads(b"quarantined")
        client.zadd("sweeperd:quarantine", {f"x{number}": 1 for number in range(77)})
        reads(b"77")
        watching.send_signal(signal.SIGINT)
        reads(b"\x1b[?1049l")  # the screen is as it was before
        assert watching.wait(20) == 0
    os.close(leader)
    assert b"\x1b[31mevil" not in seen
    assert b"\\x1b[31mevil" in seen


def test_scores_that_are_no_moment_make_no_number_that_json_lacks(
    sweeperd: Sweeperd, client: redis.Redis, shard: Shard, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(SEAT_HOLD)
    for index in ("reservation:ttl", "seats:ttl", "sweeperd:quarantine", "sweeperd:quarantine:seat-hold"):
        client.zadd(index, {"first": "-inf", "last": "inf", "far": 1e300})

    def strict(*arguments: str, code: int = 0) -> Any:
        ran = sweeperd(*arguments, "--json", SWEEPERD_CONFIG=str(config))
        assert ran.code == code, ran.err
        return json.loads(ran.out, parse_constant=lambda name: pytest.fail(f"{name}: {ran.out}"))

    (status,) = strict("status")["shards"]
    assert status["due"]["oldest_seconds"] == pytest.approx(server_time(client) / 1000, abs=60)
    assert status["due"]["oldest_overdue_seconds"] == pytest.approx(server_time(client) / 1000, abs=60)
    assert status["kinds"][0]["oldest_due_seconds"] == pytest.approx(server_time(client) / 1000, abs=60)
    assert "first" in sweeperd("show", "first").out
    assert sweeperd("status").code == 0
    assert [
        each["score"] for name in ("first", "last") for each in strict("show", name, "--kind", "seat-hold")["shards"]
    ] == [0, 2**53]
    for kind, kinds in ([], 2), (["--kind", "seat-hold"], 1):
        listed = strict("quarantine", "list", *kind)["shards"][0]["entries"]
        assert [each["id"] for each in listed] == ["first"] * kinds, "the others are yet to be set aside"
        assert sweeperd("quarantine", "list", *kind, SWEEPERD_CONFIG=str(config)).code == 0
        strict("reconcile", *kind, code=1)
    sweeper = make_sweeper(shard, reservations_kind(shard.keys), SweepSettings(), lambda *_: None, Event())
    assert sweeper.backlog().oldest_due_seconds == pytest.approx(server_time(client) / 1000, abs=60)
    assert strict("quarantine", "dismiss", "first", "--yes")["dismissed"] == 1
    assert strict("quarantine", "requeue", "last", "--yes")["requeued"] == 1
    once = strict("--once", code=1)
    assert (once["not_found"], once["held"]) == (2, 1), "no entry of the kind was seen alive"


def test_the_group_of_another_program_is_shown(sweeperd: Sweeperd, client: redis.Redis) -> None:
    client.xadd("sweeperd:events", {"id": "a", "tenant": "acme"})
    client.xgroup_create("sweeperd:events", "warehouse", id="0")
    named = {"SWEEPERD_EVENTS__GROUPS": '["warehouse", "missing"]'}
    (shard,) = sweeperd("status", "--json", **named).document["shards"]
    found = {each["endpoint"]: (each["state"], each["pending"]) for each in shard["endpoints"]}
    assert found == {"warehouse": ("group", 1), "missing": ("group", None)}
    assert "read by another program" in sweeperd("status", **named).out
    listed = sweeperd("endpoints", "list", "--json", **named).document["endpoints"]
    assert [each["state"] for each in listed] == ["group", "group"]
