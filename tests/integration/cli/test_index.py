"""`sweeperd index` adds existing entries to the index. If the score is the deadline, a TTL is a renewal."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.integration.cli.conftest import Configured
from tests.integration.cli.test_schemas import check
from tests.integration.conftest import Ran, Sweeperd
from tests.support.harness import server_time
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.servers import Server
from tests.support.streams import entries

PAST, FUTURE = 1_700_000_000_000, 4_000_000_000_000
#: Sessions of which the service says only when they end by itself, as a TTL.
SESSIONS = """
[reservations]
enabled = false
[[kinds]]
name = "session"
index = "sessions:ttl"
key = "session:{{id}}"
retention = "0s"
{form}
give_back = ["HINCRBY online count -1"]
event = ["user"]
"""

Make = Callable[[str], Configured]


@pytest.fixture
def configured(server: Server, client: redis.Redis, sweeperd: Sweeperd, tmp_path: Path) -> Make:
    return lambda text: Configured(client, sweeperd, tmp_path / "config.toml", server.url, text)


def indexed(kinds: Configured, *arguments: str) -> dict[str, object]:
    ran = kinds.run("index", "--json", *arguments)
    assert ran.code == 0, ran.err
    check("index", ran.document)
    (shard,) = ran.document["shards"]
    return dict(shard)


def actions(kinds: Configured) -> list[tuple[str, str, int]]:
    ran: Ran = kinds.run("actions", "--json")
    return [(each["action"], each["target"], each["count"]) for each in ran.document["actions"]]


def test_each_outcome_is_counted_and_only_living_entries_are_added(configured: Make, client: redis.Redis) -> None:
    kinds = configured(SEAT_HOLD)
    for entry, deadline in (
        ("due", PAST),
        ("open", FUTURE),
        ("listed", FUTURE),
        ("sold", PAST),
        ("seconds", 1_700_000_000),
    ):
        hold_seats(client, entry, 1, deadline)
    hold_seats(client, "odd", 1, PAST, expires_at="soon")
    kinds.sweep()  # the odd one goes to quarantine, the overdue ones expire
    for entry in ("due", "sold", "seconds"):
        client.hset(f"seats:hold:{entry}", mapping={"state": "HELD", "expires_at": PAST})
        client.hdel(f"seats:hold:{entry}", "expired_at", "quarantined_at", "quarantine_reason")
        client.persist(f"seats:hold:{entry}")
    client.hset("seats:hold:sold", "state", "SOLD")
    client.hset("seats:hold:seconds", "expires_at", 1_700_000_000)
    client.zrem("sweeperd:quarantine:seat-hold", "seconds")
    client.zrem("seats:ttl", "due", "open", "sold", "seconds")
    client.hset("seats:hold:undated", "state", "HELD")
    client.set("seats:hold:text", "not a hash")

    before = {key: client.dump(key) for key in client.scan_iter()}
    found = indexed(kinds, "--kind", "seat-hold", "--dry-run")
    assert {key: client.dump(key) for key in client.scan_iter()} == before
    assert found["counts"] == {
        "to_index": 2, "indexed": 1, "ended": 1, "quarantined": 1, "wrong_deadline": 2, "malformed": 1,
    }  # fmt: skip
    assert sorted(found["ids"]["to_index"]) == ["due", "open"]  # type: ignore[index]
    assert (found["overdue"], found["added"]) == (1, 0)

    assert indexed(kinds, "--kind", "seat-hold", "--match", "o*", "--yes")["added"] == 1
    assert "default: 1 entry added to seats:ttl" in kinds.run("index", "--kind", "seat-hold", "--yes").out
    assert client.zrange("seats:ttl", 0, -1, withscores=True) == [
        (b"due", PAST), (b"listed", FUTURE), (b"open", FUTURE),
    ]  # fmt: skip
    assert indexed(kinds, "--kind", "seat-hold", "--yes")["added"] == 0, "run again, nothing is left"
    assert actions(kinds) == [("index", "seat-hold", 1)] * 2


def test_an_unknown_state_is_not_added_and_the_setting_is_named(configured: Make, client: redis.Redis) -> None:
    kinds = configured(SEAT_HOLD.replace('"HELD"', '"held"'))
    hold_seats(client, "h1", 1, FUTURE)
    client.delete("seats:ttl")
    assert (
        "no key seats:hold:{id} with an id like b*"
        in kinds.run("index", "--kind", "seat-hold", "--match", "b*", "--dry-run").out
    )
    ran = kinds.run("index", "--kind", "seat-hold", "--yes")
    assert "1 unknown" in ran.out
    assert "`active`" in ran.out
    assert not client.exists("seats:ttl")


@pytest.mark.parametrize(("form", "unit"), [("hash", "ms"), ("json", "ms"), ("hash", "s")])
def test_a_ttl_becomes_the_deadline_and_later_a_renewal(
    configured: Make, client: redis.Redis, form: str, unit: str
) -> None:
    entry_form = "" if form == "hash" else 'entry = "json"'
    kinds = configured(SESSIONS.format(form=f'{entry_form}\nunit = "{unit}"'))
    ms = 1000 if unit == "s" else 1
    client.hset("online", "count", 3)
    for entry in ("a", "b", "c"):
        if form == "hash":
            client.hset(f"session:{entry}", "user", entry)
        else:
            client.set(f"session:{entry}", json.dumps({"user": entry}))
    ends = (server_time(client) // 1000 + 3600) * 1000 + 499
    client.pexpireat("session:a", ends)
    client.pexpire("session:b", 3_600_000)
    client.set("session:lock", "token", px=3_600_000)
    found = indexed(kinds, "--kind", "session", "--yes")
    assert found["counts"] == {"to_index": 2, "no_deadline": 1, "malformed": 1}
    assert found["added"] == 2
    assert client.pttl("session:lock") > 0, "what is not an entry keeps its TTL"
    assert client.pttl("session:a") == client.pttl("session:b") == -1
    score = client.zscore("sessions:ttl", "a")
    assert score is not None
    assert score * ms == pytest.approx(ends, abs=400), "to the millisecond, but for the time between two commands"
    assert float(f"{score:.3f}") == score

    # The service renews one that is due by then: it has the TTL as its next deadline, and is persistent again.
    client.zadd("sessions:ttl", {"a": PAST / ms, "b": PAST / ms})
    client.pexpire("session:a", 7_200_000)
    kinds.sweep()
    assert client.hget("online", "count") == b"2"
    score = client.zscore("sessions:ttl", "a")
    assert score is not None
    assert score * ms == pytest.approx(server_time(client) + 7_200_000, abs=60_000)
    assert client.pttl("session:a") == -1
    assert [entry[b"id"] for _, entry in entries(client, "sweeperd:events")] == [b"b"]
    assert kinds.run("reconcile", "--kind", "session").code == 1, "c has neither index entry nor TTL"
    client.pexpire("session:c", 3_600_000)
    assert kinds.run("reconcile", "--kind", "session", "--repair", "--yes").code == 0
    assert client.zscore("sessions:ttl", "c")
    assert client.pttl("session:c") == -1
    assert client.pttl("session:lock") > 0


def test_a_user_without_the_right_changes_nothing(configured: Make, server: Server, client: redis.Redis) -> None:
    kinds = configured(SESSIONS.format(form=""))
    client.hset("session:a", "user", "a")
    client.pexpire("session:a", 3_600_000)
    client.zadd("sessions:ttl", {"a": PAST})
    client.execute_command("ACL", "SETUSER", "default", "-persist")
    try:
        kinds.sweep()
        assert client.zscore("sessions:ttl", "a") == PAST
        client.zrem("sessions:ttl", "a")
        kinds.run("index", "--kind", "session", "--yes")
        assert client.zscore("sessions:ttl", "a") is None
        assert client.pttl("session:a") > 0
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+persist")
