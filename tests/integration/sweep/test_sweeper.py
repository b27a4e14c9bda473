"""Checks that each tick decides every due entry once while entries stay, fail or are added."""

import math
import random
import re
import shutil
import threading
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from sweeperd.config import Settings, SweepSettings
from sweeperd.errors import RedisUnavailable
from sweeperd.store import Shard
from sweeperd.sweep import Decision, Kind, Outcome
from tests.lua import builders
from tests.support.builders import StillClock, configured_kind, make_sweeper
from tests.support.fates import INDEX, QUARANTINE, World, batches, without_looks
from tests.support.harness import eventually, reserve, server_time
from tests.support.kind_settings import SEAT_HOLD, hold_seats

SCANNING = pytest.mark.parametrize("world", [True], ids=["scan"], indirect=True)


@pytest.fixture(params=[False, True], ids=["", "scan"])
def world(shard: Shard, request: pytest.FixtureRequest) -> World:
    return World(shard, server_time(shard.client), scan=request.param)


@pytest.mark.parametrize("seed", range(8))
def test_each_due_entry_is_decided_once(seed: int, world: World) -> None:
    chance = random.Random(seed)
    fates = chance.choices(
        ["go", "stay", "fail", "later"], [*chance.choices([0, 1, 5], k=3), 1], k=chance.randrange(90)
    )
    spread = chance.choice([1, 2, 5, 1000])
    due = {f"{fate}-{chance.getrandbits(30)}-{n}": chance.randrange(spread) for n, fate in enumerate(fates)}
    ahead = {f"{fate}-ahead": -60_000 for fate in ("go", "stay", "fail", "later")}
    world.fill(due | ahead)
    batch_size, depth = chance.randint(1, 12), chance.randint(1, 6)
    sweeper = world.sweeper(batch_size, depth)

    report = sweeper.tick()
    by_fate = Counter(name.partition("-")[0] for name in due)
    assert sorted(world.journal()) == sorted(due)
    assert report.complete
    assert report.candidates == len(due)
    outcomes = {"go": Outcome.EXPIRED, "stay": Outcome.IN_GRACE, "fail": Outcome.ERROR, "later": Outcome.NOT_DUE}
    assert {outcome: count for outcome, count in report.counts.items() if count} == {
        outcomes[fate]: count for fate, count in by_fate.items()
    }
    assert sorted(decision.id.decode() for decision in world.observed) == sorted(due)

    # What stays is decided once more by the next tick.
    assert sweeper.tick().complete
    assert sorted(world.journal()) == sorted(name for name in due if name.startswith(("stay", "fail")))


def test_more_than_a_page_of_one_score_that_all_stay(world: World) -> None:
    entries = {f"stay-{number}": 1000 for number in range(25)}
    world.fill(entries | {"go-behind": 999})
    sweeper = world.sweeper(4, 3)
    for _ in range(2):
        assert sweeper.tick().complete
    assert sorted(world.journal()) == sorted([*entries, *entries, "go-behind"])


def test_any_score_is_paged_past(world: World, client: redis.Redis) -> None:
    scores = ["-inf", "-5", "0", "1e-300", "0.1", "1.5", "1700000000000.5", "1700000000001"]
    client.zadd(INDEX, {f"{fate}-{n}-{score}": score for score in scores for n in range(3) for fate in ("stay", "go")})
    names = sorted(world.index())
    assert world.sweeper(2, 2).tick().complete
    assert sorted(world.journal()) == names


def test_a_page_is_sent_in_batches(world: World) -> None:
    world.fill({f"go-{number}": 1 for number in range(10)})
    seen = []
    world.then = lambda: seen.append(len(world.observed))
    world.sweeper(7, 6).tick()
    assert seen == [3, 6, 7, 10]


@pytest.mark.parametrize("depth", [1, 2, 5, 6])
def test_no_more_calls_than_the_pipeline_depth_are_on_their_way(depth: int, world: World) -> None:
    world.fill({f"go-{number}": 1 for number in range(20)})

    def few(sent: list[int]) -> None:
        assert sum(sent) - len(world.observed) <= depth

    with batches(few) as sent:
        assert world.sweeper(20, depth).tick().candidates == 20
    assert max(sent) == max(1, depth // 2), "the other batch is sent before the replies to this one are read"


def test_entries_that_come_due_meanwhile_are_the_next_ticks(world: World) -> None:
    """Each of these adds another entry after itself: a tick that followed them would never end."""
    world.fill({f"again-{number}": 1 for number in range(3)})
    sweeper = world.sweeper(2, 1, "2s")
    report = sweeper.tick()
    assert report.complete
    assert report.candidates == 3
    time.sleep(0.005)
    assert sweeper.tick().candidates == 3


def test_a_tick_in_which_a_few_bad_entries_fail_has_not_failed(world: World) -> None:
    world.fill({f"fail-{number}": 1 for number in range(10)})
    assert world.sweeper(10, 10).tick().failure == ""


def test_a_tick_in_which_all_of_many_entries_fail_has_failed(world: World) -> None:
    world.fill({f"fail-{number}": 1 for number in range(11)} | {"stay-1": 1})
    sweeper = world.sweeper(10, 10)
    assert "no luck" in sweeper.tick().failure
    world.fill({"go-1": 1})
    assert sweeper.tick().failure == ""


def test_a_tick_fails_where_the_script_is_at_fault(world: World) -> None:
    world.fill({"broken-1": 1, "stay-1": 1})
    sweeper = world.sweeper(10, 10)
    assert sweeper.tick().failure.startswith("every entry failed: ")
    world.fill({"fail-1": 1})
    assert sweeper.tick().failure == "", "one of the two errors is about its entry alone"


@SCANNING
def test_a_tick_ends_at_the_first_refusal_of_rights(world: World) -> None:
    world.fill({"go-0": 999} | {f"refused-{number}": 900 - number for number in range(100)} | {"go-1": 1})
    sweeper = world.sweeper(100, 10)
    report = sweeper.tick()
    assert report.failure.startswith("a right is missing: ")
    assert not report.complete
    assert report.counts[Outcome.EXPIRED] == 1
    assert 0 < report.counts[Outcome.ERROR] <= 20, "the two batches that were on their way"
    # A right to some keys alone may be missing, so the next tick goes on behind.
    eventually(lambda: sweeper.tick().counts[Outcome.EXPIRED])
    assert len(world.index()) == 100


def test_a_redis_that_cannot_save_is_trouble_of_the_server(own_shard: Shard, own_server: Any) -> None:
    client = own_shard.client
    world = World(own_shard, server_time(client))
    world.fill({"go-1": 1})
    client.config_set("save", "3600 100000")
    shutil.rmtree(str(client.config_get("dir")["dir"]))
    client.execute_command("BGSAVE")
    eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
    with pytest.raises(RedisUnavailable, match="MISCONF"):
        world.sweeper(5, 5).tick()
    assert world.observed == []


def test_a_redis_that_is_busy_with_a_script_is_trouble_of_the_server(own_shard: Shard, own_server: Any) -> None:
    client = own_shard.client
    world = World(own_shard, server_time(client))
    sweeper = world.sweeper(5, 5)
    assert sweeper.tick().complete
    client.config_set("lua-time-limit", 1)
    with redis.Redis.from_url(own_server.url) as other, ThreadPoolExecutor(1) as pool:
        script = pool.submit(other.eval, "while true do end", 0)
        eventually(lambda: busy(own_server.url))
        with pytest.raises(RedisUnavailable, match=r"BUSY|busy"):
            sweeper.tick()
        client.script_kill()
        with pytest.raises(redis.ResponseError):
            script.result()
    assert sweeper.tick().complete


def busy(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        try:
            client.ping()
        except redis.ResponseError:
            return True
    return False


def test_a_tick_that_ran_out_of_time_is_taken_up_where_it_stopped(world: World) -> None:
    entries = {f"{'go' if number % 3 else 'fail'}-{number}": 9 - number // 5 for number in range(25)}
    world.fill(entries)
    world.then = lambda: time.sleep(0.002)  # each batch uses the budget up
    sweeper = world.sweeper(10, 4, "1ms")
    decided = []
    for tick in range(10):
        report = sweeper.tick()
        batch = world.journal()
        assert 0 < len(batch) <= 4
        assert report.candidates == len(batch)
        decided += batch
        if report.complete:
            break
        assert len(decided) < len(entries), f"tick {tick} has looked at all and does not know it"
    assert decided == sorted(decided, key=lambda name: -entries[name])
    assert sorted(decided) == sorted(entries)
    world.then = lambda: None
    eventually(lambda: sweeper.tick().complete)
    assert sorted(world.journal()) == sorted(name for name in entries if name.startswith("fail"))


def test_stop_ends_the_tick_after_the_batch(world: World) -> None:
    entries = {f"fail-{number}": 1 for number in range(10)}
    world.fill(entries)
    world.then = world.stop.set
    sweeper = world.sweeper(10, 6)
    report = sweeper.tick()
    assert not report.complete
    assert report.candidates == 6, "the batch after it was on its way"
    first = world.journal()
    assert len(first) == 6
    world.then = lambda: None
    assert sweeper.tick().candidates == 0, "it is told to stop"
    world.stop.clear()
    assert sweeper.tick().complete
    assert sorted(first + world.journal()) == sorted(entries)


def test_each_page_that_was_decided_is_told_unless_the_tick_fails(world: World) -> None:
    world.fill({f"go-{number}": 900 - number for number in range(5)})
    seen: list[int] = []
    world.sweeper(2, 2).tick(paged=lambda: seen.append(len(world.observed)))
    assert seen == [2, 4, 5]

    world.fill({f"broken-{number}": 900 - number for number in range(5)})
    assert world.sweeper(2, 2).tick(paged=lambda: seen.append(0)).failure
    assert seen == [2, 4, 5]


def test_it_gives_way_after_the_batch(world: World) -> None:
    entries = {f"fail-{number}": 1 for number in range(10)}
    world.fill(entries)
    sweeper = world.sweeper(6, 3)
    report = sweeper.tick(lambda: len(world.observed) >= 6)
    assert not report.complete
    assert report.candidates == 6
    first = world.journal()
    assert sweeper.tick().complete
    assert sorted(first + world.journal()) == sorted(entries)


def test_a_batch_that_the_server_fails_on_is_passed_over_by_the_next_tick(world: World) -> None:
    world.fill({"trouble-1": 9, "trouble-2": 9} | {f"go-{number}": 8 for number in range(5)})
    sweeper = world.sweeper(4, 4)
    with pytest.raises(RedisUnavailable, match=r"READONLY|replica"):
        sweeper.tick()
    assert world.journal() == ["trouble-1", "trouble-2", "go-0", "go-1"]
    assert [decision.id for decision in world.observed] == [b"go-0", b"go-1"], "what was on its way is told of"
    report = sweeper.tick()
    assert report.complete
    assert report.candidates == 3
    assert world.index() == {"trouble-1", "trouble-2"}
    world.journal()
    with pytest.raises(RedisUnavailable):
        sweeper.tick()
    assert world.journal() == ["trouble-1", "trouble-2"], "it is not forgotten, either"


def test_a_batch_whose_connection_breaks_while_the_next_is_sent_is_passed_over_too(world: World) -> None:
    """A server that dies of a batch is noticed when the next one is written, not only when replies are read."""
    world.fill({f"fail-{number}": 9 - number for number in range(6)})
    sweeper = world.sweeper(6, 4)

    def second_breaks(sent: list[int]) -> None:
        if len(sent) == 2:
            raise redis.ConnectionError("Connection reset by peer")

    with batches(second_breaks):
        with pytest.raises(RedisUnavailable, match="reset"):
            sweeper.tick()
        world.observed.clear()
        assert sweeper.tick().complete
    assert [decision.id for decision in world.observed] == [b"fail-2", b"fail-3", b"fail-4", b"fail-5"]
    assert sweeper.tick().candidates == 6, "it is not forgotten, either"


def test_the_last_batch_of_a_page_is_passed_over_too(world: World) -> None:
    world.fill({"go-1": 9, "go-2": 8, "trouble-3": 7, "trouble-4": 6, "go-5": 5})
    sweeper = world.sweeper(4, 4)
    with pytest.raises(RedisUnavailable):
        sweeper.tick()
    world.observed.clear()
    assert sweeper.tick().complete
    assert [decision.id for decision in world.observed] == [b"go-5"]
    assert world.index() == {"trouble-3", "trouble-4"}


def test_a_tick_has_a_trace_id_of_its_own(world: World) -> None:
    world.fill({f"stay-{number}": 1 for number in range(4)})
    sweeper = world.sweeper(2, 4)
    reports = [sweeper.tick(), sweeper.tick()]
    assert world.trace_ids == [report.trace_id for report in reports for _ in range(2)]
    assert reports[0].trace_id != reports[1].trace_id
    assert all(re.fullmatch("[0-9a-f]{32}", report.trace_id) for report in reports)


def test_the_script_cache_is_flushed_between_batches(world: World) -> None:
    entries = {f"{fate}-{number}": 1 for number in range(6) for fate in ("go", "stay")}
    world.fill(entries)
    world.then = world.shard.client.script_flush
    assert world.sweeper(5, 3).tick().complete
    assert sorted(world.journal()) == sorted(entries)


def test_an_idle_index(world: World) -> None:
    pages: list[None] = []
    report = world.sweeper(5, 5).tick(paged=lambda: pages.append(None))
    assert (report.complete, report.candidates, len(pages)) == (True, 0, 1)
    assert report.duration_seconds > 0
    assert world.observed == []


def test_redis_is_down(own_shard: Shard, own_server: Any) -> None:
    sweeper = World(own_shard, 0).sweeper(5, 5)
    own_server.kill()
    with pytest.raises(RedisUnavailable, match=r"127\.0\.0\.1"):
        sweeper.tick()
    with pytest.raises(RedisUnavailable):
        sweeper.backlog()
    own_server.start()
    assert sweeper.tick().complete


@pytest.mark.parametrize("how", ["plain", "scanned", "woken"])
def test_a_page_above_the_output_limit_is_halved(how: str, own_shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    """Redis closes the connection at its limit. All entries are decided in the same tick, and the reason is logged."""
    client = own_shard.client
    in_grace: Any = {"overdue_by": -3_000_000, "grace": 3_600_000} if how == "scanned" else {}
    reserve(client, ["x" * 1600 + str(number) for number in range(300)], **in_grace)
    client.config_set("client-output-buffer-limit", "normal 131072 0 0")
    sweeper = make_sweeper(own_shard)
    report = sweeper.tick(seen_ms=server_time(client) - 3_600_000 if how == "woken" else None)
    assert report.complete
    assert dict(report.counts) == {Outcome.IN_GRACE if how == "scanned" else Outcome.EXPIRED: 300}
    cut = [record for record in caplog.records if "client-output-buffer-limit" in record.getMessage()]
    assert cut
    assert {record.levelname for record in cut} == {"WARNING"}
    assert cut[-1].__dict__["page"] < 100


def test_backlog(world: World, client: redis.Redis) -> None:
    sweeper = world.sweeper(5, 5)
    world.fill({"go-ahead": -60_000})
    backlog = sweeper.backlog()
    assert (backlog.due, backlog.oldest_due_seconds, backlog.quarantined) == (0, 0.0, 0)
    world.fill({"go-1": 90_000, "go-2": 0})
    client.zadd(QUARANTINE, {"x": 1, "y": 2, "z": 3})
    backlog = sweeper.backlog()
    assert (backlog.due, backlog.quarantined) == (2, 3)
    assert 90 <= backlog.oldest_due_seconds < 100


@SCANNING
def test_what_is_in_grace_is_looked_at_and_not_decided_once_that_pays(world: World) -> None:
    stays = {f"stay-{number}": 1000 - number for number in range(200)}
    world.fill(stays | {"go-1": 850, "go-2": 1})
    sweeper = world.sweeper(100, 10)
    with batches() as runs:
        first = sweeper.tick()
        assert sum(runs) == 2, "those that go"
        world.fill({f"go-{number}": 2000 for number in range(10, 60)})
        world.fill({"go-3": 500})
        second = sweeper.tick()
        assert sum(runs) < 2 + 51 + 20, "what stays behind those that go is looked at again after a batch or two"
    assert first.complete
    assert second.complete
    assert dict(first.counts) == {Outcome.IN_GRACE: 200, Outcome.EXPIRED: 2}
    assert dict(second.counts) == {Outcome.IN_GRACE: 200, Outcome.EXPIRED: 51}
    decided = [decision.id.decode() for decision in world.observed]
    gone = [f"go-{number}" for number in (1, 2, 3, *range(10, 60))]
    assert sorted(decided) == sorted([*stays, *stays, *gone])


@SCANNING
def test_where_nothing_is_in_grace_any_more_nobody_looks(world: World) -> None:
    sweeper = world.sweeper(100, 10)
    world.fill({f"stay-{number}": 1000 for number in range(50)} | {f"go-{number}": 1 for number in range(500)})
    assert sweeper.tick().complete
    with without_looks():
        world.shard.client.delete(INDEX)
        world.fill({f"go-{number}": 1 for number in range(50)})
        assert sweeper.tick().counts[Outcome.EXPIRED] == 50


@SCANNING
@pytest.mark.parametrize("cut", ["stop", "give way"])
def test_a_look_that_is_cut_short_is_taken_up_where_it_stopped(cut: str, world: World) -> None:
    entries = {f"{'fail' if number % 4 == 0 else 'stay'}-{number}": 1000 - number // 7 for number in range(400)}
    world.fill(entries)
    sweeper = world.sweeper(1000, 8)
    for tick in range(400):
        if cut == "stop":
            world.stop.clear()
            world.then = world.stop.set
            report = sweeper.tick()
        else:
            before = len(world.observed)
            report = sweeper.tick(lambda before=before: len(world.observed) > before)  # type: ignore[misc]
        if report.complete:
            break
        assert len(world.observed) < len(entries), f"tick {tick} has looked at all and does not know it"
    assert [decision.id.decode() for decision in world.observed] == sorted(
        entries, key=lambda name: (-entries[name], name)
    )


def test_batches_get_shorter_where_redis_is_slow_and_longer_again(world: World) -> None:
    sweeper = world.sweeper(100, 40, least_depth=4)
    world.fill({f"slow-{number}": 1 for number in range(120)})
    assert sweeper.tick().pipeline_depth == 4, "pipeline_depth_min; each batch takes all of batch_time"
    world.shard.client.delete(INDEX)
    world.fill({f"go-{number}": 1 for number in range(1000)})
    assert sweeper.tick().pipeline_depth > 4
    assert len(world.observed) == 1120


def test_both_batches_have_full_depth_where_entries_are_overdue_for_longer_than_max_lag(world: World) -> None:
    sweeper = world.sweeper(100, 40, least_depth=4)
    world.fill({f"late-{number}": 1 for number in range(100)})
    with batches() as sent:
        assert sweeper.tick().pipeline_depth == 80
    assert sent == [20, 20, 40, 20], "the first reply says how late they are; then the page ends"
    assert sweeper.backlog().due == 0


def test_a_tick_expires_in_the_order_of_the_index(shard: Shard, client: redis.Redis) -> None:
    """Within one uninterrupted tick of one replica, if the server has the script: by ascending score."""
    world = builders.World(client)
    world.reservation(b"first", expires_at=1, grace_ms="0")
    make_sweeper(shard).tick()
    client.flushdb()
    ids, now = [b"r%d" % number for number in range(500)], world.now()
    random.shuffle(ids)
    with world.batch() as batch:
        for number, rid in enumerate(ids):
            batch.reservation(rid, indexed=False, expires_at=now - 100_000 + number // 3 * 3, grace_ms="0")
            batch.index(rid, now - 100_000 + number // 3 * 3)
    for scope in builders.SCOPES:
        world.budget(scope, reserved=100_000)
    settings = SweepSettings.model_validate({"batch_size": 7, "pipeline_depth": 3})
    report = make_sweeper(shard, settings=settings).tick()
    assert report.counts == {Outcome.EXPIRED: 500}
    scores = [int(fields[b"expires_at"]) for _, fields in world.client.xrange(world.keys.events)]
    assert scores == sorted(scores)


def test_a_woken_tick_decides_only_what_woke_it(client: redis.Redis, shard: Shard) -> None:
    reserve(client, ["seen"])
    resting = ["in grace", "committed", "extended"]
    reserve(client, ["new", *resting], overdue_by=10_000)
    for name in resting:
        client.hset(f"reservation:res_{name}", "grace_ms", 11_000)
    decided: list[Decision] = []
    sweeper = make_sweeper(shard, observe=lambda decisions, _: decided.extend(decisions))
    assert sweeper.grace_end_ms == math.inf
    shard.read_clock()
    report = sweeper.tick(seen_ms=server_time(client) - 30_000)
    assert dict(report.counts) == {Outcome.EXPIRED: 1, Outcome.IN_GRACE: 3}
    assert server_time(client) - 1000 <= report.seen_ms < server_time(client)
    deadline: Any = client.zscore("reservation:ttl", "in grace")
    end = deadline + 11_000
    assert sweeper.grace_end_ms == end
    assert sweeper.tick(seen_ms=report.seen_ms).counts == {}, "neither what stands before, nor what is in grace"
    client.zrem("reservation:ttl", "committed")
    client.zadd("reservation:ttl", {"extended": end + 3_600_000})
    eventually(lambda: shard.read_clock() > end + 1)
    decided.clear()
    report = sweeper.tick(seen_ms=report.seen_ms)
    assert [(decision.id, decision.outcome) for decision in decided] == [(b"in grace", Outcome.EXPIRED)]
    assert sweeper.grace_end_ms == math.inf
    assert client.zrange("reservation:ttl", 0, -1) == [b"seen", b"extended"]
    assert dict(sweeper.tick().counts) == {Outcome.EXPIRED: 1}


def test_a_woken_tick_reads_page_after_page(client: redis.Redis, shard: Shard) -> None:
    seen = shard.read_clock() - 5000
    reserve(client, ["before"])
    reserve(client, [f"{number:03}" for number in range(100)], overdue_by=1000)
    reserve(client, [f"kept {number:03}" for number in range(100)], overdue_by=900, grace=0)
    for number in range(100):
        client.hset(f"reservation:res_kept {number:03}", "grace_ms", 60_000)
    report = make_sweeper(shard, settings=SweepSettings(batch_size=7)).tick(seen_ms=seen)
    assert dict(report.counts) == {Outcome.EXPIRED: 100, Outcome.IN_GRACE: 100}
    assert report.complete
    stop = threading.Event()
    stop.set()
    report = make_sweeper(shard, stop=stop).tick(seen_ms=seen)
    assert (report.complete, report.seen_ms) == (False, 0)


def test_a_tick_over_the_index_leaves_the_last_moment_to_woken_ones(client: redis.Redis, shard: Shard) -> None:
    reserve(client, ["old"], overdue_by=60_000)
    reserve(client, ["young"], overdue_by=1)
    report = make_sweeper(shard).tick(leave_ms=30_000)
    assert dict(report.counts) == {Outcome.EXPIRED: 1}
    assert server_time(client) - report.seen_ms >= 30_000


class FixedClock(StillClock):
    """Stands still, and keeps what the server said."""

    def __init__(self, now: int) -> None:
        super().__init__(now)
        self.readings: list[int] = []

    def set(self, now_ms: int) -> None:
        self.readings.append(now_ms)


def test_a_tick_has_seen_no_deadline_that_may_still_be_added(client: redis.Redis, shard: Shard) -> None:
    """In the present millisecond of the server nothing is due, and a daemon's clock may be wrong."""
    now = server_time(client)
    for ahead in (-1000, 60_000):
        clock = shard.clock = FixedClock(now + ahead)
        seen = make_sweeper(shard).tick(seen_ms=now - 5000).seen_ms
        assert seen == min(clock.now, clock.readings[0]) - 1
        for leave in (0, 30_000):
            clock.readings.clear()
            seen = make_sweeper(shard).tick(leave_ms=leave).seen_ms
            assert seen == clock.readings[0] - max(1, leave)


# ---- of a configured kind


def seat_hold(more: str) -> Kind:
    settings = Settings.model_validate(tomllib.loads(SEAT_HOLD + more))
    return configured_kind(settings.kinds[0], settings)


def test_a_tick_over_the_index_learns_when_a_grace_ends(client: redis.Redis, shard: Shard) -> None:
    now = server_time(client)
    for name, ago in (("h1", 1000), ("h2", 2000)):
        hold_seats(client, name, 1, now - ago)
    sweeper = make_sweeper(shard, seat_hold('grace = "1h"'))
    assert dict(sweeper.tick().counts) == {Outcome.IN_GRACE: 2}
    assert sweeper.grace_end_ms == now - 2000 + 3_600_000


def test_a_new_process_learns_when_the_graces_end_that_another_one_knew(client: redis.Redis, shard: Shard) -> None:
    """Also where a scan says that the entries are in grace, so that no decision about them does."""
    reserve(client, ["later", "soon"], overdue_by=-2000, grace=3000)
    client.hset("reservation:res_later", "grace_ms", 3_600_000)
    sweeper = make_sweeper(shard, settings=SweepSettings(batch_size=7))
    assert dict(sweeper.tick().counts) == {Outcome.IN_GRACE: 2}
    deadline: Any = client.zscore("reservation:ttl", "soon")
    assert sweeper.grace_end_ms == deadline + 3000
    eventually(lambda: shard.read_clock() > sweeper.grace_end_ms + 1)
    assert dict(sweeper.tick(seen_ms=server_time(client)).counts) == {Outcome.EXPIRED: 1}


@pytest.mark.parametrize(
    ("first", "last", "counts"),
    [(1000, 2500, [2500, 1500, 1000, 1000]), (0, 1500, [1500, 1000, 1000]), (2400, 2500, [2500, 2500, 2400])],
)
def test_protected_entries_that_have_ended_are_dropped_page_by_page(
    client: redis.Redis, shard: Shard, first: int, last: int, counts: list[int]
) -> None:
    entries = {f"{number:04}": number for number in range(2500)}
    client.zadd("sweeperd:protected:seat-hold", entries)
    client.zadd("seats:ttl", {name: at for name, at in entries.items() if not first <= at < last})
    sweeper = make_sweeper(shard, seat_hold('unless = "EXISTS paid:{id}"'))
    assert [sweeper.backlog().protected for _ in counts] == counts
