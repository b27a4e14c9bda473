"""A kind of which no entry was seen alive yet: what a wrong setting would drop stays in the index."""

import copy
from typing import Any

import pytest
import redis

from tests.lua.kinds.world import DEADLINE, SCRIPT, SEATS, Seats, scripted

FORMS = {"declared": SEATS, "script": scripted(SCRIPT)}
OVER = {"over": {"state": ["SOLD", "VOID"]}}


@pytest.fixture(params=FORMS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return FORMS[request.param]


def placed(client: redis.Redis, kind: dict[str, Any], case: str) -> Seats:
    seats = Seats(client, kind)
    seats.show()
    seats.hold(state="HELD" if case == "no hash" else case)
    if case == "no hash":
        client.delete("seats:hold:h1")
    return seats


@pytest.mark.parametrize(
    ("case", "detail", "why"), [("no hash", "not_found", ""), ("SOLD", "skipped", "SOLD"), ("x" * 999, "skipped", "x")]
)
def test_an_unproven_kind_holds_what_it_does_not_know(
    client: redis.Redis, kind: dict[str, Any], case: str, detail: str, why: str
) -> None:
    seats = placed(client, kind, case)
    before = seats.snapshot()
    decision = seats.run(proven=False)
    assert (decision.outcome, decision.detail) == ("held", detail)
    assert why in decision.why
    assert len(decision.why) <= 256
    assert seats.snapshot() == before


def test_the_cause_names_the_field_and_both_values(client: redis.Redis) -> None:
    decision = placed(client, SEATS | {"active": {"state": "held"}}, "HELD").run(proven=False)
    assert (decision.outcome, decision.why) == ("held", "state is HELD, active says held")


@pytest.mark.every_redis
@pytest.mark.parametrize("state", ["EXPIRED", "SOLD", "VOID"])
def test_an_unproven_kind_drops_the_ends_that_it_knows(client: redis.Redis, kind: dict[str, Any], state: str) -> None:
    seats = placed(client, kind | OVER, state)
    if state == "EXPIRED" and "script" in kind:
        # Its `ended` might name the living state, and no template of sweeperd writes it.
        assert seats.run(proven=False).outcome == "held"
        return
    before = copy.deepcopy(seats.snapshot())
    decision = seats.run(proven=False)
    assert (decision.outcome, decision.detail, decision.why) == ("skipped", state, "")
    del before[seats.kind.index]
    assert seats.snapshot() == before


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, "expired"),
        ({"expires_at": 9_000_000_000_000}, "not_due"),
        ({"expires_at": "soon"}, "quarantined"),
        ({"qty": "nan"}, "quarantined"),
    ],
)
def test_an_unproven_kind_decides_the_rest_as_ever(
    client: redis.Redis, kind: dict[str, Any], fields: dict[str, Any], outcome: str
) -> None:
    seats = Seats(client, kind)
    seats.show()
    seats.hold(**fields)
    assert seats.run(proven=False).outcome == outcome


def test_without_the_argument_a_kind_is_unproven(client: redis.Redis) -> None:
    """A caller that knows nothing of proofs empties no index."""
    seats = placed(client, SEATS, "no hash")
    call = seats.kind.call(b"h1", "0" * 32)
    reply = client.eval(seats.kind.script.source, len(call.keys), *call.keys, *call.args[:4])
    assert seats.kind.decision(b"h1", reply).outcome == "held"
    assert client.zscore("seats:ttl", "h1") == DEADLINE


@pytest.mark.every_redis
@pytest.mark.parametrize(("over", "unexpected"), [({}, False), (OVER, True)], ids=["without over", "with over"])
def test_a_proven_kind_drops_and_says_what_over_does_not_name(
    client: redis.Redis, kind: dict[str, Any], over: dict[str, Any], unexpected: bool
) -> None:
    decision = placed(client, kind | over, "LOST").run()
    assert (decision.outcome, decision.detail) == ("skipped", "LOST")
    assert ("LOST" in decision.why) is unexpected
    assert not client.exists("seats:ttl")


def test_over_takes_one_value_as_text(client: redis.Redis, kind: dict[str, Any]) -> None:
    assert placed(client, kind | {"over": {"state": "SOLD"}}, "SOLD").run(proven=False).outcome == "skipped"
