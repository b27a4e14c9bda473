"""Tests what is noted of each tick for other replicas and operators."""

from dataclasses import replace

import pytest
import redis

from sweeperd.config import SweepSettings
from sweeperd.store import Keys, Shard
from sweeperd.store.lease import process_name
from sweeperd.store.scripts import Call, Script
from sweeperd.sweep import Decision, Outcome, SweepReport
from sweeperd.sweep.last_sweep import LastSweep, LastSweepStore, read_last_sweep
from tests.support.builders import reservations_kind
from tests.support.fixtures import full
from tests.support.harness import server_time

KEY = "sweeperd:ticks"
KIND = reservations_kind(Keys(), SweepSettings())
MINUTE = 60_000


def report(seconds: float = 0.25, *, complete: bool = True) -> SweepReport:
    return SweepReport("trace", {}, complete, seconds, 0, 25)


def expired(count: int) -> list[Decision]:
    others = [Decision(b"other", outcome) for outcome in Outcome if outcome is not Outcome.EXPIRED]
    return [Decision(b"%d" % number, Outcome.EXPIRED) for number in range(count)] + others


def noted(shard: Shard) -> LastSweep:
    tick = read_last_sweep(shard, KIND)
    assert tick is not None
    return tick


def test_there_is_none_before_the_first(shard: Shard) -> None:
    assert read_last_sweep(shard, KIND) is None


def test_the_last_tick_is_noted(shard: Shard, client: redis.Redis) -> None:
    before, board = server_time(client), LastSweepStore(shard, KIND)
    board.decided(expired(3))
    board.decided(expired(2))
    board.note(report(complete=False))
    tick = noted(shard)
    assert before - 1000 <= tick.at <= server_time(client) + 1000
    assert (tick.by, tick.seconds, tick.complete, tick.expired) == (process_name(), 0.25, False, 5)


def test_the_total_runs_on_over_replicas(shard: Shard) -> None:
    for _ in range(3):
        board = LastSweepStore(shard, KIND)
        board.decided(expired(2))
        board.note(report())
        board.note(report())
    assert noted(shard).expired == 6
    assert noted(shard).complete


@pytest.fixture
def moments(shard: Shard) -> list[tuple[int, LastSweep]]:
    """Ticks half a minute apart, each with 30 expired."""
    board, seen, start = LastSweepStore(shard, KIND), [], 1_700_000_000_000
    for half_minutes in range(10):
        shard.clock.set(start + half_minutes * MINUTE // 2)
        board.decided(expired(30))
        board.note(report())
        seen.append((half_minutes, noted(shard)))
    return seen


def rate(sweep: LastSweep, now_ms: float) -> float:
    """Expiries a second, from the earlier reading until now."""
    elapsed = now_ms - sweep.earlier_at
    return 1000 * (sweep.expired - sweep.earlier_expired) / elapsed if elapsed > 0 else 0.0


def test_the_rate_is_that_of_the_last_minute_or_two(moments: list[tuple[int, LastSweep]]) -> None:
    for half_minutes, tick in moments:
        assert tick.at - tick.earlier_at <= 2 * MINUTE
        if half_minutes >= 4:
            assert tick.at - tick.earlier_at >= MINUTE
        if half_minutes:
            assert rate(tick, tick.at) == pytest.approx(1, rel=0.01)
    last = moments[-1][1]
    assert rate(last, last.at + 8 * 60 * MINUTE) < 0.01, "who has stopped expires nothing"
    assert rate(last, last.earlier_at) == 0.0


def test_a_tick_in_the_same_millisecond_begins_no_new_measurement(client: redis.Redis) -> None:
    for count in (5, 3):
        args: list[str | int] = [1_700_000_000_000, count, "by", "us", "seconds", "0.1", "complete", 1]
        Script("sweep/last_sweep").run(client, Call([KEY.encode()], args))
    assert client.hmget(KEY, [b"expired", b"mark_expired", b"earlier_expired"]) == [b"8", b"5", b"5"]


def test_the_servers_clock_may_be_set_back(shard: Shard) -> None:
    board = LastSweepStore(shard, KIND)
    shard.clock.set(1_700_000_000_000)
    board.decided(expired(5))
    board.note(report())
    shard.clock.set(1_600_000_000_000)
    board.decided(expired(1))
    board.note(report())
    tick = noted(shard)
    assert (tick.expired, tick.earlier_expired) == (6, 6)
    assert tick.at == tick.earlier_at == pytest.approx(1_600_000_000_000, abs=60_000)


@pytest.mark.every_redis
def test_a_full_redis_takes_the_note(own_shard: Shard) -> None:
    board = LastSweepStore(own_shard, KIND)
    with full(own_shard):
        board.decided(expired(2))
        board.note(report())
    assert noted(own_shard).expired == 2


def test_a_tick_that_cannot_be_noted_is_swept_all_the_same(
    shard: Shard, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set(KEY, "somebody else's")
    board = LastSweepStore(shard, KIND)
    for _ in range(3):
        board.decided(expired(1))
        board.note(report())
    assert len(caplog.records) == 1
    client.delete(KEY)
    board.note(report())
    assert noted(shard).expired == 3, "what was refused is told later"


@pytest.mark.parametrize("field", ["at", "seconds", "expired", "earlier_at", "earlier_expired"])
def test_what_cannot_be_read_is_none_and_mended_by_the_next(field: str, shard: Shard, client: redis.Redis) -> None:
    board = LastSweepStore(shard, KIND)
    board.note(report())
    client.hset(KEY, field, "nonsense")
    assert read_last_sweep(shard, KIND) is None
    board.note(report())
    assert read_last_sweep(shard, KIND)


def test_an_idle_tick_is_noted_once_in_a_while_and_a_busy_one_at_once(shard: Shard, client: redis.Redis) -> None:
    board = LastSweepStore(shard, KIND, 60)
    board.note(report())
    assert client.delete(KEY), "the first"
    board.note(report())
    assert read_last_sweep(shard, KIND) is None
    for changed in (report(complete=False), replace(report(), counts={Outcome.NOT_FOUND: 1, Outcome.IN_GRACE: 5})):
        board.note(changed)
        assert client.delete(KEY)
    board.note(replace(report(), counts={Outcome.IN_GRACE: 5}, passed=3))
    assert read_last_sweep(shard, KIND) is None
    board.decided(expired(2))
    board.note(report())
    assert noted(shard).expired == 2


def test_the_seen_score_is_noted_unless_the_tick_was_cut_short(shard: Shard, client: redis.Redis) -> None:
    board = LastSweepStore(shard, KIND)
    assert board.note(replace(report(), seen_ms=1_700_000_000_000))
    assert client.hget(KEY, "seen") == b"1700000000000"
    board.note(report(complete=False))
    assert client.hget(KEY, "seen") is None


def test_the_note_of_another_process_is_good_for_longer(shard: Shard, client: redis.Redis) -> None:
    board, now = LastSweepStore(shard, KIND, 60), shard.read_clock()
    board.noted_elsewhere(now - 118_000)
    assert not board.note(report())
    for seconds in (-130, 130):  # Redis's clock was set back since
        board.noted_elsewhere(now + 1000 * seconds)
        assert board.note(report())
    assert not board.note(report())
    board.noted_elsewhere(now)
    assert board.note(replace(report(), counts={Outcome.IN_GRACE: 1}), woken=True), "who decides anything leads"
