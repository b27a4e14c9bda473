"""`sweeperd quarantine --kind`: list, put back after a repair, dismiss."""

import json
import sys
import threading
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from sweeperd.cli import main
from sweeperd.config import load
from sweeperd.runtime.once import run_once
from tests.lua.kinds.world import Seats
from tests.support.address import drop_address
from tests.support.kind_settings import SEAT_HOLD
from tests.support.servers import Server

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
    return drop_address(CliRunner().invoke(main, ["--config", str(CONFIG), "quarantine", *words]))


@pytest.fixture
def beside_reservations(seats: Seats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Seats:
    """The same hold, with settings that sweep reservations too."""
    (tmp_path / "config.toml").write_text(SEAT_HOLD)
    monkeypatch.setattr(sys.modules[__name__], "CONFIG", tmp_path / "config.toml")
    return seats


def test_what_has_another_fault_by_now_is_listed_with_it(seats: Seats) -> None:
    seats.client.hdel("seats:hold:h1", "qty")
    refused = quarantine("requeue", "h1", "--kind", "seat-hold", "--yes")
    assert (refused.exit_code, "MISSING_FIELD" in refused.output) == (1, True)
    reason, detail = seats.client.hmget("seats:hold:h1", "quarantine_reason", "quarantine_detail")
    assert (reason, b"qty" in (detail or b"")) == (b"MISSING_FIELD", True)
    assert seats.seats() == (10, 5)


def test_by_a_reason_that_reservations_do_not_have(seats: Seats) -> None:
    listed = quarantine("list", "--kind", "seat-hold", "--reason", "INVALID_PLAN", "--json")
    assert [entry["id"] for shard in json.loads(listed.output)["shards"] for entry in shard["entries"]] == ["h1"]
    refused = quarantine("dismiss", "--kind", "seat-hold", "--reason", "MISSING_SCOPES", "--yes")
    assert (refused.exit_code, "is not one of" in refused.output, "'MISSING_FIELD'" in refused.output) == (
        2,
        True,
        True,
    )
    assert seats.client.zcard("sweeperd:quarantine:seat-hold") == 1
    assert quarantine("dismiss", "--kind", "seat-hold", "--reason", "INVALID_PLAN", "--yes").exit_code == 0
    assert not seats.client.exists("sweeperd:quarantine:seat-hold")


def test_the_only_kind_may_be_left_out(seats: Seats) -> None:
    assert quarantine("dismiss", "h1", "--yes").output == "dismissed 1 entry\n"


def test_list_has_the_entries_of_all_kinds_oldest_first(beside_reservations: Seats) -> None:
    beside_reservations.client.zadd("sweeperd:quarantine", {"r1": 1, "r2": 4e12})
    (shard,) = json.loads(quarantine("list", "--json").output)["shards"]
    named = [(entry["kind"], entry["id"]) for entry in shard["entries"]]
    assert named == [("reservations", "r1"), ("seat-hold", "h1"), ("reservations", "r2")]
    assert (shard["quarantined"], shard["truncated"]) == (3, False)
    limited = quarantine("list", "--limit", "2")
    assert [line.split("\t")[-1] for line in limited.stdout.splitlines()] == ["kind", "reservations", "seat-hold"]
    assert "has 3; raise --limit" in limited.stderr
    assert "h1" not in quarantine("list", "--kind", "reservations").output


@pytest.mark.parametrize("verb", ["requeue", "dismiss"])
def test_a_change_without_the_kind_names_the_option(beside_reservations: Seats, verb: str) -> None:
    for selected, what in (("h1", "h1 is"), ("--all", "these entries are")):
        refused = quarantine(verb, selected, "--yes")
        assert refused.exit_code == 1
        assert f"{what} in the quarantine of seat-hold: add --kind seat-hold\n" in refused.stderr
        assert "not in quarantine" not in refused.stderr
    assert "h2 is not in quarantine" in quarantine(verb, "h2", "--yes").stderr
    assert "h1 is not in quarantine" in quarantine(verb, "h1", "--yes", "--kind", "reservations").stderr
    beside_reservations.client.zadd("sweeperd:quarantine", {"h1": 1})
    changed = quarantine(verb, "--all", "--yes")
    assert "--kind" not in changed.stderr, "reservations are meant, and there are some"
    assert beside_reservations.client.zcard("sweeperd:quarantine:seat-hold") == 1
