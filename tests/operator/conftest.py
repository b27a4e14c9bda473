"""The shards that these tests look at."""

from collections.abc import Iterator

import pytest

from sweeperd.embedded import Server
from sweeperd.shard import Shard
from tests.unit.conftest import a_shard


@pytest.fixture
def shard(server: Server) -> Iterator[Shard]:
    """The empty test server as a shard whose clock has been read."""
    with a_shard(server) as ready:
        yield ready
