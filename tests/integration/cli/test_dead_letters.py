"""`sweeperd dead-letters`: what is listed, what is changed, what is printed."""

import json
import re
from typing import Any

import pytest
import redis

from sweeperd.outbox import EndpointStateStore, message
from sweeperd.outbox.event import ONLY_FOR
from sweeperd.store import Shard
from tests.integration.cli.conftest import HOSTILE, Run, give_up
from tests.support.servers import Server
from tests.support.streams import append, entries

EVENTS, DEAD = "sweeperd:events", "sweeperd:dead-letters"
ENDPOINTS = [{"name": "billing", "url": "http://127.0.0.1:1/"}, {"name": "audit", "url": "http://127.0.0.1:1/"}]


def listed(invoke: Run, *arguments: str, **settings: Any) -> list[dict[str, Any]]:
    result = invoke("dead-letters", "list", "--json", *arguments, **({"endpoints": ENDPOINTS} | settings))
    assert result.exit_code == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)["dead_letters"]
    return found


def reservations(letters: list[dict[str, Any]]) -> list[str]:
    return [letter["event"]["data"]["reservation_id"] for letter in letters]


def test_list(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    one, two = give_up(shard, ["one", "two"], reason="no answer in time")
    newest, oldest = listed(invoke)
    assert (oldest["id"], newest["id"]) == (one.decode(), two.decode())
    assert oldest["event"] == json.loads(message(b"", entries(client, EVENTS)[0][1]).body)
    assert (oldest["endpoint"], oldest["reason"], oldest["attempts"]) == ("billing", "no answer in time", 1)
    assert 0 <= oldest["age_seconds"] < 60
    head, first, _ = invoke("dead-letters", "list").stdout.splitlines()
    row = dict(zip(head.split("\t"), first.split("\t"), strict=True))
    assert (row["id"], row["endpoint"], row["tenant"], row["reservation"]) == (two.decode(), "billing", "acme", "two")
    assert row["event_id"] == newest["event"]["event_id"]


def test_list_is_filtered_and_limited(invoke: Run, shard: Shard) -> None:
    give_up(shard, ["a", "b"])
    give_up(shard, ["c"], endpoint="audit")
    give_up(shard, ["d"], tenant="globex")
    assert reservations(listed(invoke)) == ["d", "c", "b", "a"]
    assert reservations(listed(invoke, "--endpoint", "billing")) == ["d", "b", "a"]
    assert reservations(listed(invoke, "--tenant", "acme")) == ["c", "b", "a"]
    assert reservations(listed(invoke, "--endpoint", "billing", "--tenant", "acme")) == ["b", "a"]
    result = invoke("dead-letters", "list", "--limit", "2", "--json")
    assert json.loads(result.stdout)["truncated"]
    assert reservations(json.loads(result.stdout)["dead_letters"]) == ["d", "c"]
    assert "--limit" in result.stderr
    assert invoke("dead-letters", "list", "--limit", "4").stderr == ""


def test_an_endpoint_that_is_configured_no_more_can_be_asked_for(invoke: Run, shard: Shard) -> None:
    give_up(shard, ["a"], endpoint="old")
    assert reservations(listed(invoke, "--endpoint", "old")) == ["a"]


def test_replay(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    one, _, three = give_up(shard, ["one", "two", "three"])
    ids = one.decode(), three.decode()
    result = invoke("dead-letters", "replay", *ids, "--verbose", "--yes", endpoints=ENDPOINTS)
    assert (result.exit_code, result.stderr) == (0, "")
    first, *_, last = result.stdout.splitlines()
    assert re.search(rf"^{one.decode()} .*billing.* evt_[0-9a-f]{{32}}, .* one .* acme: replayed$", first)
    assert last == "2 replayed"
    assert [fields[b"id"] for _, fields in entries(client, EVENTS) if ONLY_FOR in fields] == [b"one", b"three"]
    assert reservations(listed(invoke)) == ["two"]


def test_a_letter_whose_id_is_a_number_is_named(invoke: Run, client: redis.Redis) -> None:
    letter = {"endpoint": "billing", "event": "1-1", "id": "one", "type": "other", "data": '{"reservation_id": 7}'}
    append(client, DEAD, letter)
    result = invoke("dead-letters", "replay", "--all", "--verbose", "--yes", endpoints=ENDPOINTS)
    assert (result.exit_code, "reservation 7: " in result.stdout) == (1, True), result.output


def test_a_letter_of_a_kind_names_its_entry(invoke: Run, client: redis.Redis) -> None:
    letter = {"endpoint": "billing", "event": "1-1", "id": "h1", "type": "seat.released", "data": '{"id": "h1"}'}
    append(client, DEAD, letter)
    head, row = invoke("dead-letters", "list").stdout.splitlines()
    assert dict(zip(head.split("\t"), row.split("\t"), strict=True))["reservation"] == "h1"
    result = invoke("dead-letters", "replay", "--all", "--verbose", "--yes", endpoints=ENDPOINTS)
    assert ", reservation h1: " in result.stdout, result.output


@pytest.mark.parametrize("verb", ["replay", "drop"])
@pytest.mark.parametrize(
    ("which", "left"),
    [
        (["--all"], []),
        (["--endpoint", "billing"], ["c"]),
        (["--tenant", "globex"], ["c", "b", "a"]),
        (["--tenant", "acme", "--endpoint", "audit"], ["d", "b", "a"]),
        (["--tenant", r"glob\x65x"], ["d", "c", "b", "a"]),  # no tenant of this name
    ],
)
def test_which_are_changed(verb: str, which: list[str], left: list[str], invoke: Run, shard: Shard) -> None:
    give_up(shard, ["a", "b"])
    give_up(shard, ["c"], endpoint="audit")
    give_up(shard, ["d"], tenant="globex")
    result = invoke("dead-letters", verb, *which, "--yes", "--json", endpoints=ENDPOINTS)
    assert (result.exit_code, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    done = {"replay": "replayed", "drop": "dropped"}[verb]
    assert told[done] == 4 - len(left) == len(told["dead_letters"])
    assert (told["left"], told["down"]) == (0, [])
    assert {letter["result"] for letter in told["dead_letters"]} <= {done}
    assert set(reservations(told["dead_letters"])) == set("abcd") - set(left), "what was dropped is printed whole"
    assert reservations(listed(invoke)) == left


def test_a_drop_touches_nothing_else(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    give_up(shard, ["a"])
    before = entries(client, EVENTS)
    assert invoke("dead-letters", "drop", "--all", "--yes").exit_code == 0
    assert entries(client, EVENTS) == before
    assert client.xlen(DEAD) == 0


def test_what_would_not_reach_its_endpoint_is_not_replayed(invoke: Run, shard: Shard, client: redis.Redis) -> None:
    give_up(shard, ["a"], endpoint="old")
    give_up(shard, ["b"], endpoint="billing")
    give_up(shard, ["c"], endpoint="billing", tenant="globex")
    client.xadd(DEAD, {"event": "5-0", "endpoint": "billing", "reason": "gone", "attempts": "2"})
    client.xadd(DEAD, {"event": "5-0", "endpoint": "new", "reason": "gone", "attempts": "2", "id": "e"})
    endpoints: list[dict[str, Any]] = [
        {"name": "billing", "url": "http://127.0.0.1:1/", "tenants": ["acme"]},
        {"name": "new", "url": "http://127.0.0.1:1/", "tenants": None},
    ]
    result = invoke("dead-letters", "replay", "--all", "--yes", "--json", endpoints=endpoints)
    told = json.loads(result.stdout)
    assert (result.exit_code, told["replayed"], told["left"]) == (1, 1, 4)
    problems = [letter.get("problem") for letter in told["dead_letters"]]
    named = ["configured", None, "tenant", "lost", "consumer group"]
    assert all(
        (name is None) == (told is None) and (name or "") in (told or "")
        for name, told in zip(named, problems, strict=True)
    )
    assert client.xlen(DEAD) == 4
    again = invoke("dead-letters", "replay", "--all", "--yes", endpoints=endpoints)
    first, *problems = again.stdout.splitlines()
    assert (first, again.exit_code, len(problems)) == ("0 replayed, 4 unchanged", 1, 4), "a line for each reason"
    assert all(problem.startswith("1 unchanged: ") for problem in problems)


@pytest.mark.parametrize("which", ["id", "--all"])
@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_what_is_gone_after_the_question_is_not_passed_over(
    verb: str, which: str, invoke: Run, shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operator was faster, or Redis has lost its data: nothing was done."""
    (letter,) = give_up(shard, ["a"])
    monkeypatch.setattr("sweeperd.cli.output.Output.confirm", lambda *_, **__: client.delete(DEAD))
    arguments = ("dead-letters", verb, letter.decode() if which == "id" else which, "--yes")
    result = invoke(*arguments, endpoints=ENDPOINTS)
    assert (result.exit_code, "1 unchanged: another command" in result.stdout) == (1, True), result.output
    (letter,) = give_up(shard, ["b"])
    told = json.loads(invoke(*arguments[:2], letter.decode(), "--yes", "--json", endpoints=ENDPOINTS).stdout)
    assert told["left"] == 1


def test_a_paused_endpoint_gets_it_later(invoke: Run, shard: Shard) -> None:
    give_up(shard, ["a"])
    EndpointStateStore(shard).pause("billing", "moving house")
    result = invoke("dead-letters", "replay", "--all", "--yes", endpoints=ENDPOINTS)
    assert (result.exit_code, "`sweeperd endpoints resume billing`" in result.stderr) == (0, True)


# ---- shards


def test_an_id_on_two_shards(invoke: Run, server: Server, client: redis.Redis) -> None:
    for name in "ab":
        client.xadd(f"{name}:{DEAD}", {"event": "1-0", "endpoint": "billing", "reason": "x", "id": name}, id="7-0")
    shards = [{"name": name, "url": server.url, "prefix": f"{name}:"} for name in "ab"]
    result = invoke("dead-letters", "drop", "7-0", "--yes", shards=shards)
    assert (result.exit_code, client.xlen(f"a:{DEAD}")) == (2, 1)
    assert "a and b" in result.stderr
    assert invoke("dead-letters", "drop", "7-0", "--yes", "--shard", "b", shards=shards).exit_code == 0
    assert (client.xlen(f"a:{DEAD}"), client.xlen(f"b:{DEAD}")) == (1, 0)


# ---- bad input


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_an_unknown_id(verb: str, invoke: Run, shard: Shard) -> None:
    (letter,) = give_up(shard, ["a"])
    result = invoke("dead-letters", verb, "1-1", letter.decode(), letter.decode(), "--yes", endpoints=ENDPOINTS)
    assert (result.exit_code, result.stderr.count("\n"), "1-1" in result.stderr) == (1, 1, True)
    assert result.stdout.splitlines()[-1].startswith("1 ")


def test_there_is_none(invoke: Run) -> None:
    assert invoke("dead-letters", "drop", "--all").exit_code == 0, "nothing to ask about"
    assert invoke("dead-letters", "list").stdout.count("\n") == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name: str, invoke: Run, shard: Shard, client: redis.Redis) -> None:
    letter: dict[Any, Any] = {
        "event": "1-0",
        "endpoint": name,
        "reason": name,
        "attempts": name,
        "id": name,
        "tenant": name,
    }
    client.xadd(DEAD, letter, id="7-0")
    outputs = [
        invoke("dead-letters", "list"),
        invoke("dead-letters", "list", "--json"),
        invoke("dead-letters", "replay", "7-0", "--yes"),
        invoke("dead-letters", "replay", "7-0", "--yes", "--json"),
        invoke("dead-letters", "replay", "7-0"),
        invoke("dead-letters", "drop", "7-0", "--yes"),
    ]
    assert [result.exit_code for result in outputs] == [0, 0, 1, 1, 2, 0]
    for result in outputs:
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", result.stdout + result.stderr)
    assert outputs[0].stdout.count("\n") == 2
    assert json.loads(outputs[1].stdout)["dead_letters"][0]["event"]["tenant_id"] == name
    assert json.loads(outputs[3].stdout)["dead_letters"][0]["endpoint"] == name
