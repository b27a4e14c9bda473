"""`sweeperd quarantine`: list, requeue, dismiss."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.ops.quarantine import NOT_THERE, Quarantine, QuarantineChange, QuarantineFilter, SetAside
from sweeperd.store import Shard
from sweeperd.sweep.reservations import REASONS
from sweeperd.text import rfc3339
from tests.integration.cli.conftest import Run
from tests.integration.conftest import HOSTILE, Sweeperd, only_printable
from tests.lua.builders import DEADLINE, NOW, RID, World
from tests.support.acl import limited
from tests.support.builders import reservations_kind, run_script, script_source
from tests.support.fixtures import full
from tests.support.harness import on_terminal, reserve, server_time
from tests.support.servers import Server

Damage = Callable[[World], object]

#: Some reasons: what sets an entry aside for it, and a repair.
BROKEN: dict[str, tuple[Damage, Damage]] = {
    "WRONG_TYPE": (
        lambda world: (world.client.rename("reservation:res_r1", "kept"), world.client.set("reservation:res_r1", "x")),
        lambda world: world.client.rename("kept", "reservation:res_r1"),
    ),
    "INVALID_STATE": (lambda world: world.reservation(state="LIMBO"), lambda world: world.reservation()),
    "INVALID_BUDGET": (
        lambda world: world.budget("tenant:acme", reserved="x"),
        lambda world: world.budget("tenant:acme"),
    ),
    "BUDGET_OVERFLOW": (
        lambda world: world.budget("tenant:acme", remaining=2**63 - 1),
        lambda world: world.budget("tenant:acme"),
    ),
}


def broken(client: redis.Redis, count: int, reason: str = "INVALID_STATE", tenant: str = "acme") -> list[str]:
    """As many reservations, set aside."""
    world = World(client)
    ids = [f"{reason}-{tenant}-{number}" for number in range(count)]
    with world.batch() as batch:
        for number, rid in enumerate(ids):
            batch.reservation(
                rid.encode(), indexed=False, state="LIMBO", tenant=tenant, quarantine_reason=reason, quarantined_at=1
            )
            batch.client.zadd("sweeperd:quarantine", {rid: 1_700_000_000_000 + number})
    return ids


def repair(client: redis.Redis, ids: list[str]) -> None:
    pipeline = client.pipeline()
    for rid in ids:
        pipeline.hset(f"reservation:res_{rid}", "state", "COMMITTED")
    pipeline.execute()


def test_the_reasons_are_those_of_the_script() -> None:
    text = script_source("sweep/expire")
    given = set(re.findall(r"set_aside\('(\w+)'", text)) | set(re.findall(r"return nil, nil, '(\w+)'", text))
    assert set(REASONS) == given


# list


def test_list(sweeperd: Sweeperd, world: World) -> None:
    world.reservation(state="LIMBO")
    world.expire()
    world.client.zrem("sweeperd:quarantine", "earlier")
    (row,) = sweeperd("quarantine", "list").rows
    assert re.fullmatch(r"\d\.\d s", row.pop("set aside"))
    assert row == {
        "shard": "default",
        "id": "r1",
        "reason": "INVALID_STATE",
        "tenant": "acme",
        "holds": "100 TOKENS",
        "state": "LIMBO",
        "kind": "reservations",
    }
    (shard,) = sweeperd("quarantine", "list", "--json").document["shards"]
    (entry,) = shard["entries"]
    assert 0 <= entry.pop("age_seconds") < 20
    assert entry.pop("quarantined_at") == rfc3339(int(world.client.zscore("sweeperd:quarantine", RID)))
    assert entry == {
        "kind": "reservations",
        "id": "r1",
        "reason": "INVALID_STATE",
        "tenant": "acme",
        "amount": "100",
        "unit": "TOKENS",
        "state": "LIMBO",
    }
    assert (shard["shard"], shard["quarantined"], shard["truncated"]) == ("default", 1, False)


def test_the_list_is_paged_filtered_and_limited(sweeperd: Sweeperd, client: redis.Redis) -> None:
    ids = broken(client, 130) + broken(client, 3, "INVALID_BUDGET") + broken(client, 3, "INVALID_STATE", "other")
    assert {row["id"] for row in sweeperd("quarantine", "list", "--limit", "1000").rows} == set(ids)
    assert len(sweeperd("quarantine", "list").rows) == 100
    limited = sweeperd("quarantine", "list", "--limit", "5")
    assert [row["set aside"] for row in limited.rows] == sorted(
        (row["set aside"] for row in limited.rows), reverse=True
    )
    assert ("136" in limited.err, "--limit" in limited.err) == (True, True)
    assert [row["id"] for row in sweeperd("quarantine", "list", "--reason", "INVALID_BUDGET").rows] == ids[130:133]
    assert [row["id"] for row in sweeperd("quarantine", "list", "--tenant", "other").rows] == ids[133:]
    assert sweeperd("quarantine", "list", "--tenant", "other", "--reason", "INVALID_BUDGET").rows == []


def test_what_has_no_hash_or_no_mark_is_listed(sweeperd: Sweeperd, client: redis.Redis) -> None:
    client.set("reservation:res_text", "x")
    client.hset("reservation:res_unmarked", "state", "ACTIVE")
    client.zadd("sweeperd:quarantine", {"gone": 1, "text": 2, "unmarked": 3})
    rows = sweeperd("quarantine", "list").rows
    assert [(row["id"], row["reason"], row["state"]) for row in rows] == [
        ("gone", "?", ""),
        ("text", "WRONG_TYPE", ""),
        ("unmarked", "?", "ACTIVE"),
    ]


def test_a_hostile_tenant(sweeperd: Sweeperd, world: World) -> None:
    world.reservation(HOSTILE[:200], state=HOSTILE, tenant=HOSTILE, estimate_unit=HOSTILE, estimate_amount=HOSTILE)
    world.expire(HOSTILE[:200])
    world.client.hset(world.keys.reservation(HOSTILE[:200]), "quarantine_reason", HOSTILE)
    ran = sweeperd("quarantine", "list")
    assert len(ran.rows) == 2
    only_printable(ran.out)
    assert sweeperd("quarantine", "list", "--json").document
    typed, tenant = ran.rows[1]["id"], ran.rows[1]["tenant"]
    assert [row["id"] for row in sweeperd("quarantine", "list", "--tenant", tenant).rows] == [typed]
    told = sweeperd("quarantine", "dismiss", "--yes", "--", typed)
    assert told.out == "dismissed 1 entry\n"


# requeue


@pytest.mark.parametrize("reason", BROKEN)
def test_a_repaired_entry_is_requeued_and_expires(reason: str, world: World, sweeperd: Sweeperd) -> None:
    damage, mend = BROKEN[reason]
    damage(world)
    assert world.expire(at=NOW)[:2] == [b"quarantined", reason.encode()]
    before = world.snapshot()
    ran = sweeperd("quarantine", "requeue", "r1", "--yes")
    assert (ran.code, ran.out.splitlines()[0]) == (1, "requeued 0 entries")
    assert f"default\tr1\t{reason}\t{REASONS[reason]}" in ran.out.splitlines()
    assert world.snapshot() == before, "what is not repaired stays as it is"
    mend(world)
    world.client.zrem(world.keys.reservation_index, RID)
    ran = sweeperd("quarantine", "requeue", "r1", "--yes")
    assert (ran.code, ran.out, ran.err) == (0, "requeued 1 entry\n", "")
    assert world.client.zscore(world.keys.quarantine, RID) is None
    assert world.client.zscore(world.keys.reservation_index, RID) == DEADLINE
    assert not {b"quarantined_at", b"quarantine_reason"} & world.client.hgetall("reservation:res_r1").keys()
    assert world.expire(at=NOW)[0] == b"expired"
    assert world.amounts("tenant:acme") == (b"900", b"5100")


def test_an_entry_that_stays_is_listed_under_its_present_reason(world: World, sweeperd: Sweeperd) -> None:
    (damage, mend), (next_damage, next_mend) = BROKEN["INVALID_STATE"], BROKEN["INVALID_BUDGET"]
    damage(world)
    world.expire(at=NOW)
    mend(world)
    world.client.hset("reservation:res_r1", mapping={"quarantined_at": "5", "quarantine_reason": "INVALID_STATE"})
    world.client.zadd(world.keys.quarantine, {RID: 5})
    next_damage(world)
    ran = sweeperd("quarantine", "requeue", "r1", "--yes")
    assert (ran.code, "INVALID_BUDGET" in ran.out) == (1, True)
    assert {row["id"]: row["reason"] for row in sweeperd("quarantine", "list").rows}["r1"] == "INVALID_BUDGET"
    assert world.client.hget("reservation:res_r1", "quarantined_at") == b"5"
    next_mend(world)
    ran = sweeperd("quarantine", "requeue", "--reason", "INVALID_BUDGET", "--yes")
    assert (ran.code, ran.out) == (0, "requeued 1 entry\n")


def test_all_of_a_reason(sweeperd: Sweeperd, client: redis.Redis) -> None:
    ids, others = broken(client, 170), broken(client, 120, "INVALID_BUDGET")
    repair(client, ids[:90] + ids[95:] + others)
    ran = sweeperd("quarantine", "requeue", "--reason", "INVALID_STATE", "--yes", "--json")
    assert ran.code == 1
    told = ran.document
    assert (told["requeued"], told["stay"], ran.err.count("\n")) == (165, 5, 1)
    assert told["stays"] == [{"shard": "default", "id": rid, "reason": "INVALID_STATE"} for rid in ids[90:95]]
    assert set(client.zrange("reservation:ttl", 0, -1)) == {rid.encode() for rid in ids[:90] + ids[95:]}
    assert client.zcard("sweeperd:quarantine") == 125
    repair(client, ids)
    ran = sweeperd("quarantine", "requeue", "--all", "--yes")
    assert (ran.code, ran.out) == (0, "requeued 125 entries\n")
    assert client.zcard("sweeperd:quarantine") == 0
    assert client.zcard("reservation:ttl") == 290
    assert sweeperd("quarantine", "requeue", "--all").out == "requeued 0 entries\n", "nothing to ask about"


def test_many_of_one_moment_are_all_seen(sweeperd: Sweeperd, client: redis.Redis) -> None:
    ids = broken(client, 160)
    client.zadd("sweeperd:quarantine", dict.fromkeys(ids, 1_700_000_000_000))
    repair(client, ids[::2])
    told = sweeperd("quarantine", "requeue", "--all", "--yes", "--json").document
    assert (told["requeued"], told["stay"]) == (80, 80)


@pytest.mark.parametrize("state", ["COMMITTED", "RELEASED", "EXPIRED", None])
def test_what_has_ended_or_gone_meanwhile_is_cleared_away_by_the_sweep(
    state: str | None, world: World, sweeperd: Sweeperd
) -> None:
    world.client.zadd(world.keys.quarantine, {RID: 1})
    world.client.zrem(world.keys.reservation_index, RID)
    world.reservation(indexed=False, state=state)
    if state is None:
        world.client.delete("reservation:res_r1")
    before = world.snapshot()
    assert sweeperd("quarantine", "requeue", "r1", "--yes").code == 0
    assert world.client.exists("reservation:res_r1") == (state is not None)
    assert world.expire()[0] == (b"skipped" if state else b"not_found")
    after = without_record(world)
    del before[world.keys.quarantine][RID]
    assert after == before


def without_record(world: World) -> Any:
    """All keys but the record of operators' actions."""
    return {k: v for k, v in world.snapshot().items() if k not in (world.keys.actions, world.keys.action_counts)}


def requeue(world: World, *again: str) -> Any:
    keys = world.keys
    named = [keys.reservation(RID), keys.reservation_index, keys.quarantine]
    return run_script("ops/requeue", world.client, named, [RID, "expires_at", *again])


def test_the_script_alone(world: World) -> None:
    before = world.snapshot()
    assert requeue(world) == b"not_quarantined"
    assert world.snapshot() == before
    world.client.zadd(world.keys.quarantine, {RID: 1})
    for damage in ("soon", "9007199254740993", f"{'9' * 400}.5"):
        world.reservation(expires_at=damage, quarantine_reason="INVALID_EXPIRY")
        before = world.snapshot()
        assert requeue(world) == b"INVALID_EXPIRY"
        assert world.snapshot() == before
    world.client.delete("reservation:res_r1")
    world.client.set("reservation:res_r1", "text")
    assert requeue(world) == b"WRONG_TYPE"
    world.client.delete("reservation:res_r1", world.keys.reservation_index)
    world.client.set(world.keys.reservation_index, "text")
    before = world.snapshot()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        requeue(world)
    assert world.snapshot() == before, "it fails before its first write"


def test_the_script_notes_why_an_entry_stays(world: World) -> None:
    world.client.zrem(world.keys.reservation_index, RID)
    world.client.delete("reservation:res_r1")
    before = world.snapshot()
    why = "quarantine_reason", "NEW", "quarantine_detail", "why"
    assert requeue(world, *why) == b"not_quarantined"
    world.client.zadd(world.keys.quarantine, {RID: 1})
    assert requeue(world, *why) == b"NEW"
    assert world.snapshot().keys() == before.keys() | {world.keys.quarantine}, "a hash that is gone stays gone"
    world.reservation(indexed=False)
    assert requeue(world, *why) == b"NEW"
    assert world.client.hmget("reservation:res_r1", "quarantine_reason", "quarantine_detail") == [b"NEW", b"why"]
    assert world.client.zscore(world.keys.quarantine, RID) == 1
    assert world.client.zscore(world.keys.reservation_index, RID) is None


@pytest.mark.every_redis
def test_in_a_full_redis_an_entry_that_stays_keeps_its_old_reason(own_shard: Shard) -> None:
    client, quarantine = own_shard.client, Quarantine(own_shard, reservations_kind(own_shard.keys), 50)
    (rid,) = broken(client, 1)
    client.hset(f"reservation:res_{rid}", "quarantine_reason", "OLD")
    with full(own_shard):
        ((change,),) = quarantine.requeue(QuarantineFilter())
    assert (change.entry.reason, change.problem) == ("OLD", "INVALID_STATE")
    assert client.hget(f"reservation:res_{rid}", "quarantine_reason") == b"OLD"


@pytest.mark.every_redis
def test_the_scripts_work_at_maxmemory(own_shard: Shard) -> None:
    world = World(own_shard.client)
    world.reservation(indexed=False, quarantined_at=1234, quarantine_reason="INVALID_ESTIMATE")
    named = [world.keys.reservation(RID), world.keys.reservation_index, world.keys.quarantine]
    with full(own_shard):
        assert run_script("ops/adopt", world.client, named, [RID]) == b"adopted"
        assert world.client.zscore(world.keys.quarantine, RID) == 1234
        assert requeue(world) == b"requeued"
    assert world.client.zscore(world.keys.reservation_index, RID) == DEADLINE


# dismiss


def test_dismiss_takes_it_off_the_list_only(world: World, sweeperd: Sweeperd) -> None:
    world.reservation(b"r2", state="LIMBO")
    world.reservation(state="LIMBO")
    world.expire()
    world.expire(b"r2")
    before = world.snapshot()
    ran = sweeperd("quarantine", "dismiss", "r1", "r2", "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("dismissed 2 entries\n")
    assert ran.out.endswith("200 TOKENS\n")
    del before[world.keys.quarantine][RID], before[world.keys.quarantine][b"r2"]
    after = without_record(world)
    for rid in (RID, b"r2"):
        assert int(after[world.keys.reservation(rid)].pop(b"dismissed_at")) > 0
    assert after == before


def test_adopt_takes_over_what_another_sweeper_set_aside(client: redis.Redis, sweeperd: Sweeperd) -> None:
    reserve(client, ["one", "two", "three", "healthy"])
    for rid in ("one", "two", "three"):
        client.hset(f"reservation:res_{rid}", mapping={"quarantined_at": 1234, "quarantine_reason": "INVALID_ESTIMATE"})
        client.zrem("reservation:ttl", rid)
    assert sweeperd("reconcile", "--json").document["shards"][0]["found"]["foreign_quarantine"] == 3
    ran = sweeperd("quarantine", "adopt", "one", "healthy", "--yes", "--json")
    assert (ran.code, ran.document["adopted"]) == (1, 1)
    assert (ran.err.count("\n"), "healthy" in ran.err) == (1, True)
    assert sweeperd("quarantine", "adopt", "--all", "--yes", "--json").document["adopted"] == 2
    assert client.zrange("sweeperd:quarantine", 0, -1, withscores=True) == [
        (b"one", 1234.0),
        (b"three", 1234.0),
        (b"two", 1234.0),
    ]
    assert sweeperd("reconcile", "--json").document["found"] == 0
    assert sweeperd("quarantine", "adopt", "--all", "--yes", "--json").document["adopted"] == 0
    assert sweeperd("quarantine", "requeue", "--all", "--yes", "--json").document["requeued"] == 3
    assert sweeperd("quarantine", "adopt").code == 2


def test_what_stays_locked_is_told_exactly(sweeperd: Sweeperd, client: redis.Redis) -> None:
    for number in range(40):
        fields: dict[Any, Any] = {"state": "LIMBO", "estimate_amount": 2**63 - 1, "estimate_unit": f"UNIT{number // 2}"}
        client.hset(f"reservation:res_{number}", mapping=fields | {"quarantine_reason": "INVALID_STATE"})
        client.zadd("sweeperd:quarantine", {str(number): 1})
    ended: dict[Any, Any] = {"state": "COMMITTED", "estimate_amount": 5, "estimate_unit": "UNIT0"}
    client.hset("reservation:res_ended", mapping=ended)
    client.hset("reservation:res_odd", mapping=ended | {"state": "LIMBO", "estimate_amount": "1e9"})
    client.zadd("sweeperd:quarantine", {"ended": 1, "odd": 1, "gone": 1})
    told = sweeperd("quarantine", "dismiss", "--all", "--yes", "--json").document
    assert told["dismissed"] == 43
    assert told["locked"] == {f"UNIT{number}": 2 * (2**63 - 1) for number in range(20)}


def test_without_the_right_to_read_the_hash_it_stays_on_the_list(server: Server, client: redis.Redis) -> None:
    (rid,) = broken(client, 1)
    with limited(server, client, commands=True) as url, redis.Redis.from_url(url) as user:
        user.time()
        client.execute_command("ACL", "SETUSER", "sweeperd", "-hmget")
        with pytest.raises(redis.ResponseError):
            run_script("ops/dismiss", user, [f"reservation:res_{rid}".encode(), b"sweeperd:quarantine"], [rid])
        client.acl_log_reset()
    assert client.zrange("sweeperd:quarantine", 0, -1) == [rid.encode()]


def test_only_what_was_there_at_the_beginning_is_dismissed(shard: Shard, client: redis.Redis) -> None:
    ids = broken(client, 120)
    pages = Quarantine(shard, reservations_kind(shard.keys), 50).dismiss(QuarantineFilter())
    first = next(pages)
    assert len(first) == 50
    client.zadd("sweeperd:quarantine", {"new": shard.read_clock() + 1000})
    client.zrem("sweeperd:quarantine", ids[60])
    rest = list(itertools.chain.from_iterable(pages))
    assert [done.entry.id.decode() for done in [*first, *rest]] == [rid for rid in ids if rid != ids[60]]
    assert client.zrange("sweeperd:quarantine", 0, -1) == [b"new"]


def test_what_was_set_aside_before_the_clock_was_set_back_is_among_all(
    sweeperd: Sweeperd, client: redis.Redis, shard: Shard
) -> None:
    repair(client, ids := broken(client, 3))
    client.zadd("sweeperd:quarantine", {ids[1]: shard.read_clock() + 3_600_000})
    assert {row["id"] for row in sweeperd("quarantine", "list").rows} == set(ids)
    sweeperd("quarantine", "requeue", "--all", "--yes")
    assert not client.exists("sweeperd:quarantine")


def test_a_score_that_is_no_moment_is_not_asked_about(sweeperd: Sweeperd, client: redis.Redis) -> None:
    repair(client, ids := broken(client, 2))
    client.zadd("sweeperd:quarantine", {ids[0]: "inf"})
    assert "1 entry" in sweeperd("quarantine", "requeue", "--all").err
    assert sweeperd("quarantine", "requeue", "--all", "--yes").out == "requeued 1 entry\n"


def test_who_was_faster_is_told_of(shard: Shard, client: redis.Redis) -> None:
    quarantine = Quarantine(shard, reservations_kind(shard.keys), 50)
    (rid,) = broken(client, 1)
    repair(client, [rid])
    (entry,) = quarantine.find(QuarantineFilter())
    client.zrem("sweeperd:quarantine", rid)
    assert quarantine._requeue_page([entry]) == [QuarantineChange(entry, NOT_THERE)]
    assert isinstance(entry, SetAside)


# questions and bad input


def test_on_a_terminal_it_asks(server: Server, client: redis.Redis) -> None:
    (rid,) = broken(client, 1)
    dismiss = ["quarantine", "dismiss", "--all"]
    code, seen = on_terminal(dismiss, server.url, b"n\n")
    assert code == 1
    assert client.zcard("sweeperd:quarantine") == 1

    def meanwhile() -> None:
        client.zadd("sweeperd:quarantine", {"new": server_time(client) + 1})

    code, seen = on_terminal(dismiss, server.url, b"y\n", meanwhile)
    assert (code, b"dismissed 1 entry" in seen) == (0, True)
    assert b"1 entry" in seen
    assert client.zrange("sweeperd:quarantine", 0, -1) == [b"new"], "the operator was not asked about it"
    assert client.exists(f"reservation:res_{rid}")


@pytest.mark.parametrize("verb", ["requeue", "dismiss"])
def test_ids_that_are_not_set_aside(verb: str, sweeperd: Sweeperd, client: redis.Redis) -> None:
    (rid,) = broken(client, 1)
    repair(client, [rid])
    ran = sweeperd("quarantine", verb, rid, "nobody", "nobody\x1b", rid, "--yes")
    assert (ran.code, ran.out.splitlines()[0]) == (1, f"{verb}{'d' if verb == 'requeue' else 'ed'} 1 entry")
    assert [line.split()[1] for line in ran.err.splitlines()] == ["nobody", r"nobody\x1b"]


@pytest.mark.parametrize("which", ["id", "--all"])
@pytest.mark.parametrize("verb", ["requeue", "dismiss"])
def test_what_has_left_after_the_question_is_not_passed_over(
    verb: str, which: str, invoke: Run, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rid,) = broken(client, 1)
    monkeypatch.setattr("sweeperd.cli.output.Output.confirm", lambda *_, **__: client.delete("sweeperd:quarantine"))
    result = invoke("quarantine", verb, rid if which == "id" else which, "--yes")
    assert (result.exit_code, "1 entry had left the quarantine by then" in result.stderr) == (1, True), result.output
