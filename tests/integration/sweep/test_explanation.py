"""
What a sweep would do, found out without doing it.

That the decision is the one that expire.lua takes is held by each of its own tests: World.expire asks first, so every
outcome, reason and error in tests/lua is compared, and any change that asking makes would be seen there.
"""

import pytest
import redis

from sweeperd.store import Shard
from sweeperd.store.scripts import Script, source
from sweeperd.sweep import Outcome
from sweeperd.sweep.explanation import Explanation, explain
from tests.lua.builders import NOW, RID, Snapshot, World, frozen, seed
from tests.lua.test_expire_rules import ARRANGE, outcome_of
from tests.support.builders import reservations_kind


def told(shard: Shard, *ids: bytes) -> list[Explanation]:
    return explain(shard, reservations_kind(shard.keys), ids, 50)


def test_its_text_is_that_of_the_sweep() -> None:
    assert source("sweep/expire") in Script("ops/explain").source


@pytest.mark.parametrize("case", ARRANGE)
def test_what_it_says_that_would_be_written_is_what_is_written(case: str, client: redis.Redis) -> None:
    """The writes that it names, sent by hand, come to the same as the sweep."""
    world = World(client)

    def fresh() -> Snapshot:
        client.flushall()
        ARRANGE[case](seed(world))
        return world.snapshot()

    def content() -> Snapshot:
        """All but the id of the event, which is not known before the event is written."""
        found = world.snapshot() | {world.keys.events: [fields for _, fields in world.events()]}
        row = found.get(world.keys.reservation(RID))
        if isinstance(row, dict):
            row.pop(b"expired_event", None)
        return found

    before = fresh()
    reply, writes, _ = frozen(NOW, "ops/explain").run(client, world.call())
    assert reply[0] == outcome_of(case)
    assert world.snapshot() == before
    for write in writes:
        client.execute_command(*write)
    by_hand = content()
    fresh()
    world.expire(at=NOW)
    assert content() == by_hand


def test_many_are_told_of_in_order(shard: Shard, world: World) -> None:
    ids = [RID, b"nobody", *[b"%d" % number for number in range(120)]]
    with world.batch() as batch:
        for rid in ids[2:]:
            batch.reservation(rid, state="LIMBO" if rid.endswith(b"0") else "COMMITTED")
    before = world.snapshot()
    explanations = told(shard, *ids)
    assert [explanation.decision.id for explanation in explanations] == ids
    assert explanations[0].decision.outcome is Outcome.EXPIRED
    assert [write[0] for write in explanations[0].writes] == [b"ZREM", b"XADD", b"HSET", b"HSET", b"HSET", b"PEXPIRE"]
    assert explanations[1].decision.outcome is Outcome.NOT_FOUND
    details = [explanation.decision.detail for explanation in explanations[2:]]
    assert details == ["COMMITTED" if number % 10 else "INVALID_STATE" for number in range(120)]
    assert world.snapshot() == before


def test_an_entry_whose_sweep_would_fail_is_an_error(shard: Shard, world: World) -> None:
    world.client.delete(world.keys.events)
    world.client.set(world.keys.events, "text")
    (explanation,) = told(shard, RID)
    assert explanation.decision.outcome is Outcome.ERROR
    assert "WRONGTYPE" in explanation.decision.detail
    assert explanation.writes == ()


def test_a_write_that_it_does_not_know_is_refused(client: redis.Redis) -> None:
    """Should expire.lua ever learn a command, nothing of it gets past the explaining script unseen."""
    text = Script("ops/explain").source.replace(source("sweep/expire"), "return redis.call('DEL', KEYS[1])")
    client.set("reservation:res_r1", "text")
    with pytest.raises(redis.ResponseError):
        Script("mutant", text).run(client, World(client).call())
    assert client.exists("reservation:res_r1")
