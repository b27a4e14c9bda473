"""What an operator sees of a shard and its endpoints."""

import json
import tomllib
from typing import Any

import pytest
import redis

from sweeperd.config import EndpointSettings, Settings
from sweeperd.ops import rate
from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.rate import Rate, read_rates
from sweeperd.ops.status import Due, ShardStatus, read_status
from sweeperd.outbox import CircuitNote
from sweeperd.outbox.replays import ReplaySpan, begin, count_events
from sweeperd.store import Shard
from tests.support.builders import endpoint_status
from tests.support.harness import eventually, reserve, server_time
from tests.support.kind_settings import SEAT_HOLD


def settings(*endpoints: str, **sections: object) -> Settings:
    listed = [{"name": name, "url": "http://127.0.0.1:9/"} for name in endpoints]
    return Settings.model_validate({"webhooks": {"endpoints": listed}} | sections)


def the_endpoint(status: ShardStatus, name: str) -> EndpointDocument:
    return next(endpoint for endpoint in status.endpoints if endpoint.endpoint == name)


def test_an_empty_shard(shard: Shard) -> None:
    status = read_status(settings("billing"), shard)
    assert (status.reachable, status.due) == (True, Due())
    (kind,) = status.kinds
    assert (kind.rate, kind.rate_window_seconds, kind.tick, kind.sweeping) == (0.0, 60.0, None, "")
    assert (kind.tick_age_seconds, kind.quarantined) == (None, 0)
    assert (status.empty, kind.last_walk, status.dead_letters, kind.alive) == (True, None, 0, 0)
    assert status.endpoints == (endpoint_status("billing", state="stopped"),), "no process delivers"


def test_what_is_overdue_and_what_is_in_grace(shard: Shard, client: redis.Redis) -> None:
    reserve(client, ["a", "b"], overdue_by=10_000, grace=5_000)
    reserve(client, ["grace"], overdue_by=-3_600_000, grace=3_700_000)
    reserve(client, ["later"], overdue_by=-3_600_000)
    client.zadd("reservation:ttl", {"orphan": server_time(client) - 20_000})
    due = read_status(settings(), shard).due
    assert (due.entries, due.in_grace, due.overdue, due.exact) == (4, 1, 3, True)
    assert due.oldest_seconds == pytest.approx(100, abs=15), "the one in grace"
    assert due.oldest_overdue_seconds == pytest.approx(20, abs=15), "not the one in grace"


def test_the_default_grace_counts(shard: Shard, client: redis.Redis) -> None:
    reserve(client, ["a"], overdue_by=10_000)
    client.hdel("reservation:res_a", "grace_ms")
    assert read_status(settings(), shard).due.overdue == 1
    due = read_status(settings(sweep={"grace": "10m"}), shard).due
    assert (due.in_grace, due.overdue, due.oldest_overdue_seconds) == (1, 0, 0.0)


def test_a_large_backlog_is_estimated_from_a_sample(shard: Shard, client: redis.Redis) -> None:
    for number in range(100):
        grace = number % 2
        if grace:
            reserve(client, [f"r{number}"], overdue_by=-3_600_000 - number * 1000, grace=3_700_000)
        else:
            reserve(client, [f"r{number}"], overdue_by=100_000)
    due = read_status(settings(), shard, sample=20).due
    assert (due.entries, due.exact) == (100, False)
    assert due.in_grace + due.overdue == 100
    assert 30 <= due.in_grace <= 70
    assert 100 <= due.oldest_overdue_seconds < 160


def test_nothing_is_changed_by_looking(shard: Shard, client: redis.Redis) -> None:
    reserve(client, ["a", "b"])
    client.zadd("reservation:ttl", {"orphan": 1})
    before = {key: client.dump(key) for key in client.keys("*")}
    read_status(settings("billing"), shard)
    assert {key: client.dump(key) for key in client.keys("*")} == before


def test_quarantine_and_dead_letters_are_counted(shard: Shard, client: redis.Redis) -> None:
    client.zadd("sweeperd:quarantine", {"x": 1, "y": 2})
    for number in range(1203):
        name = "billing" if number % 3 else "gone\x1b[31m"
        client.xadd("sweeperd:dead-letters", {"event": "1-1", "endpoint": name, "reason": "HTTP 500", "attempts": 3})
    status = read_status(settings("billing", "audit"), shard)
    assert (status.reservations.quarantined, status.dead_letters, status.dead_letters_counted) == (2, 1203, True)
    assert [(e.endpoint, e.dead_letters, e.state) for e in status.endpoints] == [
        ("billing", 802, "stopped"),
        ("audit", 0, "stopped"),
        ("gone\x1b[31m", 401, "unknown"),
    ]


def test_dead_letters_are_counted_up_to_a_limit(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeperd.outbox.dead_letters.COUNTED", 1000)
    for _ in range(1100):
        client.xadd("sweeperd:dead-letters", {"endpoint": "billing"})
    status = read_status(settings("billing"), shard)
    assert (status.dead_letters, status.dead_letters_counted) == (1100, False)
    billing = the_endpoint(status, "billing")
    assert (billing.dead_letters, billing.dead_letters_counted) == (1000, False)


def test_what_the_board_and_the_circuits_say(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    client.hset("sweeperd:endpoints", "gone", json.dumps({"paused_at": now, "reason": "HTTP 410"}))
    client.hset("sweeperd:endpoints", "busy", json.dumps({"muted_until": now + 60_000}))
    circuit = CircuitNote(at=now, probe_at=now + 1000, failures=7, reason="HTTP 500")
    client.hset("sweeperd:circuits", "dead@host-1", circuit.model_dump_json())
    client.hset("sweeperd:circuits", "stale@host-1", circuit.model_copy(update={"at": now - 61_000}).model_dump_json())
    client.hset("sweeperd:circuits", "odd@host-1", "{")
    status = read_status(settings("gone", "busy", "dead", "stale", "odd"), shard)
    assert [endpoint.state for endpoint in status.endpoints] == ["paused", "muted", "open", "stopped", "stopped"]
    gone, busy, dead, stale, _ = status.endpoints
    assert (gone.paused_at, gone.paused_reason) == (now, "HTTP 410")
    assert busy.muted_seconds == pytest.approx(60, abs=20)
    assert (dead.failures, dead.failure) == (7, "HTTP 500")
    assert (stale.failures, stale.failure) == (0, "")


def test_an_endpoint_that_is_missing_from_the_settings_of_the_daemons_is_stopped(
    shard: Shard, client: redis.Redis
) -> None:
    now = server_time(client)
    daemon = {"process": "a", "at": now, "sweeps": True, "delivers": True}
    client.hset("sweeperd:processes", "a-0123abcd", json.dumps(daemon))
    client.hset("sweeperd:circuits", "old@a", CircuitNote(process="a", at=now, reason="NOPERM").model_dump_json())
    old, new = read_status(settings("old", "new"), shard).endpoints
    assert [(each.state, each.warning) for each in (old, new)] == [
        ("delivering", "cannot deliver on 1 of 1: NOPERM"),
        ("stopped", ""),
    ]


def test_the_replay_of_an_endpoint_that_is_gone_is_shown(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    client.xadd("sweeperd:events", {"tenant": "acme", "expired_at": now - 1000})
    counted = count_events(
        shard, EndpointSettings.model_validate({"name": "gone", "url": "http://x"}), ReplaySpan(0, now)
    )
    assert begin(shard, counted)[0] == "begun"
    (gone,) = read_status(Settings(), shard).endpoints
    assert (gone.endpoint, gone.state, gone.replay is not None and gone.replay.left) == ("gone", "unknown", 1)


def test_an_endpoint_falls_behind_if_what_waits_takes_longer_than_max_age(shard: Shard, client: redis.Redis) -> None:
    endpoints: list[dict[str, object]] = [
        {"name": name, "url": "http://127.0.0.1:9/"} for name in ("single", "batches", "idle")
    ]
    endpoints[1] |= {"batch_size": 50}
    endpoints[1] |= {"max_age": "60s"}
    webhooks = {"max_age": "60s", "endpoints": endpoints}
    for name in ("single", "batches", "idle"):
        client.xgroup_create("sweeperd:events", name, mkstream=True)
    for _ in range(100):
        client.xadd("sweeperd:events", {"tenant": "acme"})

    def behind(rate: float, **more: str) -> list[EndpointDocument]:
        note = CircuitNote(at=server_time(client), rate=rate, rate_window=60.0)
        for name in ("single", "batches"):
            client.hset("sweeperd:circuits", f"{name}@host-1", note.model_dump_json())
        found = read_status(Settings.model_validate({"webhooks": webhooks | more}), shard).endpoints
        assert {each.state for each in found} == {"stopped"}
        assert [bool(each.warning) for each in found] == [each.falling_behind for each in found]
        return [each for each in found if each.falling_behind]

    single, batches = behind(0.5)
    assert ("3 m 20 s" in single.warning, "up to 50" in batches.warning) == (True, True)
    assert [each.endpoint for each in behind(0.5, max_age="201s")] == ["batches"], "it has its own max_age"
    assert behind(5.0) == []
    assert behind(0.0) == [], "how long it takes is not known"


def test_a_key_of_another_type_is_an_answer_too(shard: Shard, client: redis.Redis) -> None:
    client.set("reservation:ttl", "text")
    assert "WRONGTYPE" in read_status(settings(), shard).error


def test_how_long_what_waits_takes(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    for number in range(60):
        client.xadd("sweeperd:events", {"id": str(number), "tenant": "acme"})
    for name in ("fast", "still", "paused"):
        client.xgroup_create("sweeperd:events", name, id="0")
    note = CircuitNote(process="a", at=now, rate=3.0, rate_window=60.0)
    for name, fast in (("fast", 3.0), ("still", 0.0), ("paused", 3.0)):
        client.hset("sweeperd:circuits", f"{name}@a", note.model_copy(update={"rate": fast}).model_dump_json())
    client.hset("sweeperd:circuits", "fast@b", note.model_copy(update={"process": "b"}).model_dump_json())
    client.hset("sweeperd:endpoints", "paused", json.dumps({"paused_at": now, "reason": "410"}))
    status = read_status(settings("fast", "still", "paused"), shard)
    assert [endpoint.empty_in_seconds for endpoint in status.endpoints] == [10.0, None, None]
    assert (status.endpoints[0].rate, status.endpoints[0].rate_window_seconds) == (6.0, 60.0)
    reserve(client, [f"r{number}" for number in range(30)])
    overdue = read_status(settings(), shard)
    assert overdue.reservations.rate == 1.0, "the events above, within the last minute"
    assert overdue.reservations.empty_in_seconds == 30.0


def test_who_sweeps_now(shard: Shard, client: redis.Redis) -> None:
    client.set("sweeperd:lease:sweep", "host-a-17-0123456789abcdef")
    assert read_status(settings(), shard).reservations.sweeping == "host-a-17"


def test_a_rate_is_right_during_a_drain_and_after_it(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    for number in range(120):
        client.xadd("sweeperd:events", {"id": str(number)}, id=f"{now - 30_000 + number}-0")
    client.xadd("sweeperd:events", {"id": "again", "only_for": "billing"}, id=f"{now - 10}-0")
    assert read_rates(shard, ["reservations"])["reservations"] == Rate(2.0, 60.0)
    client.xtrim("sweeperd:events", maxlen=0)
    assert read_rates(shard, ["reservations"])["reservations"] == Rate(0.0, 60.0)


def test_each_kind_has_its_own_rate(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    for number in range(90):
        fields: dict[Any, Any] = {"id": str(number), "kind": "seat-hold", "tenant": "acme"}
        if number % 3 == 0:
            del fields["kind"]
        client.xadd("sweeperd:events", fields, id=f"{now - 30_000 + number}-0")
    found = read_rates(shard, ["reservations", "seat-hold", "idle"])
    assert found == {"reservations": Rate(0.5, 60.0), "seat-hold": Rate(1.0, 60.0), "idle": Rate(0.0, 60.0)}


def test_the_window_is_shorter_where_much_happens(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate, "COUNTED", 50)
    now, pipeline = server_time(client), client.pipeline()
    for number in range(200):
        pipeline.xadd("sweeperd:events", {"id": str(number)}, id=f"{now - 2_000 + 10 * number}-0")
    pipeline.execute()
    found = read_rates(shard, ["reservations"])["reservations"]
    assert 0.5 <= found.window_seconds < 30
    assert found.per_second == pytest.approx(50 / found.window_seconds, rel=0.01)


def test_events_that_come_while_the_status_is_read_do_not_shrink_the_window(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate, "COUNTED", 50)
    read_clock = shard.read_clock

    def read_and_drain() -> int:
        now = read_clock()
        for number in range(200):
            client.xadd("sweeperd:events", {"id": str(number)}, id=f"{now + number}-0")
        eventually(lambda: server_time(client) > now + 200)
        return now

    monkeypatch.setattr(shard, "read_clock", read_and_drain)
    found = read_status(settings(), shard).reservations
    assert found.rate_window_seconds >= 0.05
    assert found.rate is not None
    assert found.rate <= 50 / 0.05


def test_a_clock_that_was_set_back_has_no_rate(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate, "COUNTED", 50)
    ahead = server_time(client) + 3_600_000
    for number in range(60):
        client.xadd("sweeperd:events", {"id": str(number)}, id=f"{ahead + number}-0")
    assert read_rates(shard, ["reservations"])["reservations"].known is None


def test_an_empty_database_is_noticed(shard: Shard, client: redis.Redis) -> None:
    assert read_status(settings(), shard).empty
    client.set("something else", 1)
    assert read_status(settings(), shard).empty
    reserve(client, ["ended"])
    client.delete("reservation:ttl")
    assert not read_status(settings(), shard).empty


@pytest.mark.parametrize("key", ["sweeperd:quarantine", "sweeperd:quarantine:seat-hold"])
def test_a_quarantine_is_not_empty(shard: Shard, client: redis.Redis, key: str) -> None:
    client.zadd(key, {"broken": 1})
    assert not read_status(settings(**tomllib.loads(SEAT_HOLD)), shard).empty


@pytest.mark.every_redis
def test_a_first_run_makes_no_database_look_right(shard: Shard, client: redis.Redis) -> None:
    client.xgroup_create("sweeperd:events", "billing", mkstream=True)
    assert read_status(settings(), shard).empty, "a daemon creates its groups at once"
    client.xadd("sweeperd:events", {"id": "a"})
    client.xtrim("sweeperd:events", maxlen=0)
    assert not read_status(settings(), shard).empty, "something has expired here"
