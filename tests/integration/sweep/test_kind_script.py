"""Tests the generated script of a kind: what a user's file can use, and what no plan may write."""

from typing import Any

import pytest
import redis

from sweeperd.sweep.kind_script import BASIC_GLOBALS, LIBRARIES
from tests.lua.kinds.world import Seats, scripted, settings_of
from tests.support.builders import configured_kind

EXPIRE = "function decide() return 'expire' end\n"


def test_a_file_gets_the_functions_of_lua_that_are_promised(client: redis.Redis) -> None:
    names = [f"{library}.{name}" for library, functions in LIBRARIES.items() for name in functions.split()]
    kinds = ", ".join(f"['{name}'] = type({name})" for name in [*BASIC_GLOBALS, *names, "json.decode", "json.encode"])
    seats = Seats(client, scripted(f"{EXPIRE}function plan() return {{}}, {{{kinds}}} end"))
    seats.show()
    seats.hold()
    assert seats.run().outcome == "expired"
    (event,) = seats.events()
    found = {name: value for name, value in event.items() if name.startswith(b"data.")}
    others = {name for name, value in found.items() if value != b"function"}
    assert len(found) == len(BASIC_GLOBALS) + len(names) + 2
    assert others == {b"data.math.huge"}


@pytest.mark.parametrize("key", ["reservation:ttl", "reservation:res_1", "budget:tenant:acme:TOKENS"])
@pytest.mark.parametrize("reservations", [True, False])
def test_no_plan_writes_what_belongs_to_reservations_while_they_are_swept(
    client: redis.Redis, key: str, reservations: bool
) -> None:
    kind: dict[str, Any] = scripted(f"{EXPIRE}function plan() return {{{{'SET', '{key}', 'v'}}}} end", writes=["*"])
    seats = Seats(client, kind)
    seats.settings = settings_of(kind, reservations=reservations)
    seats.kind = configured_kind(seats.settings.kinds[0], seats.settings, seats.keys)
    seats.show()
    seats.hold()
    if reservations:
        seats.check_quarantined("INVALID_PLAN")
    else:
        assert seats.run().outcome == "expired"
        assert client.get(key) == b"v"


@pytest.mark.parametrize("qty", ["3", "30"])
def test_a_declared_plan_and_its_event_have_65536_bytes_at_most(client: redis.Redis, qty: str) -> None:
    """However the plan is checked: all words but the names of the commands count, and the values of the event."""
    words = ["seats:s1", "free", qty, "seats:s1", "held", f"-{qty}", "MIN", "0"]
    note = 65_536 - sum(map(len, [*words, "s1", qty]))
    seats = Seats(client)
    seats.show(held=100)
    seats.hold(qty=qty, note="n" * note)
    assert seats.run().outcome == "expired"
    seats.hold(qty=qty, note="n" * (note + 1))
    seats.check_quarantined("INVALID_PLAN", why="bytes")
