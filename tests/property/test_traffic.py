"""
The books are right after any operations of clients in any order, alone or at once, while a sweeper runs.

50 tries each; `python -m pytest tests/property --hypothesis-profile thorough` makes 1,000.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.property.play import Step, World, run, run_at_once, steps
from tests.support.servers import Server

CLIENTS = 3


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    """A thread for each client, one for its retries, and the sweeper's."""
    with ThreadPoolExecutor(2 * CLIENTS + 1) as threads:
        yield threads


#: `asynchronous`: the clients use an AsyncLedger.
@given(traffic=steps, asynchronous=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_client(client: redis.Redis, server: Server, traffic: Sequence[Step], asynchronous: bool) -> None:
    with closing(World(client, server, asynchronous=asynchronous)) as world:
        run(world, traffic)
        world.conclude()


@given(clients=st.lists(steps, min_size=2, max_size=CLIENTS), asynchronous=st.booleans())
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    # Threads do not meet in the same way twice, so there is no smaller example to search for.
    phases=[Phase.explicit, Phase.generate],
)
def test_clients_at_once(
    client: redis.Redis, server: Server, pool: ThreadPoolExecutor, clients: Sequence[Sequence[Step]], asynchronous: bool
) -> None:
    with closing(World(client, server, asynchronous=asynchronous)) as world:
        run_at_once(world, clients, pool)
        world.conclude()
