"""A renewal of a lease that fails: its function is replaced, so that it fails exactly twice."""

from typing import Any

import pytest
import redis

from sweeperd import progress
from tests.integration.store.test_lease import KEY, Replica, quick
from tests.support.harness import eventually

__all__ = ["quick"]


def test_a_renewal_that_fails_is_tried_again(
    quick: Replica, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []
    extend = quick.lease._extend

    def fails_twice(ttl_ms: int) -> Any:
        tries.append(1)
        if len(tries) <= 2:
            raise redis.ConnectionError("cut")
        return extend(ttl_ms)

    quick.lease.acquire()
    monkeypatch.setattr(quick.lease, "_extend", fails_twice)
    with quick.lease.kept() as lost:
        progress.allow(60)
        eventually(lambda: len(tries) >= 4)
        assert client.exists(KEY)
        assert not lost.is_set()
    assert quick.lost == 0
