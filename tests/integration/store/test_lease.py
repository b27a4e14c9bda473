"""The lease, on a real Redis."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import redis

from sweeperd import progress
from sweeperd.store import Shard
from sweeperd.store.lease import Lease, holder, process_name
from sweeperd.store.operations import run
from tests.support.fixtures import full
from tests.support.harness import eventually

KEY = "sweeperd:lease:sweep"
#: Long enough that nothing is renewed by the way.
LONG = timedelta(seconds=15)
#: Renewed every 100 ms.
SHORT = timedelta(seconds=1)


class Replica:
    """One of several processes, with its lease and how often it has lost it."""

    def __init__(self, shard: Shard, ttl: timedelta) -> None:
        self.lost = 0
        self.lease = Lease(shard, "sweep", ttl, self._on_lost)

    def _on_lost(self) -> None:
        self.lost += 1


@pytest.fixture
def pair(shard: Shard) -> tuple[Lease, Lease]:
    """Two replicas."""
    return Lease(shard, "sweep", LONG), Lease(shard, "sweep", LONG)


@pytest.fixture
def quick(shard: Shard) -> Replica:
    return Replica(shard, SHORT)


def renewals() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lease-sweep-default"]


def test_one_at_a_time(pair: tuple[Lease, Lease]) -> None:
    ours, theirs = pair
    assert ours.acquire()
    assert not theirs.acquire()
    assert ours.release()
    assert theirs.acquire()
    assert not ours.acquire()


def test_who_holds_it_can_be_asked(pair: tuple[Lease, Lease], shard: Shard) -> None:
    ours, _ = pair
    assert holder(shard, "sweep") == ""
    ours.acquire()
    assert holder(shard, "sweep") == process_name()
    ours.release()
    assert holder(shard, "sweep") == ""


def test_only_its_holder_releases_it(pair: tuple[Lease, Lease], client: redis.Redis) -> None:
    ours, theirs = pair
    ours.acquire()
    token = client.get(KEY)
    assert not theirs.release()
    assert client.get(KEY) == token
    assert ours.release()
    assert client.get(KEY) is None
    assert not ours.release(), "nothing to release"


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
    assert 14_000 < client.pttl(KEY) <= 15_000, "the time that it was given"
    client.pexpire(KEY, 50)
    eventually(theirs.acquire)
    assert not ours.release()
    assert client.exists(KEY), "it is another's now"


def test_it_is_renewed_while_the_job_runs_however_long_one_step_takes(quick: Replica, client: redis.Redis) -> None:
    assert quick.lease.acquire()
    token = client.get(KEY)
    with quick.lease.kept() as lost:
        progress.allow(60)
        until = time.monotonic() + 2 * SHORT.total_seconds()
        while time.monotonic() < until:
            assert client.get(KEY) == token
            threading.Event().wait(0.01)
        assert len(renewals()) == 1
        assert not lost.is_set()
    assert not client.exists(KEY), "released"
    assert not renewals()
    assert quick.lost == 0


def test_a_job_that_hangs_loses_it(quick: Replica, client: redis.Redis) -> None:
    assert quick.lease.acquire()
    with quick.lease.kept() as lost:
        for _ in range(12):
            progress.step()
            time.sleep(0.1)
            assert client.exists(KEY)
        began = time.monotonic()
        eventually(lambda: client.set(KEY, "a rival", nx=True), pause=0.01)
        assert time.monotonic() - began < 3 * SHORT.total_seconds()
        assert not lost.is_set(), "it does not know yet"
        progress.step()
        assert lost.wait(5)
    assert quick.lost == 1


@pytest.mark.parametrize("taken", [None, "somebody else"])
def test_it_is_lost_while_the_job_runs(taken: str | None, quick: Replica, client: redis.Redis) -> None:
    quick.lease.acquire()
    with quick.lease.kept() as lost:
        _take(client, taken)
        assert lost.wait(5)
        eventually(lambda: quick.lost == 1)
        eventually(lambda: not renewals())
    assert client.get(KEY) == (taken and taken.encode()), "renewing does not bring it back, nor take it away"
    assert quick.lost == 1, "counted once"


@pytest.mark.parametrize("taken", [None, "somebody else"])
def test_a_loss_that_is_seen_at_the_end_only(taken: str | None, shard: Shard, client: redis.Redis) -> None:
    replica = Replica(shard, LONG)
    replica.lease.acquire()
    with replica.lease.kept() as lost:
        _take(client, taken)
    assert not lost.is_set()
    assert replica.lost == 1
    assert client.get(KEY) == (taken and taken.encode())


def test_it_is_released_where_the_job_fails(quick: Replica, client: redis.Redis) -> None:
    quick.lease.acquire()
    with pytest.raises(ValueError, match="out of luck"), quick.lease.kept():
        raise ValueError("out of luck")
    assert not client.exists(KEY)
    assert not renewals()
    assert quick.lost == 0


def test_one_that_cannot_be_given_back_runs_out(own_shard: Shard, own_server: Any) -> None:
    replica = Replica(own_shard, LONG)
    replica.lease.acquire()
    with replica.lease.kept():
        own_server.kill()
    assert replica.lost == 0, "nobody knows"


@pytest.mark.every_redis
def test_a_full_redis_is_swept_without(own_shard: Shard) -> None:
    ours, theirs = Replica(own_shard, SHORT), Replica(own_shard, SHORT)
    with full(own_shard):
        for replica in (ours, theirs):
            assert replica.lease.acquire()
            with replica.lease.kept() as lost:
                assert not renewals()
            assert not lost.is_set()
            assert replica.lost == 0, "what was never held is not lost"
        assert not own_shard.client.exists(KEY)


def test_one_that_is_held_when_redis_fills_up(own_shard: Shard) -> None:
    ours = Replica(own_shard, timedelta(seconds=3))
    assert ours.lease.acquire()
    with full(own_shard):
        assert ours.lease.acquire()
        with ours.lease.kept() as lost:
            progress.allow(60)
            own_shard.client.pexpire(KEY, 2000)
            eventually(lambda: own_shard.client.pttl(KEY) > 2000)  # to renew it needs no memory
            assert not lost.is_set()
        assert not own_shard.client.exists(KEY), "nor does letting go of it"
    assert ours.lost == 0


def test_any_other_refusal_is_raised(pair: tuple[Lease, Lease], client: redis.Redis) -> None:
    lease, _ = pair
    lease.acquire()
    client.delete(KEY)
    client.rpush(KEY, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        lease.release()


def test_a_round_trip_that_others_share_takes_and_renews_it(
    pair: tuple[Lease, Lease], client: redis.Redis, own_shard: Shard
) -> None:
    first, second = pair
    assert run(client, first.hold())
    client.pexpire(KEY, 500)
    assert [run(client, each.hold()) for each in (first, second)] == [True, False]
    assert client.pttl(KEY) > 1000
    assert first.release()
    assert run(client, second.hold())
    client.delete(KEY)
    client.lpush(KEY, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        run(client, second.hold())
    held, free = Lease(own_shard, "held", LONG), Lease(own_shard, "free", LONG)
    assert run(own_shard.client, held.hold())
    with full(own_shard):
        assert [run(own_shard.client, each.hold()) for each in (held, free)] == [True, False]


@pytest.fixture
def lingering(shard: Shard) -> Replica:
    """One that keeps its lease between two jobs, for a second."""
    replica = Replica(shard, LONG)
    replica.lease = Lease(shard, "sweep", LONG, replica._on_lost, linger=SHORT)
    return replica


def test_between_two_jobs_it_is_kept_for_a_moment(lingering: Replica, shard: Shard, client: redis.Redis) -> None:
    rival = Lease(shard, "sweep", LONG)
    client.config_resetstat()
    for _ in range(3):
        assert lingering.lease.acquire(briefly=True)
        with lingering.lease.kept():
            lingering.lease.leave_to_lapse()
    stats: dict[str, Any] = client.info("commandstats")
    assert stats["cmdstat_set"]["calls"] == 1, "no other command is needed"
    assert "cmdstat_evalsha" not in stats
    assert not rival.acquire()
    assert lingering.lease.is_of_another(b"a rival")
    held: Any = client.get(KEY)
    assert not lingering.lease.is_of_another(held)
    eventually(rival.acquire)
    assert not lingering.lease.acquire()
    assert lingering.lost == 0, "it was not at work"


def test_one_that_lingers_lasts_as_long_as_its_job(lingering: Replica, shard: Shard, client: redis.Redis) -> None:
    assert lingering.lease.acquire(briefly=True)
    with lingering.lease.kept():
        assert client.pttl(KEY) <= 1000
        eventually(lambda: client.pttl(KEY) > 14_000)
        lingering.lease.leave_to_lapse()
    assert 0 < client.pttl(KEY) <= 1000
    assert lingering.lease.acquire()
    with lingering.lease.kept():
        pass
    assert not client.exists(KEY), "a job that did not ask for it gives it back"
    assert lingering.lost == 0


def test_one_that_lingers_and_has_run_out_is_taken_again(lingering: Replica, client: redis.Redis) -> None:
    assert lingering.lease.acquire(briefly=True)
    with lingering.lease.kept() as lost:
        client.delete(KEY)
        eventually(lambda: client.exists(KEY))
        eventually(lambda: client.pttl(KEY) > 14_000)
        client.set(KEY, "a rival")
        assert not lost.is_set()
    assert lingering.lost == 1
    assert not lingering.lease.acquire()


class Lapsing(Lease):
    """A lease that runs out at once after a try to take it has failed."""

    def _take(self, ttl_ms: int) -> bool:
        taken = super()._take(ttl_ms)
        self._client.pexpire(self._key, 0 if not taken else ttl_ms)
        return taken


def test_one_that_runs_out_during_the_try_to_take_it_is_taken(shard: Shard) -> None:
    """Else a process on its own would stand by for another."""
    lease = Lapsing(shard, "sweep", LONG)
    assert lease.acquire()
    assert lease.acquire()
    assert holder(shard, "sweep") == process_name()


def test_a_reload_goes_on_with_it(lingering: Replica, shard: Shard) -> None:
    assert lingering.lease.acquire()
    with lingering.lease.kept():
        lingering.lease.leave_to_lapse()
    after = Lease(shard, "sweep", LONG, linger=SHORT)
    after.adopt(lingering.lease)
    lingering.lease.close()
    assert after.acquire(briefly=True)
    with after.kept():
        after.leave_to_lapse()
    after.close()
    assert not shard.client.exists(KEY), "the end of the process frees it"
    assert after.acquire()
    assert after.release()


def _take(client: redis.Redis, taken: str | None) -> None:
    """Take the lease from its holder: give it to another, or free it."""
    if taken:
        client.set(KEY, taken, px=60_000)
    else:
        client.delete(KEY)


def test_one_that_lasts_longer_than_its_length_is_cut(pair: tuple[Lease, Lease], client: redis.Redis) -> None:
    """Its holder has died, and Redis's clock was set back by an hour."""
    ours, theirs = pair
    assert ours.acquire()
    client.pexpire(KEY, 3_600_000)
    assert not theirs.acquire()
    assert LONG.total_seconds() - 10 < client.pttl(KEY) / 1000 <= LONG.total_seconds()
    assert ours.acquire(), "it lives after all"


def test_one_without_a_ttl_gets_the_length_of_its_holder(pair: tuple[Lease, Lease], client: redis.Redis) -> None:
    """Its holder has died, and another program has removed the TTL."""
    ours, theirs = pair
    assert ours.acquire()
    client.persist(KEY)
    assert not theirs.acquire()
    assert 0 < client.pttl(KEY) / 1000 <= LONG.total_seconds()


def test_it_is_judged_by_the_length_of_its_holder(shard: Shard, client: redis.Redis) -> None:
    theirs, ours = Lease(shard, "sweep", LONG), Lease(shard, "sweep", SHORT)
    assert ours.holder_ttl == SHORT
    assert theirs.acquire()
    assert not ours.acquire()
    assert client.pttl(KEY) > 5000
    assert ours.holder_ttl == LONG
    theirs.release()
    assert ours.acquire()
    assert not theirs.acquire()
    assert theirs.holder_ttl == SHORT
    client.set(KEY, "another program's", px=60_000)
    assert not theirs.acquire()
    assert theirs.holder_ttl == LONG


@pytest.mark.parametrize("token", ["runtime-1:8080", "x-0123456789abcde:8080", "x-0123456789abcdef:0", "sweeperd"])
def test_the_lease_of_another_program_is_left_as_it_is(token: str, shard: Shard, client: redis.Redis) -> None:
    client.set(KEY, token, px=60_000)
    assert not Lease(shard, "sweep", LONG).acquire()
    assert client.pttl(KEY) > 30_000
    assert holder(shard, "sweep") in token


def test_a_reload_with_another_length_takes_it_anew(shard: Shard, client: redis.Redis) -> None:
    before, after = Lease(shard, "sweep", LONG), Lease(shard, "sweep", SHORT)
    assert before.acquire()
    after.adopt(before)
    assert not after.acquire()
    assert before.release()
    assert after.acquire()


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
