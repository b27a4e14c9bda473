"""The wait after the load: it lasts as long as something moves, and says of each missing event where it is."""

from collections.abc import Sequence
from itertools import accumulate

import pytest
import redis

from sweeperd.outbox import Outbox
from sweeperd.store import Shard
from tests.soak.chaos import rest
from tests.soak.chaos.missing import Place, places
from tests.soak.chaos.rest import REST_LIMIT, STILL_LIMIT, Group, Standing, await_rest
from tests.support.streams import append

GROUP = "hook"


class Clock:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def wait(*looks: tuple[float, object, Sequence[str]]) -> tuple[Sequence[str], float]:
    """Wait while each look holds for so many seconds, the last one for ever. Returns what is unmet, and how long."""
    clock = Clock()
    ends = list(accumulate((seconds for seconds, _, _ in looks), initial=clock.now))[1:]

    def look() -> tuple[object, Sequence[str]]:
        _, moves, unmet = next((one for one, end in zip(looks, ends, strict=True) if clock.now < end), looks[-1])
        if isinstance(moves, Exception):
            raise moves
        return moves, unmet

    unmet = await_rest(look, lambda: None, clock.read, clock.sleep)
    return unmet, clock.now - 1000.0


def test_it_ends_when_nothing_is_unmet() -> None:
    unmet, seconds = wait((10, 1, ["one"]), (10, 2, ["one"]), (1, 3, []))
    assert not unmet
    assert seconds == pytest.approx(20)


def test_it_goes_on_while_something_moves() -> None:
    looks = [(0.9 * STILL_LIMIT, number, ["one"]) for number in range(5)]
    unmet, seconds = wait(*looks, (1, 9, []))
    assert not unmet
    assert seconds > 4 * STILL_LIMIT


def test_it_ends_where_nothing_moves() -> None:
    unmet, seconds = wait((5, 1, ["one"]), (1, 2, ["two"]))
    assert unmet == [f"nothing moved for {STILL_LIMIT:g} s", "two"]
    assert 5 + STILL_LIMIT < seconds < 10 + STILL_LIMIT


def test_a_redis_that_does_not_answer_moves_nothing() -> None:
    unmet, _ = wait((5, 1, ["one"]), (1, redis.ConnectionError(), []))
    assert unmet == [f"nothing moved for {STILL_LIMIT:g} s", "one"]
    assert wait((1, redis.ConnectionError(), []))[0] == [
        f"nothing moved for {STILL_LIMIT:g} s",
        "Redis does not answer",
    ]


def test_it_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "LOOK_EVERY", 10.0)
    unmet, seconds = wait(*[(10, number, ["one"]) for number in range(1000)])
    assert unmet == [f"not within {REST_LIMIT:g} s", "one"]
    assert REST_LIMIT < seconds < REST_LIMIT + 30


DONE = Group(b"5-0", all_taken=True, pending=0)


@pytest.mark.parametrize(
    ("standing", "unmet"),
    [
        (Standing(overdue=True, index=0, groups={"a": DONE, "b": DONE}), []),
        (Standing(overdue=False, index=0, groups={"a": DONE}), ["a deadline has not passed"]),
        (Standing(overdue=True, index=2, groups={"a": DONE}), ["2 entries are in the index"]),
        (
            Standing(overdue=True, index=0, groups={"a": DONE, "b": Group(b"4-0", all_taken=False, pending=3)}),
            ["b has not taken all events", "b has 3 events pending"],
        ),
    ],
)
def test_what_is_unmet(standing: Standing, unmet: list[str]) -> None:
    assert standing.unmet == unmet


def test_where_missing_events_are(client: redis.Redis, shard: Shard) -> None:
    """One event each that is acknowledged, parked, parked alone, in hand, a dead letter, and not taken."""
    outbox, keys = Outbox(shard, "us"), shard.keys
    outbox.groups.ensure(GROUP, "beginning")
    events = [append(client, keys.events, {"id": f"r{number}", "tenant": "acme"}) for number in range(6)]
    lost, parked, alone, _, dead = outbox.read(GROUP, 5)
    outbox.acknowledge(GROUP, [lost.id])
    outbox.nack(GROUP, [parked, alone._replace(alone=True)])
    outbox.dead_letter(GROUP, dead, "too old")
    assert places(client, keys, GROUP, events) == {
        Place.LOST: 1,
        Place.PARKED: 2,
        Place.IN_HAND: 1,
        Place.DEAD: 1,
        Place.UNTAKEN: 1,
    }
    assert places(client, keys, GROUP, events[1:3]) == {Place.PARKED: 2}
    assert not places(client, keys, GROUP, [])


def test_every_page_of_pending_events_is_read(client: redis.Redis, shard: Shard) -> None:
    outbox = Outbox(shard, "us")
    outbox.groups.ensure(GROUP, "beginning")
    events = [append(client, shard.keys.events, {"id": f"r{number}"}) for number in range(2005)]
    outbox.read(GROUP, 3000)
    assert places(client, shard.keys, GROUP, events) == {Place.IN_HAND: 2005}
