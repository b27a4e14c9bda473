"""The few threads that deliver to all endpoints of a shard: their number, their fairness, and what a reload keeps."""

import contextlib
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sweeperd.config import EndpointSettings, RedisSettings
from sweeperd.context import Timing
from sweeperd.delivery import engine, settler, watcher
from sweeperd.delivery.intake import READ_BYTES
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.outbox import EndpointStateStore, replays
from sweeperd.outbox.filters import read_filters
from sweeperd.progress import Progress, working
from sweeperd.store import Shard, streams
from sweeperd.store.operations import run_together
from tests.support.builders import StillClock
from tests.support.deliveries import EVENTS, RARELY, Deliver, Running, endpoints, expire, running
from tests.support.harness import eventually, server_time, waits
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import Server


def receivers(requests: list[Request]) -> Counter[str]:
    """How many requests each endpoint got."""
    return Counter(request.path.partition("?")[2] for request in requests)


def test_many_endpoints_need_a_few_threads(shard: Shard, client: redis.Redis) -> None:
    before, most = threading.active_count(), 0
    with Receiver() as receiver:
        threads = threading.active_count()
        with running(shard, endpoints(receiver.url, 200)):
            assert threading.active_count() - threads <= 4
            expire(client, "one", "two")

            def delivered() -> bool:
                nonlocal most
                own = [
                    thread
                    for thread in threading.enumerate()
                    if thread.name.endswith(shard.name) or "send-" in thread.name
                ]
                most = max(most, len(own))
                return len(receiver.requests) >= 400

            eventually(delivered, limit=60)
            eventually(lambda: all(not group["pending"] for group in client.xinfo_groups(EVENTS)))
    assert set(receivers(receiver.requests).values()) == {2}
    assert most < 150  # a thread for each endpoint would be 200; on a busy machine more requests are slow
    assert before <= threads


def test_receivers_that_hang_delay_no_other(shard: Shard, client: redis.Redis) -> None:
    """Of a hundred, with sixteen requests at a time."""
    ended, hanging = threading.Event(), 20

    def behaviour(request: Request, _: int) -> Answer:
        if int(request.path.partition("?e")[2]) < hanging:
            ended.wait(60)
        return Answer()

    with Receiver(behaviour) as receiver, running(shard, endpoints(receiver.url, 100)):
        try:
            for number in range(3):
                expire(client, str(number))
                wanted = (number + 1) * (100 - hanging)
                receiver.wait_for(
                    lambda requests, wanted=wanted: (
                        sum(  # type: ignore[misc]
                            int(request.path.partition("?e")[2]) >= hanging for request in requests
                        )
                        >= wanted
                    )
                )
        finally:
            ended.set()


# ---- the watcher


def test_without_the_right_to_wait_new_events_are_polled_for(
    own_shard: Shard, deliver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As for a user of an earlier version."""
    own_shard.client.acl_setuser("default", enabled=True, nopass=True, commands=["-xread"])
    with Receiver() as receiver, running(own_shard, endpoints(receiver.url, 1), block=0.2, **RARELY):
        for number in range(3):
            expire(own_shard.client, str(number))
            receiver.wait_for(lambda requests, number=number: len(requests) == number + 1, 5)  # type: ignore[misc]
    assert caplog.messages.count("new events are polled for: grant XREAD to the user") == 1
    assert watcher.POLL_EVERY < 1


@contextlib.contextmanager
def watching(made: watcher.Watcher) -> Iterator[threading.Thread]:
    stop = threading.Event()
    thread = threading.Thread(target=made.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(10)


def test_news_is_told_once_until_the_reader_has_set_the_cursor(shard: Shard, client: redis.Redis) -> None:
    news = list[bool]()
    made = watcher.Watcher(shard, Timing(), lambda: news.append(True))
    with watching(made) as thread:
        for number in range(1, 3):
            (last,) = expire(client, str(number))
            eventually(lambda number=number: len(news) >= number)
            eventually(lambda: waits(thread))
            made.watch_from(last)
            eventually(lambda: client.info("clients")["blocked_clients"])


def test_an_empty_answer_is_no_news(server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    """It comes before the socket times out."""
    impatient = Shard(RedisSettings.model_validate({"url": server.url, "socket_timeout": "400ms"}))
    news = list[bool]()
    made = watcher.Watcher(impatient, Timing(block=3600), lambda: news.append(True))
    made.watch_from(*expire(client, "one"))
    client.config_resetstat()
    began = time.monotonic()
    with watching(made):
        eventually(lambda: client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0) > 2)
        assert time.monotonic() - began >= 0.35, "each takes half of the socket's time-out"
    assert not news
    assert "the watch for new events" not in caplog.text


def test_the_watch_has_one_connection_until_the_reader_has_a_new_one(shard: Shard, client: redis.Redis) -> None:
    def reads() -> int:
        return int(client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0))

    def own() -> set[str]:
        return {row["id"] for row in client.client_list()} - others

    client.config_resetstat()
    others = {row["id"] for row in client.client_list()}
    made = watcher.Watcher(shard, Timing(block=0.02), lambda: None)
    with watching(made):
        eventually(lambda: reads() > 1, pause=0.01)
        first = own()
        eventually(lambda: reads() > 3, pause=0.01)
        assert len(first) == 1
        assert own() == first
        made.reconnect()
        eventually(lambda: not first & own(), 10, pause=0.01)
        eventually(own, pause=0.01)
    eventually(lambda: not own(), 10, pause=0.01)


class Stop(threading.Event):
    """A stop that comes at the third wait, or after many looks."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = list[float | None]()
        self._looks = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return len(self.waits) == 3

    def is_set(self) -> bool:
        self._looks += 1
        return len(self.waits) == 3 or self._looks > 50


@pytest.mark.parametrize("error", [RedisUnavailable("gone"), ValueError("a fault of ours")])
def test_in_trouble_the_watch_pauses_and_says_so(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    silent, clock, stop = list[float](), StillClock(0), Stop()

    def last_id(*_: object) -> bytes:
        silent.append(work.silent_for)
        clock.now += 100
        raise error

    monkeypatch.setattr(streams, "last_id", last_id)
    with working(Progress(clock.now_ms)) as work:
        watcher.Watcher(shard, Timing(recovery_pause=0.7), lambda: None).run(stop)
    assert stop.waits == [0.7] * 3
    assert silent == [0] * 3, "each try is progress"
    assert "the watch for new events waits for redis" in caplog.text or "is not watched" in caplog.text


def test_the_watch_says_when_it_goes_on(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def last_id(*_: object) -> bytes:
        monkeypatch.undo()
        raise RedisUnavailable("gone")

    caplog.set_level("INFO")
    monkeypatch.setattr(streams, "last_id", last_id)
    with watching(watcher.Watcher(shard, Timing(block=0.02, recovery_pause=0.01), lambda: None)):
        eventually(lambda: "the watch for new events goes on" in caplog.messages, 10)
    assert "the watch for new events waits for redis" in caplog.messages


def test_without_the_right_to_wait_it_waits_between_two_looks(own_shard: Shard) -> None:
    own_shard.client.acl_setuser("default", enabled=True, nopass=True, commands=["-xread"])
    stop = Stop()
    watcher.Watcher(own_shard, Timing(), lambda: None).run(stop)
    assert stop.waits == [watcher.POLL_EVERY] * 3


def test_a_stream_that_ends_before_the_cursor_is_watched(shard: Shard, client: redis.Redis) -> None:
    """A replica that lacked the last events was promoted."""
    with Receiver() as receiver, running(shard, endpoints(receiver.url, 1), block=0.2, **RARELY):
        expire(client, "lost")
        receiver.wait_for(lambda requests: len(requests) == 1)
        with client.pipeline() as at_once:  # else the reader may make the group first
            at_once.delete(EVENTS)
            at_once.xadd(EVENTS, {"id": "kept", "tenant": "acme"}, id="5-1")
            at_once.hdel("sweeperd:groups", "e0")
            at_once.xgroup_create(EVENTS, "e0", "0")
            at_once.execute()
        receiver.wait_for(lambda requests: len(requests) == 2, 10)


def test_an_idle_shard_costs_few_commands(shard: Shard, client: redis.Redis) -> None:
    with Receiver() as receiver, running(shard, endpoints(receiver.url, 100), block=1.0):
        expire(client, "one")
        receiver.wait_for(lambda requests: len(requests) == 100)
        eventually(lambda: all(not group["pending"] for group in client.xinfo_groups(EVENTS)))
        client.config_resetstat()
        time.sleep(1)
        assert sum(each["calls"] for each in client.info("commandstats").values()) < 150


def test_a_settler_without_work_is_not_stuck(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STUCK", -shard.patience)
    with running(shard, endpoints("http://127.0.0.1:9", 1)) as made:
        (thread,) = [each for each in threading.enumerate() if each.name == f"settle-{shard.name}"]
        eventually(lambda: waits(thread))
        assert "settle thread" not in made.dispatcher.stuck


def test_a_settler_that_hangs_before_its_first_command_is_stuck(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def hang(*arguments: Any) -> Any:
        goes_on.wait(30)
        return run_together(*arguments)

    monkeypatch.setattr(engine, "STUCK", -shard.patience)
    monkeypatch.setattr(settler, "run_together", hang)
    with Receiver() as receiver, running(shard, endpoints(receiver.url, 1)) as made:
        expire(client, "one")
        eventually(lambda: "settle thread" in made.dispatcher.stuck)
        time.sleep(0.05)
        assert "settle thread" in made.dispatcher.stuck
        goes_on.set()


def test_a_system_without_threads_leaves_none_behind(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("read-"):
            raise RuntimeError("can't start new thread")
        original(thread)

    original = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    made = Running(shard, endpoints("http://127.0.0.1:9", 1), Metrics())
    made.dispatcher.prepare()
    with pytest.raises(RuntimeError):
        made.dispatcher.start()
    assert made.dispatcher.join(time.monotonic() + 10)


# ---- the stop


def test_a_stop_does_not_wait_for_the_next_look(shard: Shard) -> None:
    never = 3600.0
    with running(shard, endpoints("http://127.0.0.1:9", 1), block=never, heartbeat_every=never, **RARELY) as made:
        reader = made.dispatcher._engine._reader
        eventually(lambda: reader._clock_read[1])


@pytest.mark.parametrize("what", ["process", "lane"])
def test_a_stop_releases_what_is_queued_although_the_reader_hangs(shard: Shard, client: redis.Redis, what: str) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def change() -> None:
        hangs.set()
        goes_on.wait(30)

    with Receiver(lambda *_: Answer(500)) as receiver:
        webhooks = {"attempts": 2, "backoff_initial": "1h", "backoff_max": "1h"}
        with running(shard, endpoints(receiver.url, 1), webhooks=webhooks) as made:
            (lane,) = made.dispatcher.lanes
            expire(client, "one")
            receiver.wait_for(lambda requests: len(requests) == 1)
            eventually(lambda: lane.queue and not lane.works)
            made.dispatcher._engine.between_rounds(change)
            hangs.wait(30)
            made.dispatcher.stop() if what == "process" else made.dispatcher._engine.end([lane])
            eventually(lambda: not len(lane.in_flight), limit=10)
            goes_on.set()
    assert len(receiver.requests) == 1


# ---- a reload


def test_a_reload_keeps_the_lanes_that_did_not_change(shard: Shard, client: redis.Redis) -> None:
    answered = threading.Event()

    def behaviour(request: Request, _: int) -> Answer:
        if request.event["data"]["reservation_id"] == "slow":
            answered.wait(30)
        return Answer()

    with Receiver(behaviour) as receiver:
        first = endpoints(receiver.url, 3)
        before = Running(shard, first, Metrics())
        before.dispatcher.prepare()
        before.dispatcher.start()
        expire(client, "slow")
        receiver.wait_for(lambda requests: len(requests) == 3)
        # One stays, one gets another URL and a filter, one goes, and one is new.
        moved = first[1] | {"url": f"{receiver.url}?moved", "tenants": ["acme"]}
        second = [first[0], moved, {"name": "new", "url": f"{receiver.url}?new"}]
        after = Running(shard, second, before.dispatcher._metrics, concurrency=8)
        own = after.dispatcher._shard.client.client_id()
        after.dispatcher.adopt(before.dispatcher)
        eventually(lambda: own not in {int(row["id"]) for row in client.client_list()})
        after.dispatcher.prepare()
        after.dispatcher.start()
        before.stop.set()
        assert before.dispatcher.join(time.monotonic() + 1), "nothing of it is left to end"
        before.dispatcher.close()
        try:
            lanes = {lane.endpoint: lane for lane in after.dispatcher.lanes}
            assert lanes["e0"] is before.dispatcher.lanes[0]
            assert lanes["e1"] is not before.dispatcher.lanes[1]
            assert after.dispatcher.complete
            assert after.dispatcher._engine._settler.together == 4
            eventually(lambda: len(set(after.dispatcher._engine.lanes)) == 5)
            assert len(after.dispatcher._engine.lanes) == 5
            eventually(lambda: '"acme"' in str(client.hgetall("sweeperd:filters")))
            expire(client, "later")
            receiver.wait_for(lambda requests: receivers(requests) == {"e0": 2, "e1": 1, "e2": 1, "moved": 1, "new": 1})
            answered.set()
            eventually(lambda: all(lane.ended.is_set() for lane in before.dispatcher.lanes[1:]))
            eventually(lambda: client.xpending(EVENTS, "e2")["pending"] == 0)
            after.dispatcher.refresh_replays()
            assert client.xinfo_consumers(EVENTS, "e2") == [], "the endpoint that has gone is left"
            assert not [name for name in client.hkeys("sweeperd:circuits") if b"e2@" in name]
            assert after.dispatcher._leaving == []
            eventually(lambda: not any(client.xpending(EVENTS, name)["pending"] for name in ("e0", "e1", "new")))
        finally:
            answered.set()
            after.stop.set()
            assert after.dispatcher.join(time.monotonic() + 30)
        assert [client.xinfo_consumers(EVENTS, name) for name in ("e0", "e1", "new")] == [[], [], []]
        assert not read_filters(shard).processes


@pytest.mark.parametrize("reloaded", [False, True])
def test_nothing_is_too_old_before_it_is_known_when_the_group_began(
    reloaded: bool, shard: Shard, client: redis.Redis
) -> None:
    """A process delivers as soon as it starts, or has taken over, and the groups are read later, or cannot be."""
    (hook,) = endpoints("", 1)
    hook |= {"start": "beginning"}
    for number in range(2):
        client.xadd(EVENTS, {"id": f"old-{number}"}, id=f"{server_time(client) - 3 * 3_600_000 + number}-0")
    webhooks = {"max_age": "1h", "attempts": 1, "redelivery_initial": "100ms", "redelivery_max": "100ms"}
    with Receiver(lambda *_: Answer(500)) as receiver:
        hook["url"] = receiver.url
        first = Running(shard, [hook], Metrics(), webhooks=webhooks)
        first.dispatcher.prepare()
        runs = [first]
        if reloaded:
            first.dispatcher.start()
            receiver.wait_for(lambda requests: len(requests) >= 2)
        runs.append(Running(shard, [hook | {"timeout": "9s"}], first.dispatcher._metrics, webhooks=webhooks))
        last = runs[-1].dispatcher
        if reloaded:
            last.adopt(first.dispatcher)
        try:
            last.start()
            asked = len(receiver.requests)
            receiver.wait_for(lambda requests: len(requests) >= asked + 4)
            assert client.xlen("sweeperd:dead-letters") == 0
            last.prepare()
            (lane,) = last.lanes
            assert lane.redelivery.counts_from_ms == json.loads(client.hget("sweeperd:groups", "e0") or "")["made_at"]
        finally:
            for run in runs:
                run.stop.set()
                assert run.dispatcher.join(time.monotonic() + 30)


def load(shard: Shard, wanted: list[dict[str, Any]], runs: list[Running]) -> None:
    """Start a dispatcher with these endpoints, which takes over from the last run."""
    run = Running(shard, wanted, runs[-1].dispatcher._metrics if runs else Metrics())
    if runs:
        run.dispatcher.adopt(runs[-1].dispatcher)
    run.dispatcher.prepare()
    run.dispatcher.start()
    runs.append(run)


def test_a_task_from_before_a_reload_may_run_beside_the_new_one(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both remove an endpoint that an earlier reload has removed."""
    some, runs = endpoints("http://127.0.0.1:9", 2), list[Running]()
    for wanted in (some, some[:1], some[:1]):
        load(shard, wanted, runs)
    first, second, third = (run.dispatcher for run in runs)
    gone = first.lanes[1]
    eventually(gone.ended.is_set)
    remove = gone.publisher.remove

    def meanwhile() -> None:
        monkeypatch.setattr(gone.publisher, "remove", remove)
        third.refresh_replays()
        remove()

    monkeypatch.setattr(gone.publisher, "remove", meanwhile)
    second.refresh_replays()
    assert third._leaving == []
    assert client.xinfo_consumers(EVENTS, gone.endpoint) == []
    runs[-1].stop.set()
    assert third.join(time.monotonic() + 30)


def test_a_stop_leaves_the_groups_of_endpoints_that_a_reload_has_removed(shard: Shard, client: redis.Redis) -> None:
    with Receiver() as receiver:
        both, runs = endpoints(receiver.url, 2), list[Running]()
        load(shard, both, runs)
        expire(client, "one")
        receiver.wait_for(lambda requests: len(requests) == 2)
        load(shard, both[:1], runs)
        runs[-1].stop.set()
        assert runs[-1].dispatcher.join(time.monotonic() + 30)
    assert client.xinfo_consumers(EVENTS, "e1") == []
    assert not client.exists("sweeperd:circuits")


def test_a_reload_allows_more_requests_at_once(shard: Shard, client: redis.Redis) -> None:
    answered = threading.Event()

    def behaviour(*_: object) -> Answer:
        answered.wait(30)
        return Answer()

    with Receiver(behaviour) as receiver:
        some = endpoints(receiver.url, 1)
        before = Running(shard, some, Metrics(), concurrency=1)
        before.dispatcher.prepare()
        before.dispatcher.start()
        try:
            with running(shard, some, before=before, concurrency=6):
                expire(client, *map(str, range(6)))
                receiver.wait_for(lambda requests: len(requests) == 6, 10)
                answered.set()
        finally:
            answered.set()


def test_a_reload_goes_on_with_the_replays_to_endpoints_that_did_not_change(shard: Shard, client: redis.Redis) -> None:
    """A replay to the other one begins anew, with its new settings."""
    now, both, runs = server_time(client), endpoints("http://127.0.0.1:9/", 2), list[Running]()
    client.xadd(EVENTS, {"id": "old", "tenant": "acme", "expired_at": now - 5000}, id=f"{now - 5000}-1")
    for each in both:
        EndpointStateStore(shard).pause(each["name"], "test")
    load(shard, both, runs)
    for each in both:
        asked = replays.count_events(shard, EndpointSettings.model_validate(each), replays.ReplaySpan(now - 9000, now))
        assert replays.begin(shard, asked)[0] == "begun"
    runs[0].dispatcher.refresh_replays()
    before = {lane.endpoint: lane for lane in runs[0].dispatcher._replays.lanes}
    load(shard, [both[0], both[1] | {"url": "http://127.0.0.1:9/?moved"}], runs)
    try:
        eventually(before["e1"].ended.is_set, 10)
        for _ in range(2):
            runs[1].dispatcher.refresh_replays()
        after = {lane.endpoint: lane for lane in runs[1].dispatcher._replays.lanes}
        assert (after["e0"] is before["e0"], after["e1"] is before["e1"]) == (True, False)
        assert not after["e0"].stop.is_set()
        assert not after["e1"].stop.is_set()
    finally:
        runs[1].stop.set()
        assert runs[1].dispatcher.join(time.monotonic() + 30)


def test_an_endpoint_that_comes_back_begins_as_a_new_one(shard: Shard, client: redis.Redis) -> None:
    """A reload had removed it, and then an operator its group."""
    with Receiver() as receiver:
        both, runs = endpoints(receiver.url, 2), list[Running]()
        for some in (both, both[:1], both):
            load(shard, some, runs)
            if some is not both:
                client.xgroup_destroy(EVENTS, "e1")
                client.hdel("sweeperd:groups", "e1")
                (meanwhile,) = expire(client, "meanwhile")
        groups: Any = client.xinfo_groups(EVENTS)
        assert {row["name"]: row["last-delivered-id"] for row in groups}[b"e1"] == meanwhile
        runs[-1].stop.set()
        assert runs[-1].dispatcher.join(time.monotonic() + 30)


def test_a_reload_of_what_all_lanes_depend_on_makes_them_anew(shard: Shard) -> None:
    before = Running(shard, endpoints("http://127.0.0.1:9", 1), Metrics())
    before.dispatcher.prepare()
    after = Running(shard, endpoints("http://127.0.0.1:9", 1), before.dispatcher._metrics, webhooks={"timeout": "50s"})
    after.dispatcher.adopt(before.dispatcher)
    assert after.dispatcher.lanes[0] is not before.dispatcher.lanes[0]
    before.dispatcher.close()
    after.dispatcher.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reload_does_not_go_on_with_threads_that_have_died(shard: Shard, client: redis.Redis) -> None:
    def die() -> None:
        raise SystemExit

    with Receiver() as receiver:
        before = Running(shard, endpoints(receiver.url, 1), Metrics())
        before.dispatcher.prepare()
        before.dispatcher.start()
        before.dispatcher._engine.between_rounds(die)
        eventually(lambda: not before.dispatcher.complete)
        with running(shard, endpoints(receiver.url, 2), before=before):
            assert before.dispatcher.join(time.monotonic() + 10)
            expire(client, "one")
            receiver.wait_for(lambda requests: receivers(requests) == {"e0": 1, "e1": 1})


# ---- a lane that fails alone


def test_a_group_that_is_missing_keeps_no_other_lane_from_its_events(
    shard: Shard, client: redis.Redis, deliver: Deliver
) -> None:
    with Receiver() as receiver, running(shard, endpoints(receiver.url, 3), **RARELY):
        expire(client, "one")
        receiver.wait_for(lambda requests: len(requests) == 3)
        for number in range(5):
            client.xgroup_destroy(EVENTS, "e1")
            expire(client, f"more {number}")
            receiver.wait_for(
                lambda requests, number=number: (
                    {  # type: ignore[misc]
                        request.path.partition("?")[2]
                        for request in requests
                        if request.event["data"]["reservation_id"] == f"more {number}"
                    }
                    == {"e0", "e1", "e2"}
                ),
                10,
            )
        eventually(lambda: not any(client.xpending(EVENTS, group)["pending"] for group in ("e0", "e2")), limit=20)
        # An event in hand, acknowledged in the old e1, that the new one has given again is taken over later.


def test_many_endpoints_with_a_filter_get_what_they_want_and_read_little_else(
    shard: Shard, client: redis.Redis
) -> None:
    names = 20
    with Receiver() as receiver:
        filters = [each | {"tenants": [each["name"]]} for each in endpoints(receiver.url, names)]
        with client.pipeline(transaction=False) as pipeline:
            for turn, number in itertools.product(range(15), range(200)):
                pipeline.xadd(EVENTS, {"id": f"{turn}-{number}", "tenant": f"e{number}"})
            last = pipeline.execute()[-1]
        client.config_resetstat()
        with running(shard, [each | {"start": "beginning"} for each in filters]):

            def done() -> bool:
                groups: Any = client.xinfo_groups(EVENTS)
                return all(group["last-delivered-id"] == last and not group["pending"] for group in groups)

            eventually(done)
            passed: Any = client.info("commandstats")
    assert receivers(receiver.requests) == Counter({f"e{number}": 15 for number in range(names)})
    acknowledged = 15 * 200 * names
    assert passed["cmdstat_xgroup|setid" if "cmdstat_xgroup|setid" in passed else "cmdstat_xgroup"]["calls"] > 0
    assert passed["cmdstat_xack"]["calls"] < acknowledged / 20


def test_an_event_that_is_read_where_unwanted_ones_were_to_be_passed_is_delivered(
    shard: Shard, client: redis.Redis
) -> None:
    """The group was not where the reader had left it."""
    with Receiver() as receiver:
        wanted = zip(endpoints(receiver.url, 2), ("acme", "globex"), strict=True)
        with running(shard, [each | {"tenants": [tenant]} for each, tenant in wanted], **RARELY):
            (last,) = expire(client, "one")

            def done() -> bool:
                groups: Any = client.xinfo_groups(EVENTS)
                return all(each["last-delivered-id"] == last and not each["pending"] for each in groups)

            eventually(done)
            client.xgroup_setid(EVENTS, "e0", "0")
            expire(client, *map(str, range(20)), tenant="another")
            receiver.wait_for(lambda requests: len(requests) == 2)
    assert len(receiver.event_ids) == 1


def test_a_page_of_large_events_that_nobody_wants_is_bounded_in_bytes(shard: Shard, client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for number in range(400):
            pipeline.xadd(EVENTS, {"id": str(number), "tenant": "other", "data.note": "x" * 50_000})
        pipeline.execute()
    filtered = [each | {"tenants": ["acme"], "start": "beginning"} for each in endpoints("http://127.0.0.1:9/", 2)]
    made = Running(shard, filtered, Metrics(), until_idle=True)
    made.dispatcher.prepare()
    made.dispatcher.start()
    assert made.dispatcher.join(time.monotonic() + 30)
    pages = made.dispatcher._engine._reader._ahead._pages[1:]  # for the first one the size was not known
    assert 0 < max(sum(entry.size for entry in page.entries) for page in pages) <= READ_BYTES


def test_what_all_lanes_have_in_hand_is_bounded(shard: Shard, client: redis.Redis) -> None:
    """However many lanes there are, and although none knows how large the next events are."""
    most, bound, size = 0, 300_000, 50_000
    with Receiver(lambda *_: Answer(delay=0.02)) as receiver:
        lanes = [each | {"batch_size": 100} for each in endpoints(receiver.url, 30)]
        with running(shard, lanes) as made:
            made.dispatcher._room.bytes = bound
            made.dispatcher._room.typical = size
            for number in range(4):
                note = "x" * size
                last = client.xadd(EVENTS, {"id": str(number), "data.note": note, "kind": "k", "type": "k.expired"})

            def done() -> bool:
                nonlocal most
                most = max(most, sum(lane.in_flight.bytes for lane in made.dispatcher.lanes))
                groups = client.xinfo_groups(EVENTS)
                return all(not each["pending"] and each["last-delivered-id"] == last for each in groups)

            eventually(done, pause=0.01)
    assert 0 < most <= 4 * bound + size


def test_what_is_due_again_does_not_wait_for_the_next_look(shard: Shard, client: redis.Redis) -> None:
    """Neither a parked event nor the events of an endpoint that a `Retry-After` has muted."""
    answers = {"/parked": Answer(500), "/muted": Answer(429, headers={"Retry-After": "1"})}

    def answer(request: Request, _number: int) -> Answer:
        return answers.pop(request.path.partition("?")[2], Answer())

    with Receiver(answer) as receiver:
        both = [{"name": path[1:], "url": f"{receiver.url}?{path}"} for path in list(answers)]
        webhooks = {"attempts": 1, "redelivery_initial": "1s", "backoff_max": "500ms", "backoff_initial": "100ms"}
        with running(shard, both, webhooks=webhooks, refresh_every=3600.0) as made:
            made.dispatcher._engine._reader._refresh_every = 3600.0
            expire(client, "one")
            receiver.wait_for(lambda requests: len(requests) == 4)


def test_what_is_settled_makes_room_for_the_next_events(shard: Shard, client: redis.Redis) -> None:
    never: dict[str, Any] = RARELY | {"block": 3600.0, "heartbeat_every": 3600.0}
    with Receiver() as receiver, running(shard, endpoints(receiver.url, 1), concurrency=4, **never) as made:
        expire(client, *map(str, range(50)))
        receiver.wait_for(lambda requests: len(requests) == 50)
        made.dispatcher.stop()
        expire(client, "last")  # ends the wait of the watcher


def test_a_run_until_idle_reads_what_came_after_the_page(shard: Shard, client: redis.Redis) -> None:
    """No watcher tells of these, and the page that the lanes with a filter share ends before them."""
    late = iter(["second", "third"])

    def behaviour(*_: object) -> Answer:
        expire(client, *[name for name in [next(late, "")] if name])
        return Answer()

    with Receiver(behaviour) as receiver:
        wanted: dict[str, Any] = {"url": receiver.url, "start": "beginning"}
        filtered = [wanted | {"name": name, "tenants": [name]} for name in ("acme", "globex")]
        expire(client, *map(str, range(20)), tenant="another")
        expire(client, "first")
        made = Running(shard, filtered, Metrics(), until_idle=True)
        made.dispatcher.prepare()
        made.dispatcher.start()
        assert made.dispatcher.join(time.monotonic() + 30)
    assert made.dispatcher.report() == (3, 0, 0)
