"""
The races between the ledger's clients and the sweep, each forced into both of its orders.

A sweep reads a page of ids and then has the script decide each. `World.between` puts a rival between the two. The very
millisecond in which the decision turns is in tests/lua/test_ledger_edges.py.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
import redis

from sweeperd.config import SweepSettings
from sweeperd.ledger import ReservationExpired, Reserved
from sweeperd.metrics import Metrics
from sweeperd.sweep import Kind, Outcome
from sweeperd.sweep.sweeper import Sweeper
from sweeperd.sweep.telemetry import SweepTelemetry
from tests.property import play
from tests.support.books import ALWAYS, Property, check, read
from tests.support.builders import make_sweeper, reservations_kind
from tests.support.harness import eventually, server_time
from tests.support.servers import Server

SCOPES, UNIT, TENANT, AMOUNT = ("tenant:t", "tenant:t/a"), play.UNIT, play.TENANT, 5
SETTINGS = SweepSettings()


class World(play.World):
    """A ledger, and sweepers that count."""

    def __init__(self, client: redis.Redis, server: Server) -> None:
        super().__init__(client, server)
        self.metrics = Metrics()
        self.audit = SweepTelemetry(self.metrics, "default", reservations_kind(self.shard.keys, SETTINGS))

    def reserved(self, grace: timedelta = timedelta(0)) -> Reserved:
        """A reservation whose deadline has passed."""
        made = self.ledger.reserve(
            TENANT, SCOPES, UNIT, AMOUNT, ttl=timedelta(milliseconds=1), grace=grace, idempotency_key="reserve"
        )
        eventually(lambda: server_time(self.client) > made.expires_at)
        return made

    def between(self, rival: Callable[[], object]) -> Sweeper:
        """
        A sweeper that has read its page when the rival comes, before the script decides the first entry. It pages
        without a scan of the hashes, as a sweep does where little is in grace: an entry that a scan sees in grace
        reaches no script.
        """
        kind = reservations_kind(self.shard.keys, SETTINGS)
        left = [rival]

        def call(entry: bytes, trace_id: str, *flags: bool) -> Any:
            if left:
                left.pop()()
            return kind.call(entry, trace_id, *flags)

        return self.another(dataclasses.replace(kind, call=call, grace_scan=None))

    def another(self, kind: Kind | None = None) -> Sweeper:
        """One more sweeper on the same shard."""
        kind = kind or reservations_kind(self.shard.keys, SETTINGS)
        return make_sweeper(self.shard, kind, SETTINGS, self.audit.decided, threading.Event())

    def counted(self, outcome: Outcome) -> int:
        """How often this was decided, by the counter."""
        labels = {"shard": "default", "kind": "reservations", "outcome": outcome.value}
        return int(self.metrics.registry.get_sample_value("sweeperd_candidates_total", labels) or 0)

    def state(self, entry: bytes) -> bytes:
        state: Any = self.client.hget(self.shard.keys.reservation(entry), "state")
        assert isinstance(state, bytes)
        return state

    def balance(self) -> tuple[int, int, int]:
        """(remaining, reserved, spent) of each of the scopes, which are the same but for what was allocated."""
        numbers = {
            (budget.remaining - budget.allocated, budget.reserved, budget.spent)
            for budget in (self.ledger.budget(scope, UNIT) for scope in SCOPES)
        }
        (same,) = numbers
        return same

    def checked(self, *, over: bool = True) -> None:
        check(read(self.client), frozenset(Property) if over else ALWAYS)


@pytest.fixture
def world(client: redis.Redis, server: Server) -> Iterator[World]:
    with closing(World(client, server)) as ready:
        yield ready


# ---- a commit in the grace window against the sweep


def test_a_commit_in_grace_comes_after_the_sweep(world: World) -> None:
    entry = world.reserved(grace=timedelta(minutes=1)).reservation_id.encode()
    world.another().tick()
    assert world.counted(Outcome.IN_GRACE) == 1
    world.ledger.commit(TENANT, entry, 3, idempotency_key="c")
    assert world.another().tick().candidates == 0
    assert world.balance() == (-3, 0, 3)
    world.checked()


# ---- an extension against the sweep at the deadline


def test_an_extension_comes_between_page_and_script(world: World) -> None:
    """The index gave the sweep an entry that is not due any more when the script runs."""
    entry = world.ledger.reserve(
        TENANT, SCOPES, UNIT, AMOUNT, ttl=timedelta(minutes=1), idempotency_key="r"
    ).reservation_id.encode()
    # The page is read by an older score, as if the clock had not moved on since.
    world.client.zadd(world.shard.keys.reservation_index, {entry: 1})

    def extend() -> None:
        world.ledger.extend(TENANT, entry, timedelta(minutes=1), idempotency_key="e")
        world.client.zadd(world.shard.keys.reservation_index, {entry: 1})

    world.between(extend).tick()
    assert world.counted(Outcome.NOT_DUE) == 1
    assert world.state(entry) == b"ACTIVE"
    assert world.balance() == (-5, 5, 0)
    world.checked(over=False)  # the index has the new deadline again


# ---- a release against the sweep


@pytest.mark.parametrize(("end", "after"), [("commit", (-3, 0, 3)), ("release", (0, 0, 0))])
def test_an_end_comes_between_page_and_script(world: World, end: str, after: tuple[int, ...]) -> None:
    entry = world.reserved(grace=timedelta(minutes=1)).reservation_id.encode()
    amount = [3] if end == "commit" else []
    world.between(lambda: getattr(world.ledger, end)(TENANT, entry, *amount, idempotency_key="x")).tick()
    assert world.counted(Outcome.SKIPPED) == 1
    assert world.balance() == after
    world.checked()


def test_a_release_comes_after_the_sweep(world: World) -> None:
    entry = world.reserved().reservation_id.encode()
    world.another().tick()
    assert world.counted(Outcome.EXPIRED) == 1
    with pytest.raises(ReservationExpired):
        world.ledger.release(TENANT, entry, idempotency_key="x")
    assert world.balance() == (0, 0, 0)
    world.checked()


# ---- two sweepers on one batch


def test_two_sweepers_have_read_the_same_page(world: World) -> None:
    for number in range(6):
        world.ledger.reserve(TENANT, SCOPES, UNIT, 1, ttl=timedelta(milliseconds=1), idempotency_key=f"{number}")
    eventually(lambda: world.client.zcount(world.shard.keys.reservation_index, "-inf", server_time(world.client)) == 6)
    report = world.between(lambda: world.another().tick()).tick()
    assert report.counts == {Outcome.SKIPPED: 6}
    assert world.counted(Outcome.EXPIRED) == 6
    assert world.balance() == (0, 0, 0)
    world.checked()


# ---- a sweep during a reserve retry


def test_a_sweep_comes_between_a_reserve_and_its_retry(world: World) -> None:
    """The answer was lost, and the client calls again when the reservation has expired: the same answer, no hold."""
    first = world.reserved()
    world.another().tick()
    again = world.reserved()
    assert again == first
    assert world.another().tick().candidates == 0
    assert world.counted(Outcome.EXPIRED) == 1
    assert world.balance() == (0, 0, 0)
    world.checked()


def test_a_reserve_is_retried_between_page_and_script(world: World) -> None:
    first = world.reserved()
    answers: list[Reserved] = []
    world.between(lambda: answers.append(world.reserved())).tick()
    assert answers == [first]
    assert world.counted(Outcome.EXPIRED) == 1
    assert world.balance() == (0, 0, 0)
    world.checked()
