"""Checks that each property fails for a script that is broken on purpose."""

from collections.abc import Sequence
from contextlib import closing, suppress

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings

from tests.property.play import Step, World, run, steps
from tests.support.books import Broken, Property
from tests.support.joined_scripts import changed_scripts
from tests.support.servers import Server

#: Name -> what is broken by it, a text that stands in a script or in what it includes, and what stands there instead.
MUTATIONS = {
    "reserve without enough": (
        Property.NOT_NEGATIVE,
        "if amounts.less(budget.remaining, amount) then",
        "if false then",
    ),
    "expire gives back too much": (
        Property.BALANCED,
        "format('%d', remaining + small_amount)",
        "format('%d', remaining + small_amount + 1)",
    ),
    "expire gives back without letting go": (
        Property.HELD,
        "call('HSET', key, 'reserved', budget[1], 'remaining', budget[2])",
        "call('HSET', key, 'remaining', budget[2])",
    ),
    "an ending under the bare id": (
        Property.EXPLAINED,
        "redis.call('HSET', request.key, ...)",
        "redis.call('HSET', 'reservation:' .. request.id, ...)",
    ),
    "an answer is not kept": (Property.ONE_TO_ONE, "{'SET', key, request_hash", "{'SET', key .. 'x', request_hash"),
    "an ending does not look at the state": (
        Property.ONE_ENDING,
        "local state, amount, unit = row[1], row[5], row[6]",
        "local state, amount, unit = row[1] and 'ACTIVE', row[5], row[6]",
    ),
    "extend leaves the index alone": (
        Property.INDEXED,
        "redis.call('HSET', KEYS[1], 'expires_at', expires_text, 'extension_count', count_text)\n"
        "  redis.call('ZADD', KEYS[2], expires_text, ARGV[2])",
        "redis.call('HSET', KEYS[1], 'expires_at', expires_text, 'extension_count', count_text)",
    ),
    "expire tells of somebody else": (Property.TOLD_ONCE, "'*', 'id', id,", "'*', 'id', 'nobody',"),
    "a crossed threshold is not announced": (Property.ANNOUNCED, "if announced then", "if false then"),
    "grace does not end": (
        Property.ENDED,
        "return at <= expires_at + grace and 'in_grace'",
        "return true and 'in_grace'",
    ),
}


@pytest.mark.release
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_caught(mutation: str, client: redis.Redis, server: Server) -> None:
    broken, text, instead = MUTATIONS[mutation]
    hit: list[str] = []

    def mutated(name: str, whole: str) -> str:
        if text in whole:
            hit.append(name)
        return whole.replace(text, instead)

    caught: list[Broken] = []

    class Caught(Exception):
        """Hypothesis ends at it, and runs the same traffic once more."""

    @given(traffic=steps)
    @settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture],
        phases=[Phase.generate],
        max_examples=400,
        derandomize=True,
        report_multiple_bugs=False,
    )
    def traffic_with_it(traffic: Sequence[Step]) -> None:
        # The clock took part in what was caught, so it would not always happen again: once is enough.
        if not caught:
            with closing(World(client, server)) as world:
                try:
                    run(world, traffic)
                    world.conclude({broken})
                except Broken as error:
                    caught.append(error)
        if caught:
            raise Caught

    with changed_scripts(mutated), suppress(Caught):
        traffic_with_it()
    assert hit, "the text stands in no script any more"
    assert [error.property for error in caught] == [broken]


def test_each_property_has_its_mutation() -> None:
    assert {broken for broken, _, _ in MUTATIONS.values()} == set(Property)
