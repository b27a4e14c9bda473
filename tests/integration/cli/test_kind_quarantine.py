"""`sweeperd quarantine --kind`: list, put back after a repair, dismiss."""

import json
import threading
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from sweeperd.cli import main
from sweeperd.config import load
from sweeperd.runtime.once import run_once
from sweeperd.store.embedded import Server
from tests.lua.kinds.world import Seats

CONFIG = Path(__file__).parents[3] / "examples" / "seat-holds" / "config.toml"


@pytest.fixture
def seats(server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Seats:
    """A hold that the sweep has set aside."""
    monkeypatch.setenv("SWEEPERD_REDIS__URL", server.url)
    made = Seats(client)
    made.show()
    made.hold(qty="nan")
    sweep(server)
    assert client.zrange("sweeperd:quarantine:seat-hold", 0, -1) == [b"h1"]
    return made


def sweep(server: Server) -> None:
    run_once(load(CONFIG, {"SWEEPERD_REDIS__URL": server.url}), threading.Event())


def quarantine(*words: str) -> Result:
    return CliRunner().invoke(main, ["--config", str(CONFIG), "quarantine", *words])


def test_list(seats: Seats) -> None:
    listed = quarantine("list", "--kind", "seat-hold", "--json")
    (shard,) = json.loads(listed.output)["shards"]
    ((entry),) = shard["entries"]
    assert (entry["id"], entry["reason"], entry["tenant"]) == ("h1", "INVALID_PLAN", "c1")


def test_requeue_after_a_repair(seats: Seats, server: Server) -> None:
    seats.client.hset("seats:hold:h1", "qty", "3")
    assert quarantine("requeue", "h1", "--kind", "seat-hold", "--yes").exit_code == 0
    assert seats.client.hkeys("seats:hold:h1") == [b"state", b"show", b"qty", b"customer", b"expires_at"]
    sweep(server)
    assert seats.seats() == (13, 2)


def test_what_is_not_repaired_stays_on_the_list(seats: Seats) -> None:
    refused = quarantine("requeue", "--all", "--kind", "seat-hold", "--yes")
    assert (refused.exit_code, "INVALID_PLAN (no amount: nan)" in refused.output) == (1, True)
    assert seats.client.zcard("sweeperd:quarantine:seat-hold") == 1
    assert seats.client.hget("seats:hold:h1", "quarantine_reason") == b"INVALID_PLAN"
    assert seats.seats() == (10, 5)


def test_dismiss(seats: Seats) -> None:
    assert quarantine("dismiss", "h1", "--kind", "seat-hold", "--yes").exit_code == 0
    assert not seats.client.exists("sweeperd:quarantine:seat-hold")
    assert seats.client.hexists("seats:hold:h1", "dismissed_at")
    assert seats.seats() == (10, 5)


def test_an_unknown_kind_is_refused(seats: Seats) -> None:
    refused = quarantine("list", "--kind", "lock")
    assert refused.exit_code == 2
    assert "seat-hold" in refused.output
