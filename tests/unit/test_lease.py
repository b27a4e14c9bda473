"""The lease, on a real Redis."""

from collections.abc import Iterator

import pytest
import redis

from sweeperd.lease import TTL, Lease
from sweeperd.shard import Shard
from tests.unit.conftest import full
from tests.world import eventually

KEY = "sweeperd:lease:sweep"


@pytest.fixture
def pair(shard: Shard) -> Iterator[tuple[Lease, Lease]]:
    """Two replicas."""
    return Lease(shard, "sweep"), Lease(shard, "sweep")


def test_one_at_a_time(pair: tuple[Lease, Lease]) -> None:
    ours, theirs = pair
    assert ours.acquire()
    assert not theirs.acquire()
    ours.release()
    assert theirs.acquire()
    assert not ours.acquire()


def test_only_its_holder_releases_it(pair: tuple[Lease, Lease], client: redis.Redis) -> None:
    ours, theirs = pair
    ours.acquire()
    token = client.get(KEY)
    theirs.release()
    assert client.get(KEY) == token
    ours.release()
    assert client.get(KEY) is None
    ours.release()  # nothing to release


def test_one_that_could_not_be_released_is_kept(pair: tuple[Lease, Lease], client: redis.Redis) -> None:
    ours, theirs = pair
    ours.acquire()
    client.pexpire(KEY, 1000)
    assert ours.acquire()
    assert client.pttl(KEY) > 1000
    assert not theirs.acquire()


def test_it_runs_out(pair: tuple[Lease, Lease], client: redis.Redis) -> None:
    ours, theirs = pair
    ours.acquire()
    assert 0 < client.pttl(KEY) <= TTL * 1000
    client.pexpire(KEY, 50)
    eventually(theirs.acquire)
    ours.release()
    assert client.exists(KEY), "it is another's now"


def test_renew(pair: tuple[Lease, Lease], client: redis.Redis) -> None:
    ours, theirs = pair
    ours.acquire()
    client.pexpire(KEY, 1000)
    ours.renew()
    assert client.pttl(KEY) <= 1000, "a third of its time has not gone yet"
    ours._renew_at = 0.0
    ours.renew()
    assert 1000 < client.pttl(KEY) <= TTL * 1000
    ours.release()
    theirs.acquire()
    client.pexpire(KEY, 1000)
    ours._renew_at = 0.0
    ours.renew()
    assert client.pttl(KEY) <= 1000, "it is another's now"


def test_renewing_does_not_bring_it_back(pair: tuple[Lease, Lease], client: redis.Redis) -> None:
    ours, _ = pair
    ours.acquire()
    client.delete(KEY)
    ours._renew_at = 0.0
    ours.renew()
    assert not client.exists(KEY)


def test_each_job_has_its_own(shard: Shard) -> None:
    assert Lease(shard, "sweep").acquire()
    assert Lease(shard, "trim").acquire()


def test_a_full_redis_is_swept_without(own_shard: Shard) -> None:
    ours, theirs = Lease(own_shard, "sweep"), Lease(own_shard, "sweep")
    with full(own_shard):
        assert ours.acquire()
        assert theirs.acquire()
        ours.renew()
        ours.release()
        assert not own_shard.client.exists(KEY)
    assert ours.acquire()
    with full(own_shard):
        ours.release()
        assert not own_shard.client.exists(KEY), "to let go of it needs no memory"


def test_any_other_refusal_is_raised(shard: Shard, client: redis.Redis) -> None:
    lease = Lease(shard, "sweep")
    lease.acquire()
    client.delete(KEY)
    client.rpush(KEY, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        lease.release()
