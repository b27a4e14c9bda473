"""Several living values of a field, defaults of missing fields, and names in quotes."""

from typing import Any

import pytest
import redis

from sweeperd.kit.prove import prove
from sweeperd.kit.samples import derived_samples
from tests.lua.kinds.world import SEATS, Seats, settings_of

PAYING: dict[str, Any] = SEATS | {"active": {"state": ["HELD", "PAYING"]}, "over": {"state": ["SOLD", "RELEASED"]}}
POINTS: dict[str, Any] = SEATS | {
    "give_back": [*SEATS["give_back"], 'HINCRBY points:{customer} {"sessionAttr:kind":1} {points:0}'],
    "event": ["show", "points:0", '"sessionAttr:user"'],
}


@pytest.mark.every_redis
@pytest.mark.parametrize(
    ("state", "outcome", "why"),
    [
        ("HELD", "expired", ""),
        ("PAYING", "expired", ""),
        ("SOLD", "skipped", ""),
        ("paying", "skipped", "state is paying, active says HELD or PAYING"),
    ],
)
def test_each_of_several_values_is_alive(client: redis.Redis, state: str, outcome: str, why: str) -> None:
    seats = Seats(client, PAYING)
    seats.show()
    seats.hold(state=state)
    decision = seats.run()
    assert (decision.outcome, decision.why) == (outcome, why)
    assert seats.seats() == ((13, 2) if outcome == "expired" else (10, 5))


@pytest.mark.parametrize(("points", "added"), [(None, 0), ("", 0), ("7", 7)])
@pytest.mark.every_redis
def test_a_default_stands_for_a_missing_or_empty_field(client: redis.Redis, points: str | None, added: int) -> None:
    seats = Seats(client, POINTS)
    seats.show()
    client.hset("points:c1", mapping={"1": 10, "web": 10})
    seats.hold(points=points, **{"sessionAttr:user": "ada", "sessionAttr:kind": "web"})
    assert seats.run().outcome == "expired"
    assert client.hget("points:c1", "web") == b"%d" % (10 + added)
    (event,) = seats.events()
    assert (event[b"data.points"], event[b"data.sessionAttr:user"]) == (b"%d" % added, b"ada")


def test_an_amount_that_is_there_is_checked_in_spite_of_its_default(client: redis.Redis) -> None:
    seats = Seats(client, POINTS)
    seats.show()
    seats.hold(points="-7")
    seats.check_quarantined("INVALID_PLAN", why="no amount: -7")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PAYING, POINTS], ids=["values", "defaults"])
def test_they_are_proved(kind: dict[str, Any]) -> None:
    settings = settings_of(kind, reservations=False)
    (made,) = settings.kinds
    proofs = {proof.name: proof.failure for proof in prove(settings, made, derived_samples(made))}
    assert not any(proofs.values()), proofs
