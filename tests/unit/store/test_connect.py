"""What opening a connection costs."""

from importlib import metadata

import pytest

from sweeperd.config import RedisSettings
from sweeperd.store import Shard

pytest.importorskip("redis.driver_info", reason="this redis-py has no such option")


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis+cluster://127.0.0.1:1"])
def test_no_connection_searches_the_installed_packages(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = "{t}:" if "cluster" in url else ""
    shard = Shard(RedisSettings.model_validate({"url": url}), prefix)
    monkeypatch.setattr(metadata, "version", lambda name: pytest.fail(f"{name} is looked up"))
    monkeypatch.setattr("redis.utils.get_lib_version", lambda: metadata.version("redis"))
    assert shard.client.connection_pool.make_connection()
