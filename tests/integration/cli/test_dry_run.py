"""`--once --dry-run` writes nothing, and says what `--once` then does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration.cli.conftest import Configured
from tests.integration.cli.test_schemas import check
from tests.integration.conftest import Sweeperd
from tests.support.harness import reserve
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.servers import Server

DEADLINE, AHEAD = 1_700_000_000_000, 4_000_000_000_000
GIVES_BACK = 'give_back = ["HINCRBY seats:{show} free {qty}", "HINCRBY seats:{show} held -{qty} MIN 0"]\n'
PERMITS = """
[[kinds]]
name = "permit"
index = "permits:ttl"
key = "permits:{id}"
deadline = "expires_at"
ended = { state = "LAPSED" }
writes = ["pool:*", "log:*", "stamps:*"]
commands = ["HINCRBY", "HSET", "INCRBY", "RPUSH"]
script = "file:permit.lua"
"""
PERMIT = """
function decide(hash)
  if hash.state == 'DONE' then return 'skip', 'DONE' end
  if hash.state == 'LATER' then return 'extend', 4000000000000 end
  return 'expire'
end
function plan(hash, now, id)
  return {
    {'INCRBY', 'pool:permits', hash.count}, {'HINCRBY', 'pool:' .. hash.client, 'free', hash.count},
    {'RPUSH', 'log:lapsed', id}, {'HSET', 'stamps:last', 'at', '17'},
  }
end
"""


def content(client: Any) -> dict[bytes, tuple[bytes, object]]:
    """Every key with its value and the moment at which it expires."""
    exact = client.info("server")["redis_version"] >= "7"  # 6.2 has no PEXPIRETIME
    expiry: Callable[[bytes], object] = client.pexpiretime if exact else lambda key: client.pttl(key) > 0
    return {key: (client.dump(key), expiry(key)) for key in client.keys("*")}


class Trouble(Configured):
    """Reservations, seats and permits, with an entry of each outcome."""

    def __init__(self, client: redis.Redis, run: Sweeperd, config: Path, url: str) -> None:
        (config.parent / "permit.lua").write_text(PERMIT, encoding="utf-8")
        super().__init__(client, run, config, url, SEAT_HOLD + GIVES_BACK + PERMITS)
        reserve(client, [f"r{number}" for number in range(12)], amount=5)
        reserve(client, ["grace"], overdue_by=-300_000, grace=600_000)
        client.zadd("reservation:ttl", {"grace": DEADLINE})
        client.hset("reservation:res_r0", "state", "COMMITTED")
        client.hset("reservation:res_r1", "estimate_amount", "many")
        client.zadd("reservation:ttl", {"orphan": DEADLINE})
        client.pexpire("reservation:res_r0", 10**9)
        client.hset("seats:hamlet", mapping={"free": 7, "held": 5})
        hold_seats(client, "h1", 2, DEADLINE)
        hold_seats(client, "h2", 3, DEADLINE)
        hold_seats(client, "h3", 3, DEADLINE, show="")
        client.set("pool:permits", 1, px=10**9)
        client.hset("pool:ada", mapping={"free": -2, "note": "text"})
        client.hset("stamps:last", "at", 16)
        for entry, state in (("p1", "TAKEN"), ("p2", "TAKEN"), ("p3", "DONE"), ("p4", "LATER")):
            client.hset(
                f"permits:{entry}", mapping={"state": state, "count": 4, "client": "ada", "expires_at": DEADLINE}
            )
            client.zadd("permits:ttl", {entry: DEADLINE})

    def dry_run(self, code: int = 0) -> dict[str, Any]:
        ran = self.run("--once", "--dry-run", "--json")
        assert ran.code == code, ran.err
        check("dry-run", ran.document)
        return dict(ran.document)


OUTCOMES = ("skipped", "in_grace", "not_due", "not_found", "held", "quarantined", "errors", "candidates")


@pytest.fixture
def trouble(server: Server, client: redis.Redis, sweeperd: Sweeperd, tmp_path: Path) -> Trouble:
    return Trouble(client, sweeperd, tmp_path / "config.toml", server.url)


@pytest.mark.every_redis
def test_nothing_in_redis_changes(trouble: Trouble) -> None:
    before = content(trouble.client)
    assert len(before) > 20
    dirty = trouble.client.info("persistence")["rdb_changes_since_last_save"]
    for _ in range(2):
        trouble.dry_run()
    trouble.run("--once", "--dry-run")
    trouble.run("check", "--sample", "50")
    assert content(trouble.client) == before
    assert trouble.client.info("persistence")["rdb_changes_since_last_save"] == dirty


def test_the_counts_are_those_of_the_run_that_follows(trouble: Trouble) -> None:
    told = trouble.dry_run()
    done = trouble.run("--once", "--json").document
    assert {name: told[name] for name in OUTCOMES} == {name: done[name] for name in OUTCOMES}
    assert told["would_expire"] == done["expired"] == 10 + 2 + 2
    assert (told["skipped"], told["quarantined"], told["in_grace"]) == (2, 2, 1)
    assert (told["not_found"], told["not_due"]) == (1, 1)


def test_the_counters_change_as_it_says(trouble: Trouble) -> None:
    told = {
        (counter["key"], counter["field"]): counter
        for kind in trouble.dry_run()["kinds"]
        for counter in kind["counters"]
    }
    budgets = {key for key, _ in told if key.startswith("budget:")}
    assert budgets
    assert told.keys() - {(key, field) for key in budgets for field in ("reserved", "remaining")} == {
        ("seats:hamlet", "free"),
        ("seats:hamlet", "held"),
        ("pool:permits", ""),
        ("pool:ada", "free"),
    }
    assert {told[key, "reserved"]["change"] for key in budgets} == {-50}
    assert told["pool:ada", "free"] | {"key": ""} == {
        "key": "",
        "field": "free",
        "holds": -2,
        "change": 8,
        "would_hold": 6,
        "entries": 2,
    }
    trouble.run("--once", "--json")

    def value(key: str, field: str) -> int:
        held: Any = trouble.client.hget(key, field) if field else trouble.client.get(key)
        return int(held)

    assert {place: each["would_hold"] for place, each in told.items()} == {place: value(*place) for place in told}


def test_ten_ids_of_each_outcome_are_named(trouble: Trouble) -> None:
    kinds = {kind["kind"]: kind for kind in trouble.dry_run()["kinds"]}
    named = [(entry["outcome"], entry["id"], entry["detail"]) for entry in kinds["reservations"]["entries"]]
    assert len([outcome for outcome, *_ in named if outcome == "would_expire"]) == 10
    assert ("skipped", "r0", "COMMITTED") in named
    assert ("quarantined", "r1", "INVALID_ESTIMATE") in named
    assert ("not_found", "orphan", "") in named
    assert [entry["id"] for entry in kinds["seat-hold"]["entries"] if entry["detail"] == "MISSING_FIELD"] == ["h3"]
    text = trouble.run("--once", "--dry-run").out
    for word in ("10 would expire", "INVALID_ESTIMATE", "orphan", "seats:hamlet", "+5"):
        assert word in text


def test_more_than_a_page_and_more_counters_than_are_listed(trouble: Trouble) -> None:
    for number in range(1_100):
        hold_seats(trouble.client, f"many-{number:04}", 1, DEADLINE + number % 3, show=f"show-{number % 150}")
    for number in range(150):
        trouble.client.hset(f"seats:show-{number}", mapping={"free": 0, "held": 100})
    (seats,) = [kind for kind in trouble.dry_run()["kinds"] if kind["kind"] == "seat-hold"]
    assert (seats["would_expire"], seats["candidates"]) == (1_102, 1_103)
    assert (len(seats["counters"]), seats["truncated"]) == (100, True)
    assert seats["counters"][0]["entries"] == 8


def test_a_kind_that_no_entry_proves_is_held(trouble: Trouble) -> None:
    text = trouble.config.read_text(encoding="utf-8").replace('state = "HELD"', 'state = "held"')
    trouble.config.write_text(text, encoding="utf-8")
    told = trouble.dry_run(code=1)
    (seats,) = [kind for kind in told["kinds"] if kind["kind"] == "seat-hold"]
    assert (seats["held"], seats["would_expire"]) == (3, 0)
    assert seats["hint"] == "state is HELD, active says held: is `active` right?"
    assert not trouble.client.exists("sweeperd:proofs")


def test_an_entry_that_proves_the_kind_late_frees_what_was_held(trouble: Trouble) -> None:
    """The sample of 100 misses the one entry that is alive, which is due behind all others."""
    for number in range(500):
        trouble.client.zadd("permits:ttl", {f"gone-{number:03}": DEADLINE - 10_000 + number})
    for entry in ("p1", "p2", "p3", "p4"):
        trouble.client.zrem("permits:ttl", entry)
    trouble.client.zadd("permits:ttl", {"p1": DEADLINE})
    trouble.client.zadd("permits:ttl", {f"next-{number:03}": DEADLINE + 1 + number for number in range(7)})
    told = trouble.dry_run()
    done = trouble.run("--once", "--json").document
    assert (told["held"], told["not_found"], told["would_expire"]) == (0, 508, 13)
    assert {name: told[name] for name in OUTCOMES} == {name: done[name] for name in OUTCOMES}


def test_a_kind_that_would_not_be_swept_is_a_failure_and_hides_no_other(trouble: Trouble) -> None:
    (trouble.config.parent / "permit.lua").write_text("function decide(", encoding="utf-8")
    ran = trouble.run("--once", "--dry-run", "--json")
    assert ran.code == 1
    assert "permit: the script does not compile" in ran.err
    assert [kind["kind"] for kind in ran.document["kinds"]] == ["reservations", "seat-hold"]
    assert "does not compile" in ran.document["down"][0]["error"]
    sampled = trouble.run("check", "--sample", "5", "--json")
    (finding,) = [each for each in sampled.document["checks"] if each["check"] == "sample of permit"]
    assert (sampled.code, finding["level"]) == (1, "failure")


def test_a_script_that_fails_before_its_functions(trouble: Trouble) -> None:
    (trouble.config.parent / "permit.lua").write_text("error('no')\n" + PERMIT, encoding="utf-8")
    ran = trouble.run("--once", "--dry-run")
    assert ran.code == 1
    assert "permit: not swept" in ran.err


def sampled(trouble: Trouble, kind: str, most: int = 200) -> tuple[dict[str, Any], dict[str, Any]]:
    """The finding of `check --sample` about this kind, and its part of `samples`."""
    document = trouble.run("check", "--sample", str(most), "--json").document
    check("check", document)
    (finding,) = [each for each in document["checks"] if each["check"] == f"sample of {kind}"]
    (sample,) = [each for each in document["samples"] if each["kind"] == kind]
    return finding, sample


def test_a_sample_says_what_a_sweep_would_do_with_entries_that_are_not_due_too(trouble: Trouble) -> None:
    hold_seats(trouble.client, "later", 1, AHEAD)
    finding, sample = sampled(trouble, "seat-hold")
    assert (finding["level"], finding["says"]) == ("ok", "4 sampled: 2 would expire, 1 not due, 1 quarantined")
    assert (sample["would_expire"], sample["not_due"], sample["quarantined"], sample["hint"]) == (2, 1, 1, "")
    assert {counter["field"]: counter["change"] for counter in sample["counters"]} == {"free": 5, "held": -5}
    text = trouble.run("check", "--sample", "200").out
    assert "MISSING_FIELD" in text
    assert "seats:hamlet" in text
    assert "samples" not in trouble.run("check", "--json").document


def test_a_sample_is_spread_and_bounded(trouble: Trouble) -> None:
    for number in range(300):
        hold_seats(trouble.client, f"later-{number:03}", 1, AHEAD + number)
    _, sample = sampled(trouble, "seat-hold", 20)
    assert sample["candidates"] == 20
    assert sample["not_due"] >= 18
    assert "later-299" not in [entry["id"] for entry in sample["entries"]][:1]


WRONG = {
    "key": ('"seats:hold:{id}"', '"seats:holds:{id}"', "3 sampled: 0 would expire, 3 not found: is `key` right?"),
    "active": (
        'active = { state = "HELD" }',
        'active = { state = "held" }',
        "3 sampled: 0 would expire, 3 skipped: state is HELD, active says held: is `active` right?",
    ),
    "field of active": (
        'active = { state = "HELD" }\nended = { state = "EXPIRED" }',
        'active = { status = "HELD" }\nended = { status = "EXPIRED" }',
        "3 sampled: 0 would expire, 3 quarantined: INVALID_STATE status: is `active` right?",
    ),
    "ended": (
        'active = { state = "HELD" }\nended = { state = "EXPIRED" }',
        'active = { state = "held" }\nended = { state = "HELD" }',
        "3 sampled: 0 would expire, 3 skipped: the state is HELD: are `ended` and `over` right?",
    ),
    "deadline": (
        'deadline = "expires_at"',
        'deadline = "ends_at"',
        "3 sampled: 0 would expire, 3 quarantined: INVALID_EXPIRY ends_at: is `deadline` right?",
    ),
    "give_back": ("{show} free", "{venue} free", "3 quarantined: MISSING_FIELD venue: is `give_back` right?"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_sample_without_life_names_the_setting(trouble: Trouble, wrong: str) -> None:
    text, (before, after, says) = trouble.config.read_text(encoding="utf-8"), WRONG[wrong]
    assert before in text
    trouble.config.write_text(text.replace(before, after, 1), encoding="utf-8")
    finding, _ = sampled(trouble, "seat-hold")
    assert finding["level"] == "warning"
    assert finding["says"].endswith(says)
    assert finding["advice"]


def test_a_sample_of_a_script_whose_ended_names_the_living_state(trouble: Trouble) -> None:
    text = trouble.config.read_text(encoding="utf-8").replace('state = "LAPSED"', 'state = "TAKEN"')
    trouble.config.write_text(text, encoding="utf-8")
    trouble.client.zrem("permits:ttl", "p3", "p4")
    finding, _ = sampled(trouble, "permit")
    assert finding["level"] == "warning"
    assert "state is TAKEN, ended names it: is `ended` right?" in finding["says"]
