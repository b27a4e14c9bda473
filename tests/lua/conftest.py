"""The world that each test of the script starts from."""

import pytest
import redis

from tests.lua.builders import World, seed, seed_bystanders


@pytest.fixture
def bystanders(client: redis.Redis) -> World:
    """Entries that no test names: no call may change them."""
    return seed_bystanders(World(client))


@pytest.fixture
def world(client: redis.Redis) -> World:
    """An overdue reservation RID whose two budgets exist, among bystanders."""
    return seed(World(client))
