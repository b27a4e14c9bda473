"""Tests the proof of a kind, without which a wrong word in its settings empties no index."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.metrics import Metrics
from sweeperd.ops.acl import acl_users
from sweeperd.runtime.sweeps import KindSweep
from sweeperd.store import Shard
from sweeperd.sweep import Decision, Kind, Outcome, kinds_of, proof
from sweeperd.sweep.proof import HeldCauses
from tests.lua.kinds.forms import MEMBER
from tests.lua.kinds.world import DEADLINE, SCRIPT, SEATS, scripted, settings_of
from tests.support.builders import configured_kind
from tests.support.kind_settings import hold_seats
from tests.support.servers import Server

AHEAD = 4_000_000_000_000
SKIPS = "function decide(hash) if hash.state ~= 'held' then return 'skip', hash.state end return 'expire' end\n"
#: One wrong word, and the likely cause.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "key": (SEATS | {"key": "seats:holds:{id}"}, "no entry of seats:ttl has a hash seats:holds:{id}"),
    "active": (SEATS | {"active": {"state": "held"}}, "state is HELD, active says held"),
    "script": (scripted(SKIPS + SCRIPT[SCRIPT.index("function plan") :]), "decide says skip HELD"),
    "ended": (scripted(SCRIPT) | {"ended": {"state": "HELD"}}, "state is HELD, ended names it"),
}


def kind_of(kind: dict[str, Any]) -> Kind:
    settings = settings_of(kind)
    return configured_kind(settings.kinds[0], settings)


class World:
    """Seats, and the sweep of one kind of them as one process has it."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.metrics = shard, Metrics()
        self.client: Any = shard.client
        self.client.hset("seats:hamlet", mapping={"free": 0, "held": 10_000})

    def hold(self, count: int, deadline: int = DEADLINE, stem: str = "h", **fields: Any) -> None:
        for number in range(count):
            hold_seats(self.client, f"{stem}{number:04}", 1, deadline + number, **fields)

    def orphans(self, count: int, deadline: int = DEADLINE) -> None:
        self.client.zadd("seats:ttl", {f"x{number:04}": deadline + number for number in range(count)})

    def sweep(self, kind: dict[str, Any] = SEATS, shard: Shard | None = None, **sweep: Any) -> KindSweep:
        """The sweep as another process begins it."""
        settings = Settings.model_validate(settings_of(kind).model_dump() | {"sweep": sweep, "kinds": []})
        settings = settings.model_copy(update={"kinds": settings_of(kind).kinds})
        context = ShardContext(settings, shard or self.shard, self.metrics, threading.Event(), 1)
        return KindSweep(context, kinds_of(settings, context.shard)["seat-hold"])

    @property
    def index(self) -> int:
        return int(self.client.zcard("seats:ttl"))

    def value(self, name: str, **labels: str) -> float:
        found = self.metrics.registry.get_sample_value(name, {"shard": "default", "kind": "seat-hold"} | labels)
        assert found is not None
        return found


@pytest.fixture
def world(client: redis.Redis, shard: Shard) -> World:
    return World(shard)


def counts(report: Any) -> dict[str, int]:
    return {outcome.value: count for outcome, count in report.counts.items() if count}


@pytest.mark.parametrize("wrong", WRONG)
def test_one_wrong_word_leaves_the_index_as_it_is(world: World, wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, because = WRONG[wrong]
    world.hold(50)
    before = world.client.zrange("seats:ttl", 0, -1, withscores=True)
    sweep = world.sweep(kind)
    for tick in range(1, 3):
        caplog.clear()
        report = sweep.tick()
        sweep.measure()
        assert (counts(report), report.held_because, report.complete) == ({"held": 50}, because, True)
        assert world.client.zrange("seats:ttl", 0, -1, withscores=True) == before
        assert world.value("sweeperd_candidates_total", outcome="held") == 50 * tick
        assert world.value("sweeperd_held_entries") == 50
        assert world.value("sweeperd_unproven_kind") == 1
        (warned,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert (warned.count, warned.because) == (50, because)  # type: ignore[attr-defined]
    assert not world.client.exists("sweeperd:proofs")
    assert world.client.xlen("sweeperd:events") == 0


def test_the_right_word_gives_back_all_that_was_held(world: World) -> None:
    world.hold(50)
    world.sweep(WRONG["key"][0]).tick()
    sweep = world.sweep()
    assert counts(sweep.tick()) == {"expired": 50}
    sweep.measure()
    assert (world.index, world.value("sweeperd_held_entries"), world.value("sweeperd_unproven_kind")) == (0, 0, 0)
    assert world.client.hget("seats:hamlet", "free") == b"50"


def test_an_entry_that_is_not_due_proves_its_kind(world: World) -> None:
    """The sample covers the whole index, so what is behind the due entries counts too."""
    world.orphans(500)
    world.hold(20, AHEAD)
    assert counts(world.sweep().tick()) == {"not_found": 500}
    assert world.index == 20
    assert world.client.hlen("sweeperd:proofs") == 1


def test_the_sample_writes_nothing(world: World) -> None:
    """An entry in the sample whose deadline was moved in the hash only is not touched before it is due."""
    world.client.zadd("seats:ttl", {"h1": AHEAD})
    world.client.hset("seats:hold:h1", mapping={"state": "HELD", "expires_at": AHEAD + 5, "show": "hamlet", "qty": 1})
    assert counts(world.sweep().tick()) == {}
    assert world.client.zscore("seats:ttl", "h1") == AHEAD
    assert world.client.hlen("sweeperd:proofs") == 1


def test_an_entry_of_the_sample_that_fails_does_not_stop_its_kind(world: World) -> None:
    world.hold(3)
    world.client.set("sweeperd:events", "text")
    sweep = world.sweep()
    assert counts(sweep.tick()) == {"error": 3}
    world.client.delete("sweeperd:events")
    assert counts(sweep.tick()) == {"expired": 3}


def test_an_expiry_beyond_the_sample_proves_its_kind(world: World) -> None:
    """Of 1,000 entries one is alive, at a rank that the sample passes by."""
    world.orphans(1000)
    world.hold(1, DEADLINE + 5, stem="x0004-")
    assert world.client.zrank("seats:ttl", "x0004-0000") == 5
    first = world.sweep(batch_size=5, pipeline_depth=1)
    found = counts(first.tick())
    assert (found["expired"], found["held"] + found["not_found"]) == (1, 1000)
    assert found["held"] >= 5
    assert world.index == found["held"], "what was held before waits for the next tick"
    assert counts(first.tick()) == {"not_found": found["held"]}
    assert world.index == 0


def test_an_empty_index_is_no_proof(world: World) -> None:
    sweep = world.sweep()
    assert counts(sweep.tick()) == {}
    sweep.measure()
    assert (world.value("sweeperd_unproven_kind"), world.value("sweeperd_held_entries")) == (1, 0)
    world.orphans(1)
    assert counts(sweep.tick()) == {"held": 1}


CHANGES: dict[str, dict[str, Any]] = {
    "key": {"key": "seats:holds:{id}"},
    "active": {"active": {"state": "held"}},
}


@pytest.mark.parametrize("changed", CHANGES)
def test_each_settings_are_proven_by_themselves(world: World, changed: str) -> None:
    world.hold(1, AHEAD)
    world.sweep().tick()
    world.orphans(1)
    assert counts(world.sweep(SEATS | CHANGES[changed]).tick()) == {"held": 1}
    assert counts(world.sweep(SEATS | {"grace": "1s", "retention": "1d"}).tick()) == {"not_found": 1}


@pytest.mark.parametrize(
    ("kind", "changed", "proven"),
    [
        (SEATS, {"unit": "s"}, False),
        (MEMBER, {"member": "{type}:{client}|{slot}"}, False),
        (scripted(SCRIPT), {"ended": {"state": "GONE"}}, False),
        (SEATS, {"ended": {"state": "GONE"}}, True),
        (scripted(SCRIPT), {"grace": "1s"}, True),
    ],
)
def test_a_proof_is_of_all_settings_that_say_what_is_alive(
    kind: dict[str, Any], changed: dict[str, Any], proven: bool
) -> None:
    """Among them `ended` of a script alone: of another kind, `active` must name the living state as well."""

    assert (kind_of(kind).proof == kind_of(kind | changed).proof) is proven


def test_a_script_that_reads_other_fields_is_proven_anew(world: World) -> None:
    """A script that is not given the state skips every entry."""

    def reads(*fields: str) -> dict[str, Any]:
        return scripted(SCRIPT, fields=[*fields, "show", "qty"], ended={"expired": "yes"})

    world.hold(1)
    assert counts(world.sweep(reads("state")).tick()) == {"expired": 1}
    world.hold(1, stem="n")
    assert counts(world.sweep(reads("status")).tick()) == {"held": 1}


def test_another_process_learns_of_the_proof(world: World) -> None:
    """It needs no living entry of its own."""
    another = world.sweep()
    world.orphans(1)
    assert counts(another.tick()) == {"held": 1}
    world.hold(1, AHEAD)
    world.sweep().tick()
    world.client.delete("seats:hold:h0000")
    world.orphans(1)
    assert counts(another.tick()) == {"not_found": 1}


def test_a_proof_lasts_when_the_hashes_are_lost(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The entries leave the index then, and a warning and a counter say so."""
    world.hold(30)
    world.client.zadd("seats:ttl", {f"h{number:04}": AHEAD + number for number in range(30)})
    world.sweep().tick()
    assert world.client.hlen("sweeperd:proofs") == 1
    world.client.delete(*(f"seats:hold:h{number:04}" for number in range(30)))
    world.client.zadd("seats:ttl", {f"h{number:04}": DEADLINE for number in range(30)})
    caplog.clear()
    assert counts(world.sweep().tick()) == {"not_found": 30}
    (warned,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (warned.outcome, warned.count, len(warned.entries)) == ("not_found", 30, 10)  # type: ignore[attr-defined]
    assert world.value("sweeperd_unexpected_outcomes_total", outcome="not_found") == 30


@pytest.mark.parametrize(("orphans", "alive", "warns"), [(19, 0, False), (20, 20, False), (21, 20, True)])
def test_few_orphans_are_not_worth_a_warning(world: World, orphans: int, alive: int, warns: bool) -> None:
    world.hold(1, AHEAD, stem="ahead")
    world.hold(alive)
    world.orphans(orphans)
    world.sweep().tick()
    assert world.value("sweeperd_unexpected_outcomes_total", outcome="not_found") == (orphans if warns else 0)


def test_an_end_that_is_not_named_is_said_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    kind = SEATS | {"over": {"state": ["SOLD"]}}
    world.hold(1, AHEAD, stem="ahead")
    world.hold(60, stem="lost", state="LOST")
    world.hold(60, stem="sold", state="SOLD")
    assert counts(world.sweep(kind).tick()) == {"skipped": 120}
    (warned,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (warned.outcome, warned.count) == ("skipped", 60)  # type: ignore[attr-defined]
    assert warned.entries[0] == {  # type: ignore[attr-defined]
        "id": "lost0000", "state": "LOST", "why": "state is LOST, active says HELD",
    }  # fmt: skip
    assert world.value("sweeperd_unexpected_outcomes_total", outcome="skipped") == 60


def refuse_memory(world: World) -> Callable[[], object]:
    world.client.config_set("maxmemory", 1)
    return lambda: world.client.config_set("maxmemory", 0)


@pytest.mark.every_redis
def test_a_full_redis_keeps_no_proof_and_sweeps(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.hold(30)
    world.orphans(5)
    free = refuse_memory(world)
    try:
        sweep = world.sweep()
        assert counts(sweep.tick()) == {"expired": 30, "not_found": 5}
        assert caplog.messages.count("the proof of a kind cannot be noted") == 1
        sweep.tick()
    finally:
        free()
    assert caplog.messages.count("the proof of a kind cannot be noted") == 1, "it is said once"
    assert not world.client.exists("sweeperd:proofs")
    sweep.tick()
    assert world.client.hlen("sweeperd:proofs") == 1, "noted as soon as it is possible"


def test_a_user_without_the_right_to_the_proofs(world: World, server: Server) -> None:
    """Each process proves the kind by itself."""
    settings = settings_of(SEATS)
    (user,) = acl_users(settings, settings.all_shards, "all", commands=False)
    rules = [rule for rule in user.rules if rule != "~sweeperd:proofs"]
    assert len(rules) < len(user.rules)
    world.client.execute_command("ACL", "SETUSER", "limited", "reset", ">pw", *rules)
    url = SecretStr(server.url.replace("://", "://limited:pw@"))
    shard = Shard(settings.redis.model_copy(update={"url": url}))
    try:
        world.orphans(5)
        assert counts(world.sweep(shard=shard).tick()) == {"held": 5}
        world.hold(5)
        assert counts(world.sweep(shard=shard).tick()) == {"expired": 5, "not_found": 5}
    finally:
        shard.close()
        world.client.execute_command("ACL", "DELUSER", "limited")


# ---- why entries are held


def held(*whys: str, others: Sequence[Decision] = ()) -> HeldCauses:
    causes = HeldCauses(kind_of(SEATS))
    causes.add([*(Decision(b"h", Outcome.HELD, "skipped", why=why) for why in whys), *others])
    return causes


def test_the_most_frequent_cause_is_the_likely_one_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "CAUSES", 2)
    assert held("a", "b", "b").likely == "b"
    assert held("a", "b", "c", "c").likely == "a", "the third cause is beyond the limit"


@pytest.mark.parametrize(
    ("whys", "others", "likely"),
    [
        ([""], [], "no entry of seats:ttl has a hash seats:hold:{id}"),
        ([""], [Decision(b"h", Outcome.NOT_DUE)], "entries of seats:ttl have no hash seats:hold:{id}"),
        (["", "", "a"], [], "entries of seats:ttl have no hash seats:hold:{id}"),
        ([], [Decision(b"h", Outcome.NOT_DUE)], ""),
    ],
)
def test_that_no_entry_has_a_hash_is_said_of_all_alone(
    whys: Sequence[str], others: Sequence[Decision], likely: str
) -> None:
    assert held(*whys, others=others).likely == likely
