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
from tests.lua.kinds.world import Seats
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
    return CliRunner().invoke(main, ["--config", str(CONFIG), "quarantine", *words])


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


def test_the_kind_may_be_left_out_if_there_is_one(seats: Seats, tmp_path: Path) -> None:
    """Reservations come first; without them the only kind is meant."""

    def listed(kinds: list[str]) -> Result:
        section = SEAT_HOLD + 'give_back = ["HINCRBY seats:{show} free {qty}"]\n'
        text = "reservations.enabled = false\n" if "reservations" not in kinds else ""
        text += "".join(section.replace("seat-hold", kind) for kind in kinds if kind != "reservations")
        (tmp_path / "config.toml").write_text(text)
        return CliRunner().invoke(main, ["--config", str(tmp_path / "config.toml"), "quarantine", "list", "--json"])

    def ids(result: Result) -> list[str]:
        return [entry["id"] for shard in json.loads(result.output)["shards"] for entry in shard["entries"]]

    assert ids(listed(["reservations", "seat-hold"])) == []
    assert ids(listed(["seat-hold"])) == ["h1"]
