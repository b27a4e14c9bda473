"""What `--once`, `status`, `show` and `kinds accept` say of the entries that an unproven kind holds."""

from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration.cli.conftest import Configured
from tests.integration.cli.test_schemas import check
from tests.integration.conftest import Sweeperd
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.servers import Server

DEADLINE = 1_700_000_000_000
BECAUSE = "state is HELD, active says held"


class Held(Configured):
    """Seats under settings in which one word is wrong: five holds and two entries without a hash."""

    def __init__(self, client: redis.Redis, run: Sweeperd, config: Path, url: str) -> None:
        super().__init__(client, run, config, url, SEAT_HOLD.replace('state = "HELD"', 'state = "held"'))
        for number in range(5):
            hold_seats(client, f"h{number}", 1, DEADLINE)
        client.zadd("seats:ttl", {"gone-1": DEADLINE, "gone-2": DEADLINE})

    def once(self) -> tuple[int, dict[str, Any]]:
        ran = self.run("--once", "--json")
        check("once", ran.document)
        return ran.code, {key: count for key, count in ran.document.items() if count and key in ran.document}

    def status(self) -> dict[str, Any]:
        document = self.run("status", "--json").document
        check("status", document)
        return dict(document["shards"][0]["kinds"][-1])


@pytest.fixture
def held(server: Server, client: redis.Redis, sweeperd: Sweeperd, tmp_path: Path) -> Held:
    return Held(client, sweeperd, tmp_path / "config.toml", server.url)


def test_what_is_held_ends_a_run_with_1_and_shows_in_the_status(held: Held) -> None:
    for _ in range(2):
        code, document = held.once()
        assert (code, document["held"], document["candidates"]) == (1, 7, 7)
        assert held.client.zcard("seats:ttl") == 7
    row = held.status()
    assert (row["proven"], row["held"], row["held_because"], row["due"]) == (False, 7, BECAUSE, 7)
    assert row["overdue"] == 0, "no sweep would act on them"
    text = held.run("status")
    assert (text.code, BECAUSE in text.err, "sweeperd check" in text.err) == (0, True, True)
    shown = held.run("show", "h0", "--kind", "seat-hold", "--json").document["shards"][0]["sweep"]
    assert (shown["outcome"], shown["writes"]) == ("held", [])
    assert BECAUSE in shown["why"]
    assert held.client.hset("sweeperd:ticks:seat-hold", "held", "x") == 0, "the field is there"
    assert held.status()["held"] == 0, "what cannot be read counts for none"


def test_an_operator_accepts_the_settings(held: Held) -> None:
    held.once()
    asked = held.run("kinds", "accept", "seat-hold")
    assert (asked.code, held.client.exists("sweeperd:proofs")) == (2, 0), "without --yes and a terminal"
    done = held.run("kinds", "accept", "seat-hold", "--yes", "--json")
    check("kinds-accept", done.document)
    assert done.document["shards"] == [{"shard": "default", "accepted": True, "held": 7}]
    (action,) = held.run("actions", "--json").document["actions"]
    assert (action["action"], action["target"], action["count"]) == ("accept-kind", "seat-hold", 1)
    row = held.status()
    assert (row["proven"], row["held"]) == (True, 0)
    code, document = held.once()
    assert (code, document["skipped"], document["not_found"]) == (0, 5, 2)
    assert held.client.zcard("seats:ttl") == 0
    assert held.client.hget("seats:hold:h0", "state") == b"HELD"


def test_a_kind_is_accepted_once(held: Held) -> None:
    held.run("kinds", "accept", "seat-hold", "--yes")
    again = held.run("kinds", "accept", "seat-hold", "--json")
    assert (again.code, again.document["shards"][0]["accepted"]) == (0, False)
    assert len(held.run("actions", "--json").document["actions"]) == 1


def test_a_run_releases_what_it_held_before_a_later_entry_proved_the_kind(held: Held) -> None:
    """With the right word: 300 entries without a hash, and one living entry that no sample meets."""
    held.config.write_text(SEAT_HOLD + "[sweep]\nbatch_size = 5\npipeline_depth = 1\n")
    held.client.delete("seats:ttl")
    held.client.zadd("seats:ttl", {f"x{number:04}": DEADLINE + number for number in range(1000)})
    hold_seats(held.client, "x0004-h", 1, DEADLINE + 5)
    code, document = held.once()
    assert (code, document["expired"], document["not_found"], document.get("held", 0)) == (0, 1, 1000, 0)
    assert (document["candidates"], held.client.zcard("seats:ttl")) == (1001, 0)


def test_reconcile_says_that_it_judged_nothing(held: Held) -> None:
    held.client.zrem("seats:ttl", "h4")
    walked = held.run("reconcile", "--kind", "seat-hold", "--repair", "--yes", "--json")
    check("reconcile", walked.document)
    (walk,) = walked.document["shards"]
    assert (walked.code, walk["held"], walk["held_because"], walk["found"]["lost"]) == (1, 5, BECAUSE, 0)
    assert held.client.zscore("seats:ttl", "h4") is None
    text = held.run("reconcile", "--kind", "seat-hold")
    because = f"no entry of seat-hold was seen alive ({BECAUSE})"
    assert (text.code, f"not judged: 5 hashes, because {because}" in text.err) == (1, True)


def test_reconcile_removes_no_entry_that_is_held(held: Held) -> None:
    """To a kind with a wrong key each entry looks like an orphan; with the right one a living entry proves it."""
    held.config.write_text(SEAT_HOLD.replace('"seats:hold:{id}"', '"seats:holds:{id}"'))
    ran = held.run("reconcile", "--kind", "seat-hold", "--repair", "--yes", "--json")
    check("reconcile", ran.document)
    assert (ran.code, held.client.zcard("seats:ttl")) == (1, 7)
    held.config.write_text(SEAT_HOLD)
    assert held.run("reconcile", "--kind", "seat-hold", "--repair", "--yes").code == 0
    assert (held.client.zcard("seats:ttl"), held.client.exists("sweeperd:proofs")) == (5, 0)
