"""`prove --live` takes real entries as samples, and `after` may leave open what only the run knows."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from pydantic import SecretStr

from sweeperd.cli import main
from sweeperd.config import Settings
from sweeperd.kit.judge import Failure
from sweeperd.kit.live import LiveSamples, live_samples
from sweeperd.kit.prove import prove
from sweeperd.kit.samples import ANY, DEADLINE, Content, derived_samples, sample_of
from sweeperd.ops.acl import acl_users
from sweeperd.store import Shard
from sweeperd.sweep import kinds_of
from tests.integration.kit.test_reports import HOLD
from tests.lua.kinds.world import SEATS, scripted, settings_of
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.servers import Server

AHEAD = 4_000_000_000_000
GIVES_BACK = 'give_back = ["HINCRBY seats:{show} free {qty}", "HINCRBY seats:{show} held -{qty} MIN 0"]\n'
#: It reads whether the customer is blocked, and extends a hold that was used.
READS = """
function decide(hash, now)
  if hash.used and tonumber(hash.used) > now then return 'extend', tonumber(hash.used) end
  return 'expire'
end
function plan(hash)
  local list = {{'HINCRBY', 'seats:' .. hash.show, 'free', hash.qty}, {'SREM', 'seats:open', hash.show}}
  if get('GET', 'blocked:' .. hash.customer) then list[2] = nil end
  return list
end
"""


def taken(shard: Shard, settings: Settings, most: int = 10) -> LiveSamples:
    return live_samples(shard, settings.kinds[0], kinds_of(settings, shard)["seat-hold"], most)


def first(settings: Settings, found: LiveSamples) -> Failure | None:
    """The failure of the first property, which says whether each sample reaches its outcome."""
    return next(prove(settings, settings.kinds[0], found.samples, shrink=False)).failure


@pytest.fixture
def seats(client: redis.Redis) -> redis.Redis:
    client.hset("seats:hamlet", mapping={"free": 7, "held": 5})
    hold_seats(client, "h1", 2, AHEAD, customer="ada")
    hold_seats(client, "h2", 3, 1_700_000_000_001, customer="bob")
    return client


def test_entries_are_copied_with_the_keys_that_the_script_touches(shard: Shard, seats: redis.Redis) -> None:
    seats.set("blocked:ada", "1")
    seats.sadd("seats:open", "hamlet", "macbeth")
    settings = settings_of(scripted(READS, reads=["blocked:*"]))
    before = {key: seats.dump(key) for key in seats.keys("*")}
    found = taken(shard, settings)
    assert {key: seats.dump(key) for key in seats.keys("*")} == before
    ada, bob = sorted(found.samples, key=lambda sample: sample.id)
    assert ada.hash == {
        "state": "HELD",
        "show": "hamlet",
        "qty": "2",
        "customer": "ada",
        "expires_at": str(DEADLINE),
    }
    counters: dict[str, Content] = {"seats:hamlet": {"hash": {"free": "7", "held": "5"}}}
    assert ada.keys == counters | {"blocked:ada": {"string": "1"}}
    (open_,) = bob.keys["seats:open"].values()
    assert bob.keys == counters | {"seats:open": {"set": open_}}
    assert sorted(open_) == ["hamlet", "macbeth"]
    assert (found.left_out, ada.live, ada.outcome) == ([], True, "expired")
    assert first(settings, found) is None


def test_the_books_of_a_declared_kind_are_those_of_its_templates(shard: Shard, seats: redis.Redis) -> None:
    settings = settings_of(SEATS)
    found = taken(shard, settings)
    assert [sample.books for sample in found.samples] == [(("seats:hamlet free", "seats:hamlet held"),)] * 2
    assert first(settings, found) is None


#: A misspelt word, which derived samples follow, and what the proof says.
MISSPELT: dict[str, tuple[dict[str, Any], str]] = {
    "key of a template": (SEATS | {"give_back": ["HINCRBY seats:{shwo} free {qty}"]}, "MISSING_FIELD shwo"),
    "amount": (SEATS | {"give_back": ["HINCRBY seats:{show} free {quantity}"]}, "MISSING_FIELD quantity"),
    "field of the counter": (SEATS | {"give_back": ["HINCRBY seats:{show} fre {qty}"]}, "no such field"),
    "deadline": (SEATS | {"deadline": "ends_at"}, "INVALID_EXPIRY"),
    "unless": (SEATS | {"unless": "EXISTS jobs:{job}"}, "MISSING_FIELD job"),
}


@pytest.mark.parametrize("word", MISSPELT)
def test_a_misspelt_word_fails(shard: Shard, client: redis.Redis, word: str) -> None:
    client.hset("seats:hamlet", mapping={"free": 7, "held": 5})
    hold_seats(client, "h1", 2, AHEAD)
    kind, says = MISSPELT[word]
    failure = first(settings_of(kind), taken(shard, settings_of(kind)))
    assert failure is not None
    assert says in failure.problem


def test_an_entry_may_lose_its_last_field() -> None:
    states = {"active": {"state": "HELD"}, "ended": {"state": "OVER"}}
    settings = settings_of({"name": "lock", "index": "locks", "key": "lock:{id}", **states})
    (kind,) = settings.kinds
    assert [proof for proof in prove(settings, kind, derived_samples(kind)) if proof.failure] == []


def test_what_has_ended_or_is_no_text_is_left_out(shard: Shard, seats: redis.Redis) -> None:
    hold_seats(seats, "sold", 1, DEADLINE, state="SOLD")
    hold_seats(seats, "note", 1, DEADLINE, note=b"\xff")
    seats.zadd("seats:ttl", {"gone": DEADLINE})
    found = taken(shard, settings_of(SEATS))
    assert [sample.id for sample in found.samples] == ["h2", "h1"]
    assert [decision.id for decision in found.left_out] == [b"gone", b"note", b"sold"]


def test_an_entry_that_is_protected_or_extended_is_a_sample_of_that(shard: Shard, seats: redis.Redis) -> None:
    seats.set("jobs:h1", "1")
    seats.hset("seats:hold:h2", "used", AHEAD)
    for kind in (SEATS | {"unless": "EXISTS jobs:{id}"}, scripted(READS, reads=["blocked:*"])):
        settings = settings_of(kind)
        assert first(settings, taken(shard, settings, 2)) is None


def test_a_large_key_is_copied_in_part(shard: Shard, seats: redis.Redis) -> None:
    seats.hset("seats:hamlet", mapping={f"row-{number}": number for number in range(300)})
    seats.zadd("seats:line", {f"c{number:03}": number for number in range(300)})
    seats.sadd("seats:all", *range(300))
    seats.rpush("seats:log", *range(300))
    seats.set("seats:text", "x" * 100_000)
    give_back = [
        *("HINCRBY seats:{show} free {qty}", "ZREM seats:line c299", "SREM seats:all 299"),
        *("RPUSH seats:log {id}", "SET seats:text {id}"),
    ]
    settings = settings_of(SEATS | {"give_back": give_back})
    (sample,) = taken(shard, settings, 1).samples
    assert sample.keys["seats:hamlet"] == {"hash": {"free": "7"}}
    assert sample.keys["seats:line"]["zset"]["c299"] == 299
    assert "299" in sample.keys["seats:all"]["set"]
    assert [len(sample.keys[key][type_]) for key, type_ in (("seats:line", "zset"), ("seats:log", "list"))] == [51, 50]
    assert len(sample.keys["seats:all"]["set"]) <= 51
    assert "seats:text" not in sample.keys
    assert sample.after is not None
    assert set(sample.after.keys.values()) == {ANY}
    assert first(settings, taken(shard, settings, 1)) is None


@pytest.mark.every_redis
def test_the_rights_that_acl_prints_suffice(server: Server, shard: Shard, seats: redis.Redis) -> None:
    settings = settings_of(SEATS | {"give_back": [*SEATS["give_back"], "SREM seats:open {show}", "LPUSH seats:log 1"]})
    seats.sadd("seats:open", "hamlet")
    (user,) = acl_users(settings, settings.all_shards, "all", commands=True)
    seats.execute_command("ACL", "SETUSER", "limited", "reset", ">pw", *user.rules)
    url = SecretStr(server.url.replace("://", "://limited:pw@"))
    limited = Shard(settings.redis.model_copy(update={"url": url}))
    try:
        assert len(taken(limited, settings).samples) == 2
    finally:
        limited.close()
        seats.execute_command("ACL", "DELUSER", "limited")


@pytest.mark.slow
def test_the_command_proves_live_entries(server: Server, seats: redis.Redis, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    line = ["--config", str(config), "prove", "--kind", "seat-hold", "--live", "2"]

    def run(text: str, *options: str) -> Any:
        config.write_text(f'[redis]\nurl = "{server.url}"\n{text}', encoding="utf-8")
        return CliRunner().invoke(main, [*line, *options])

    proved = run(SEAT_HOLD + GIVES_BACK)
    assert proved.exit_code == 0, proved.output
    last = proved.stdout.splitlines()[-1]
    assert last.startswith("seat-hold: all ")
    assert last.endswith(" properties hold, tried with 3 samples, 2 of them live")
    assert seats.zcard("seats:ttl") == 2
    misspelt = run(SEAT_HOLD + GIVES_BACK.replace("{show} free", "{shwo} free"), "--json")
    document = json.loads(misspelt.stdout)
    assert (misspelt.exit_code, document["holds"], document["samples"]) == (1, False, 3)
    assert "MISSING_FIELD shwo" in document["properties"][0]["problem"]
    text = run(SEAT_HOLD + GIVES_BACK.replace("{show} free", "{shwo} free"))
    assert " properties FAILED, tried with 3 samples" in text.stdout.splitlines()[-1]


def test_the_command_without_a_living_entry(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[redis]\nurl = "{server.url}"\n{SEAT_HOLD}', encoding="utf-8")
    client.zadd("seats:ttl", {"gone": DEADLINE})
    line = ["--config", str(config), "prove", "--kind", "seat-hold"]
    ran = CliRunner().invoke(main, [*line, "--live", "2"])
    assert "1 live entries have ended or cannot be copied: gone is not_found" in ran.stderr, ran.output
    assert ran.exit_code == 1
    assert CliRunner().invoke(main, [*line, "--shard", "default"]).exit_code == 2
    assert CliRunner().invoke(main, [*line, "--live", "0"]).exit_code == 2
    config.write_text(f'[redis]\nurl = "redis://127.0.0.1:1"\n{SEAT_HOLD}', encoding="utf-8")
    down = CliRunner().invoke(main, [*line, "--live", "2"])
    assert (down.exit_code, "redis is not available" in down.stderr) == (1, True)


def test_a_terminal_shows_the_verdict_in_colour(tmp_path: Path) -> None:
    (tmp_path / "hold.lua").write_text("function decide(", encoding="utf-8")
    hold = SEAT_HOLD.replace('active = { state = "HELD" }', 'script = "file:hold.lua"\nwrites = ["seats:*"]')
    (tmp_path / "config.toml").write_text(hold, encoding="utf-8")
    (tmp_path / "samples.json").write_text(json.dumps({"samples": [HOLD]}, default=str), encoding="utf-8")
    line = [sys.executable, "-m", "sweeperd", "prove", "--kind", "seat-hold", "--samples", "samples.json"]
    left_out = ("NO_COLOR", "SWEEPERD_CONFIG")
    env = {name: value for name, value in os.environ.items() if name not in left_out} | {"TERM": "xterm"}
    ours, theirs = pty.openpty()
    try:
        ran = subprocess.run(line, cwd=tmp_path, env=env, stdout=theirs, stderr=subprocess.DEVNULL, check=False)
        printed = os.read(ours, 65_536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    last = printed.splitlines()[-1]
    assert ran.returncode == 1
    assert "seat-hold: 1 of 1 properties FAILED, tried with 1 sample" in last
    assert last.startswith("\x1b[1;31m")


# ---- what `after` leaves open

WRITES = """
function decide() return 'expire' end
function plan(hash, now)
  local at = string.format('%d', now)
  return {
    {'HSET', 'seats:hamlet', 'at', at, 'by', 'x' .. at}, {'ZADD', 'seats:line', at, 'ada'}, {'SET', 'seats:last', at},
    {'RPUSH', 'seats:log', at, 'end'}, {'SADD', 'seats:times', at, 'b'},
  }, {at = at}
end
"""
OPEN: dict[str, Any] = {
    "hash": {"expired_at": "{now}", "customer": "*"},
    "keys": {
        "seats:hamlet": {"hash": {"free": 700, "held": 300, "rows": "*", "at": "{now}", "by": "*"}},
        "seats:line": {"zset": {"ada": "{now}"}},
        "seats:last": {"string": "{now}"},
        "seats:log": {"list": ["{now}", "end"]},
        "seats:times": {"set": ["{now}", "*"]},
        "seats:list": "*",
    },
    "event": {"at": "{now}"},
}


def outcome(after: dict[str, Any]) -> str:
    settings = settings_of(scripted(WRITES), reservations=False)
    sample = sample_of(HOLD | {"after": after}, settings.kinds[0])
    failure = next(prove(settings, settings.kinds[0], [sample], shrink=False)).failure
    return failure.problem if failure else ""


def test_after_leaves_open_what_only_the_run_knows() -> None:
    assert outcome(OPEN) == ""


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"hash": {"qty": "{now}"}}, "qty is"),
        ({"hash": {"missing": "*"}}, "missing is nothing"),
        ({"keys": {"seats:list": {"set": ["a", "{now}"]}}}, "seats:list is"),
        ({"keys": {"seats:list": {"set": ["*"]}}}, "seats:list is"),
        ({"keys": {"seats:log": {"list": ["*"]}}}, "seats:log is"),
        ({"keys": {"seats:last": {"hash": {"a": "*"}}}}, "seats:last is"),
        ({"keys": {"seats:none": {"string": "*"}}}, "seats:none is nothing"),
        ({"event": {"other": "*"}}, "the event has"),
    ],
)
def test_what_it_leaves_open_is_no_more_than_that(changed: dict[str, Any], problem: str) -> None:
    merged = {name: part | changed.get(name, {}) if name != "event" else part for name, part in OPEN.items()}
    assert outcome(merged | {"event": changed.get("event", OPEN["event"])}).startswith(problem)


@pytest.mark.parametrize("content", [{"hash": {}}, {"list": []}, {"zset": ["a"]}, {"set": "a"}, {"string": None}, "*"])
def test_a_key_without_content_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="seats:hamlet"):
        sample_of(HOLD | {"keys": {"seats:hamlet": content}}, settings_of(SEATS).kinds[0])
