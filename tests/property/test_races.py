"""
The races between the ledger's clients and the sweep, each forced into both of its orders.

A sweep reads a page of ids and then has the script decide each. `World.between` puts a rival between the two; and
scripts whose TIME is fixed (`at`) meet in the very millisecond in which the decision turns.
"""

import dataclasses
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis

from sweeperd.config import SweepSettings
from sweeperd.ledger import Ledger, LedgerError, ReservationExpired, Reserved
from sweeperd.metrics import Metrics
from sweeperd.sweep import Kind, Outcome
from sweeperd.sweep.sweeper import Sweeper
from sweeperd.sweep.telemetry import SweepTelemetry
from tests.property import play
from tests.support.books import ALWAYS, Property, check, read
from tests.support.builders import make_sweeper, reservations_kind
from tests.support.harness import eventually, server_time
from tests.support.joined_scripts import changed_scripts
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


@contextmanager
def at(world: World, milliseconds: int) -> Iterator[tuple[Ledger, Sweeper]]:
    """A ledger and a sweeper whose scripts read this from TIME."""
    reading = f"({{'{milliseconds // 1000}', '{milliseconds % 1000 * 1000}'}})"
    with changed_scripts(lambda _, text: re.sub(r"\b[\w.]*call\('TIME'\)", reading, text)):
        yield Ledger(world.shard), world.another()


def accepted(call: Callable[[], object]) -> bool:
    try:
        call()
    except LedgerError:
        return False
    return True


# ---- a commit in the grace window against the sweep


def test_a_commit_in_grace_comes_between_page_and_script(world: World) -> None:
    entry = world.reserved(grace=timedelta(minutes=1)).reservation_id.encode()
    world.between(lambda: world.ledger.commit(TENANT, entry, 3, idempotency_key="c")).tick()
    assert world.state(entry) == b"COMMITTED"
    assert world.counted(Outcome.SKIPPED) == 1
    assert world.balance() == (-3, 0, 3)
    world.checked()


def test_a_commit_in_grace_comes_after_the_sweep(world: World) -> None:
    entry = world.reserved(grace=timedelta(minutes=1)).reservation_id.encode()
    world.another().tick()
    assert world.counted(Outcome.IN_GRACE) == 1
    world.ledger.commit(TENANT, entry, 3, idempotency_key="c")
    assert world.another().tick().candidates == 0
    assert world.balance() == (-3, 0, 3)
    world.checked()


@pytest.mark.parametrize("sweep_first", [True, False])
@pytest.mark.parametrize("operation", ["commit", "release"])
@pytest.mark.parametrize("past", [-1, 0, 1, 2])
def test_each_millisecond_around_the_end_of_grace_has_one_winner(
    past: int, operation: str, sweep_first: bool, world: World
) -> None:
    """Up to the end of the grace the client is right, from the next millisecond on the sweep is."""
    grace = timedelta(milliseconds=20)
    made = world.reserved(grace=grace)
    with at(world, made.expires_at + 20 + past) as (ledger, sweeper):

        def client() -> bool:
            if operation == "commit":
                return accepted(
                    lambda: ledger.commit(TENANT, made.reservation_id.encode(), AMOUNT, idempotency_key="x")
                )
            return accepted(lambda: ledger.release(TENANT, made.reservation_id.encode(), idempotency_key="x"))

        if sweep_first:
            sweeper.tick()
            won = client()
        else:
            won = client()
            sweeper.tick()
    assert won is (past <= 0)
    assert world.counted(Outcome.EXPIRED) == (past > 0)
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


@pytest.mark.parametrize("sweep_first", [True, False])
@pytest.mark.parametrize("past", [-1, 0, 1])
def test_each_millisecond_around_the_deadline_has_one_winner(past: int, sweep_first: bool, world: World) -> None:
    """Extensions have no grace: at the deadline one is accepted, a millisecond later the sweep expires."""
    made = world.reserved()
    with at(world, made.expires_at + past) as (ledger, sweeper):

        def extend() -> bool:
            return accepted(
                lambda: ledger.extend(TENANT, made.reservation_id.encode(), timedelta(minutes=1), idempotency_key="e")
            )

        if sweep_first:
            sweeper.tick()
            won = extend()
        else:
            won = extend()
            sweeper.tick()
    assert won is (past <= 0)
    assert world.counted(Outcome.EXPIRED) == (past > 0)
    # Where the extension came first, the sweep's page does not hold the entry at all.
    assert world.counted(Outcome.NOT_DUE) == (won and sweep_first)
    world.checked(over=not won)


# ---- a release against the sweep


def test_a_release_comes_between_page_and_script(world: World) -> None:
    entry = world.reserved(grace=timedelta(minutes=1)).reservation_id.encode()
    world.between(lambda: world.ledger.release(TENANT, entry, idempotency_key="x")).tick()
    assert world.state(entry) == b"RELEASED"
    assert world.counted(Outcome.SKIPPED) == 1
    assert world.balance() == (0, 0, 0)
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
