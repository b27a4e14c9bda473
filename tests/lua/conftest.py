"""The world that each test of the scripts starts from."""

from collections.abc import Iterator

import pytest
import redis

from tests.lua.builders import NOW, SCOPES, World, seed, seed_bystanders
from tests.lua.ledger_book import Book, a_book
from tests.support.servers import Binary, Server


@pytest.fixture
def bystanders(client: redis.Redis) -> World:
    """Entries that no test names: no call may change them."""
    return seed_bystanders(World(client))


@pytest.fixture
def world(client: redis.Redis) -> World:
    """An overdue reservation RID whose two budgets exist, among bystanders."""
    return seed(World(client))


@pytest.fixture
def book(server: Server) -> Iterator[Book]:
    """Two budgets of 1000, at NOW."""
    with a_book(server) as ready:
        ready.freeze(NOW)
        ready.open(*SCOPES)
        yield ready


@pytest.fixture(scope="module")
def server_to_fill(redis_binary: Binary) -> Iterator[Server]:
    with Server(redis_binary, ["--maxmemory-policy", "noeviction"]) as server:
        yield server
