"""Checks that the fast check of a plan comes to the result of the full check."""

import itertools
import json
from dataclasses import replace
from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeperd.store.scripts import Script
from tests.lua.kinds.world import DEADLINE, ID, Seats, scripted

PLAN = """
function decide() return 'expire' end
function plan(hash)
  if hash.reads == 'yes' then
    get('HMGET', 'seats:s1', 'a', 'b', 'c', 'd')
    get('HMGET', 'seats:s2', 'a', 'none')
  end
  return json.decode(hash.plan), {count = '1'}
end
"""
KIND = scripted(PLAN)
#: Numbers around 15 digits, where the quick way ends, and some that are none.
EDGES = ("0", "1", "-1", "7", "-7", "999999999999999", "-99999999999999", "1000000000000000", "-100000000000000")
numbers = st.sampled_from([*EDGES, str(2**63 - 1), str(-(2**63)), "-0", "007", "+1", "x", ""])
keys = st.sampled_from(["seats:s1", "seats:s1", "seats:s2", "seats:s3", "seats:none", "seats:text", "other"])
fields = st.sampled_from(["a", "b", "c", "d", "e", "word", "none"])
least = st.one_of(st.just(()), st.tuples(st.just("MIN"), numbers))
command = st.builds(
    lambda key, field, amount, more: ["HINCRBY", key, field, amount, *more], keys, fields, numbers, least
)
#: All fields of one key, as a script adds to them: the everyday plan.
everyday = st.builds(
    lambda key, names, amounts: [["HINCRBY", key, *pair] for pair in zip(names, amounts, strict=False)],
    st.sampled_from(["seats:s1", "seats:s2", "seats:s3"]),
    st.permutations(["a", "b", "c", "d", "e"]),
    st.lists(st.sampled_from(EDGES), min_size=1, max_size=5),
)
plans = st.one_of(
    st.lists(command, max_size=6),
    st.lists(everyday, min_size=1, max_size=3).map(lambda each: list(itertools.chain(*each))),
)


def arrange(client: redis.Redis, held: list[str]) -> Seats:
    client.flushall()
    seats = Seats(client, KIND)
    for name in ("s1", "s2", "s3"):
        values: dict[Any, Any] = dict(zip("abcde", held, strict=True)) | {"word": "x"}
        client.hset(f"seats:{name}", mapping=values)
    client.set("seats:text", "x")
    return seats


def outcome(client: redis.Redis, plan: list[Any], held: list[str], reads: str, *, quick: bool) -> tuple[Any, ...]:
    seats = arrange(client, held)
    if not quick:
        text = seats.kind.script.source
        full = text.replace("local checked = kind_quick_list(", "local checked = nil and kind_quick_list(")
        assert full != text
        seats.kind = replace(seats.kind, script=Script("full", full))
    seats.hold(plan=json.dumps(plan), reads=reads)
    decision = seats.run(at=DEADLINE + 1)
    world = seats.snapshot()
    world.pop(b"sweeperd:events", None)  # its ids are moments
    world.get(b"seats:hold:" + ID, {}).pop(b"quarantine_detail", None)
    return decision.outcome, decision.detail, world, len(seats.events())


@given(plan=plans, held=st.lists(st.sampled_from(EDGES), min_size=5, max_size=5), reads=st.sampled_from(["yes", "no"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_comes_to_the_same(client: redis.Redis, plan: list[Any], held: list[str], reads: str) -> None:
    assert outcome(client, plan, held, reads, quick=True) == outcome(client, plan, held, reads, quick=False)
