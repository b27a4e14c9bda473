"""The parts of a chaos soak: the schedule is a function of its seed, and each verdict notices what does not hold."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.soak.census import IndexLook
from tests.soak.chaos import verdicts
from tests.soak.chaos.faults import REPLICAS, SETTINGS, SHARDS, Fault, FaultType, calm, schedule
from tests.soak.chaos.inflict import Inflicted
from tests.soak.chaos.missing import Place
from tests.soak.chaos.moment import BudgetLook, Moment
from tests.soak.chaos.receivers import ACCEPT, HANG, REFUSE, Inbox, Received, failing, hanging
from tests.soak.chaos.verdicts import Delivered

SEEDS = range(40)


@pytest.mark.parametrize("duration", [36.0, 600.0, 1800.0])
def test_a_schedule_is_drawn_from_its_seed_alone(duration: float) -> None:
    assert schedule(7, duration) == schedule(7, duration)
    assert schedule(7, duration) != schedule(8, duration)


@pytest.mark.parametrize("duration", [36.0, 600.0, 1800.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_type_comes_between_the_quiet_ends(seed: int, duration: float) -> None:
    planned = schedule(seed, duration)
    assert {fault.type for fault in planned} == set(FaultType)
    assert min(fault.at for fault in planned) >= calm(duration)
    assert max(fault.end for fault in planned) <= duration - calm(duration)
    assert planned == sorted(planned, key=lambda fault: fault.at)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_target_has_two_faults_at_once(seed: int) -> None:
    planned = schedule(seed, 1800.0)
    for target in {*REPLICAS, *SHARDS, SETTINGS}:
        faults = [fault for fault in planned if fault.target == target]
        assert all(one.end <= two.at for one, two in pairwise(faults)), target


def test_types_that_cannot_be_had_are_left_out() -> None:
    types = [type_ for type_ in FaultType if type_ is not FaultType.SKEW]
    assert {fault.type for fault in schedule(1, 600.0, types)} == set(types)


@pytest.mark.parametrize(("choice", "skew"), [(0.0, "-48h"), (0.3, "-2h"), (0.6, "+2h"), (0.99, "+48h")])
def test_a_clock_is_moved_forwards_and_backwards(choice: float, skew: str) -> None:
    assert Fault(0.0, FaultType.SKEW, REPLICAS[0], 1.0, choice).skew == skew


def test_receivers_are_as_bad_as_they_should_be() -> None:
    behave = failing(3)
    answers = [behave(0.0) for _ in range(3000)]
    assert 900 < answers.count(REFUSE) < 1100
    assert answers.count(REFUSE) + answers.count(ACCEPT) == 3000
    assert [hanging(at) for at in (0.0, 7.9, 8.1, 19.9, 20.1)] == [HANG, HANG, ACCEPT, ACCEPT, HANG]


def event(number: int, event_id: str = "") -> dict[str, object]:
    return {"event_id": event_id or f"evt_{number}", "data": {"reservation_id": f"r{number}"}}


def test_an_inbox_counts_what_was_accepted_and_nothing_else() -> None:
    inbox = Inbox()
    inbox.take([event(1), event(2)], ACCEPT)
    inbox.take([event(2)], ACCEPT)
    inbox.take([event(3)], REFUSE)
    inbox.take([event(4)], HANG)
    assert (inbox.distinct, inbox.repeated) == (2, 1)
    assert inbox.counts == Received(requests=4, refused=1, hung=1, batches=1)
    assert inbox.reservations() == {"r1": {"evt_1"}, "r2": {"evt_2"}}


def test_what_is_due_is_compared_with_what_was_accepted() -> None:
    got = {"r1": {"a"}, "r2": {"b", "c"}, "r9": {"d"}}
    found = verdicts.delivered("one", ["r1", "r2", "r3"], got, {Place.PARKED: 1}, repeated=4, bound=5)
    assert found == Delivered("one", {Place.PARKED: 1}, strangers=1, two_ids=1, repeated=4, bound=5)


GOOD = Delivered("one", {}, strangers=0, two_ids=0, repeated=5, bound=5)
SOME_MISS = {Place.UNTAKEN: 2, Place.LOST: 1}


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        ([GOOD, GOOD], True),
        ([GOOD, replace(GOOD, missing=SOME_MISS)], False),
        ([GOOD, replace(GOOD, strangers=1)], False),
        ([GOOD, replace(GOOD, two_ids=1)], False),
        ([GOOD, replace(GOOD, repeated=6)], False),
        ([], False),
    ],
)
def test_endpoints(found: list[Delivered], holds: bool) -> None:
    assert verdicts.endpoints(found).holds is holds


def test_the_table_says_where_missing_events_are() -> None:
    found = verdicts.endpoints([GOOD, replace(GOOD, endpoint="two", missing=SOME_MISS)]).found
    assert found.split("; ") == [
        "one: 0 missing, 0 wrong, 5 again (at most 5)",
        "two: 3 missing (2 not taken yet, 1 acknowledged and not accepted), 0 wrong, 5 again (at most 5)",
    ]


@pytest.mark.parametrize(
    ("batches", "refused", "hung", "moved", "holds"),
    [(3, 33, 2, 5, True), (0, 33, 2, 5, False), (3, 5, 2, 5, False), (3, 33, 0, 5, False), (3, 33, 2, 0, False)],
)
def test_behaved(batches: int, refused: int, hung: int, moved: int, holds: bool) -> None:
    found = verdicts.behaved(
        Received(requests=9, batches=batches),
        Received(requests=100, refused=refused),
        Received(requests=9, hung=hung),
        Received(requests=moved),
    )
    assert found.holds is holds


def moment(
    shard: str, *, without_hash: int = 0, without_entry: int = 0, wrong: tuple[int, int, int] = (0, 0, 0)
) -> Moment:
    return Moment(1.0, shard, IndexLook(5, without_hash, without_entry), BudgetLook(*wrong))


@pytest.mark.parametrize(
    ("taken", "holds"),
    [
        ([moment("north"), moment("south")], True),
        ([moment("north"), moment("north")], False),  # the other shard was never read
        ([moment("north"), moment("south", without_hash=1)], False),
        ([moment("north"), moment("south", without_entry=1)], False),
        ([moment("north"), moment("south", wrong=(1, 0, 0))], False),
        ([moment("north"), moment("south", wrong=(0, 1, 0))], False),
        ([moment("north"), moment("south", wrong=(0, 0, 1))], False),
        ([], False),
    ],
)
def test_moments(taken: list[Moment], holds: bool) -> None:
    assert verdicts.moments(taken, SHARDS).holds is holds


KILLED = Inflicted(Fault(1.0, FaultType.KILL, REPLICAS[0], 1.0, 0.5), 1.0, 2.0, "ended with -9")
CUT = Inflicted(Fault(3.0, FaultType.CUT, SHARDS[0], 0.0, 0.5), 3.0, 3.0, "4 connections")
PLANNED = {FaultType.KILL: 1, FaultType.CUT: 1}


@pytest.mark.parametrize(
    ("inflicted", "holds"),
    [
        ([KILLED, CUT], True),
        ([KILLED], False),
        ([KILLED, replace(CUT, effect="")], False),
        ([KILLED, replace(CUT, trouble="NoEffect: no connection was there")], False),
        ([], False),
    ],
)
def test_all_faults(inflicted: list[Inflicted], holds: bool) -> None:
    assert verdicts.all_faults(inflicted, PLANNED).holds is holds


def test_only_lost_hands_explain_repetitions() -> None:
    assert verdicts.most_repeated([CUT], batch_size=1) == 0
    one = verdicts.most_repeated([KILLED, CUT], batch_size=1)
    assert one > 0
    assert verdicts.most_repeated([KILLED, KILLED], batch_size=10) == 20 * one


@pytest.mark.parametrize(
    ("exits", "holds"), [({"a": 0, "b": 0}, True), ({"a": 0, "b": 1}, False), ({"a": 0, "b": None}, False), ({}, False)]
)
def test_alive(exits: dict[str, int | None], holds: bool) -> None:
    assert verdicts.alive(exits).holds is holds
