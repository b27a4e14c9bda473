"""What opening a connection costs."""

import pytest
import redis

from sweeperd.config import RedisSettings
from sweeperd.store import Shard

pytest.importorskip("redis.driver_info", reason="this redis-py has no such option")


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis+cluster://127.0.0.1:1"])
def test_no_connection_searches_the_installed_packages(url: str) -> None:
    """redis-py does, for its version, unless it is told what to say of itself."""
    shard = Shard(RedisSettings.model_validate({"url": url}), "{t}:" if "cluster" in url else "")
    assert shard.client.connection_pool.connection_kwargs["driver_info"].lib_version == redis.__version__
