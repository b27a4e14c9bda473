"""Checks that skipping cached ranges is as exact as deciding each entry, whatever changes between two ticks."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from sweeperd.config import SweepSettings
from sweeperd.store import Shard
from sweeperd.sweep import Decision, Outcome, SweepReport
from sweeperd.sweep.sweeper import Sweeper
from tests.support.builders import make_sweeper, reservations_kind
from tests.support.harness import eventually, reserve, server_time
from tests.support.streams import entries

HOUR = 3_600_000


@dataclass
class World:
    """Reservations in grace, a sweeper that comes by again and again, and what it decided."""

    shard: Shard
    sweeper: Sweeper = field(init=False)
    decided: list[Decision] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.sweeper = self.another(batch_size=100, pipeline_depth=8)

    def another(self, **settings: object) -> Sweeper:
        chosen = SweepSettings.model_validate(settings)
        kind = reservations_kind(self.shard.keys, chosen)
        return make_sweeper(self.shard, kind, chosen, lambda some, _: self.decided.extend(some), self.stop)

    def tick(self) -> SweepReport:
        self.decided.clear()
        return self.sweeper.tick()

    def looks(self, tick: Callable[[], SweepReport]) -> tuple[SweepReport, int]:
        """A tick, and how many hashes it read."""
        self.shard.client.config_resetstat()
        report = tick()
        return report, self.shard.client.info("commandstats").get("cmdstat_hmget", {"calls": 0})["calls"]

    def in_grace(self, *ids: str, ago: Sequence[int] | int = 1000, left: int = HOUR) -> None:
        """Their deadlines were so many ms ago, each its own or all the same."""
        longest = ago if isinstance(ago, int) else max(ago, default=0)
        reserve(self.shard.client, ids, overdue_by=-left, grace=longest + left)
        if not isinstance(ago, int):
            scores = self.scores()
            for name, each in zip(ids, ago, strict=True):
                self.move(name, scores[name] + longest - each)

    def scores(self) -> dict[str, float]:
        pairs: Any = self.shard.client.zrange(self.shard.keys.reservation_index, 0, -1, withscores=True)
        return {name.decode(): score for name, score in pairs}

    def move(self, name: str, score: float) -> None:
        """The deadline of one becomes another one, in hash and index."""
        self.shard.client.hset(self.shard.keys.reservation(name.encode()), "expires_at", int(score))
        self.shard.client.zadd(self.shard.keys.reservation_index, {name: int(score)})

    def leave(self, name: str) -> None:
        """One is committed."""
        self.shard.client.hset(self.shard.keys.reservation(name.encode()), "state", "COMMITTED")
        self.shard.client.zrem(self.shard.keys.reservation_index, name)


@pytest.fixture
def world(shard: Shard) -> World:
    return World(shard)


def test_nobody_looks_twice_at_what_has_not_changed(world: World) -> None:
    world.in_grace(*map(str, range(300)), ago=range(10_000, 10_000 - 7 * 300, -7))
    first, looked = world.looks(world.tick)
    assert looked >= 300
    report, looked = world.looks(world.tick)
    assert looked == 0
    assert report.passed == report.candidates == report.counts[Outcome.IN_GRACE] == 300
    assert (first.complete, report.complete) == (True, True)
    assert world.decided == []


def test_a_change_is_looked_at_where_it_is(world: World) -> None:
    world.in_grace(*map(str, range(400)), ago=range(100_000, 60_000, -100))
    world.tick()
    world.in_grace("new", ago=70_000)
    world.leave("200")
    report, looked = world.looks(world.tick)
    assert report.counts[Outcome.IN_GRACE] == 400
    assert 0 < looked < 200
    assert world.looks(world.tick)[1] == 0


def test_one_that_took_the_place_of_another_is_seen(world: World) -> None:
    """As many entries as before, with the same scores, and yet not the same."""
    world.in_grace(*map(str, range(50)))
    world.tick()
    score = world.scores()["20"]
    world.leave("20")
    reserve(world.shard.client, ["other"])  # in grace for no time at all
    world.move("other", score)
    report = world.tick()
    assert [decision.id for decision in world.decided if decision.outcome is Outcome.EXPIRED] == [b"other"]
    assert report.counts[Outcome.IN_GRACE] == 49


def test_a_grace_that_ends_is_noticed_at_once(world: World) -> None:
    world.in_grace(*map(str, range(100)))
    world.in_grace("soon", left=400)
    report = world.tick()
    assert report.counts[Outcome.IN_GRACE] == 101
    ends = world.scores()["soon"] + 1000 + 400
    seen: list[tuple[int, bool]] = []

    def expired() -> bool:
        before = server_time(world.shard.client)
        world.tick()
        seen.append((before, any(decision.id == b"soon" for decision in world.decided)))
        return seen[-1][1]

    eventually(expired)
    assert all(before <= ends for before, gone in seen if not gone)
    assert seen[-1][0] <= ends + 1000  # the last tick began before, or not long after


@pytest.mark.parametrize("seed", range(4))
def test_it_is_as_exact_as_to_ask_about_each(seed: int, world: World) -> None:
    chance = random.Random(seed)
    world.sweeper = world.another(batch_size=chance.choice([7, 100]), pipeline_depth=chance.choice([1, 2, 8]))
    client, names = world.shard.client, iter(range(10**6))
    spread = chance.choice([1, 5, 1000, 100_000])
    for _ in range(12):
        fresh = [str(next(names)) for _ in range(chance.choice([0, 1, 10, 60]))]
        world.in_grace(*fresh, ago=[1000 + chance.randrange(spread) for _ in fresh])
        there = sorted(world.scores())
        for name in chance.sample(there, min(len(there), chance.choice([0, 0, 1, 5]))):
            change = chance.choice(["leave", "extend", "earlier", "end"])
            if change == "leave":
                world.leave(name)
            elif change == "end":  # its deadline was that long ago that its grace is over
                world.move(name, server_time(client) - 3 * HOUR)
            else:
                world.move(name, world.scores()[name] + (HOUR if change == "extend" else -3))
        before = world.scores()
        now = server_time(client)
        over = {name for name, score in before.items() if score < now - 2 * HOUR}
        ahead = {name for name, score in before.items() if score > now + HOUR / 2}
        if chance.random() < 0.3:
            world.stop.set()  # a tick that is cut short at once, and its findings
            world.tick()
            world.stop.clear()
        report = world.tick()
        while not report.complete:
            report = world.sweeper.tick()
        assert {name.decode() for name in expired(client)} >= over
        assert set(world.scores()) == set(before) - over
        assert world.tick().counts[Outcome.IN_GRACE] == len(before) - len(over) - len(ahead)


def expired(client: redis.Redis) -> set[bytes]:
    """Of which there is an event."""
    return {fields[b"id"] for _, fields in entries(client, "sweeperd:events")}


def test_those_in_front_that_have_the_same_score_may_go(world: World) -> None:
    """The position after a range is counted anew, or as many as have gone would be passed over."""
    world.in_grace(*(f"{number:03}" for number in range(100)))
    (score,) = set(world.scores().values())
    world.tick()
    for number in range(40):
        world.leave(f"{number:03}")
    reserve(world.shard.client, ["zzz"])
    world.move("zzz", score)
    report = world.tick()
    assert dict(report.counts) == {Outcome.IN_GRACE: 60, Outcome.EXPIRED: 1}
    assert world.tick().counts[Outcome.IN_GRACE] == 60
    report = world.tick()
    assert (report.counts[Outcome.IN_GRACE], report.passed) == (60, 60)


def cut_short(sweeper: Sweeper) -> SweepReport:
    """A tick that reads one page and decides one batch."""
    steps = iter([False, False])
    return sweeper.tick(lambda: next(steps, True))


def test_a_grace_that_has_ended_is_noticed_while_ticks_are_cut_short(world: World) -> None:
    world.sweeper = world.another(batch_size=100, pipeline_depth=1)
    world.in_grace(*map(str, range(100)), ago=range(50_000, 40_000, -100))
    world.in_grace("soon", ago=60_000, left=1500)
    ends = world.scores()["soon"] + 61_500
    assert cut_short(world.sweeper).counts[Outcome.IN_GRACE] > 0
    eventually(lambda: server_time(world.shard.client) > ends)
    first, second = cut_short(world.sweeper), cut_short(world.sweeper)
    assert not first.complete
    assert not second.complete
    assert expired(world.shard.client) == {b"soon"}
    passed = sum(cut_short(world.sweeper).counts[Outcome.IN_GRACE] for _ in range(30))
    assert passed >= 100, "the other entries have their turn as well"


def test_ranges_that_are_gone_are_not_all_asked_about_in_a_tick_that_is_to_stop(world: World) -> None:
    world.in_grace(*map(str, range(400)), ago=range(100_000, 60_000, -100))
    world.tick()
    world.shard.client.delete(world.shard.keys.reservation_index)
    world.in_grace("left")
    world.shard.client.config_resetstat()
    report = cut_short(world.sweeper)
    assert not report.complete
    assert world.shard.client.info("commandstats")["cmdstat_evalsha"]["calls"] <= 2 * 2, "two for each page"
    eventually(lambda: world.tick().complete)
