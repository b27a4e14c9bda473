"""How many events wait for an endpoint: taken or not, wanted or not, exact or not; and the daemon's gauge of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from sweeperd.config import EndpointSettings, RedisSettings, Settings
from sweeperd.ops.status import read_status
from sweeperd.outbox import BacklogMemory, GroupBacklog, Outbox, Subscription, read_backlogs
from sweeperd.outbox import backlog as backlog_module
from sweeperd.outbox.backlog import REMEMBERED, SAMPLE_BYTES, SAMPLE_PAGE, _Pages, _share
from sweeperd.store import Shard, streams
from tests.integration.outbox.test_outbox import GROUP, KEY, add, ids
from tests.support.harness import daemon, environment, eventually, server_time
from tests.support.servers import Server

pytestmark = pytest.mark.every_redis

ACME = Subscription(EndpointSettings.model_validate({"name": GROUP, "url": "http://x/", "tenants": ["acme"]}))


@pytest.fixture
def stream(shard: Shard) -> Outbox:
    return Outbox(shard, "us")


def backlog(shard: Shard, subscription: Subscription | None = None, **options: Any) -> GroupBacklog:
    group = streams.groups(shard.client, shard.keys.events).get(GROUP.encode())
    (found,) = read_backlogs(shard, [(group, subscription)], shard.read_clock(), **options)
    assert found is not None
    return found


def counts_lag(client: redis.Redis) -> bool:
    """From Redis 7 on a group knows how many events it has not taken."""
    return int(str(client.info("server")["redis_version"]).partition(".")[0]) >= 7


def add_for(client: redis.Redis, tenant: str, count: int) -> None:
    for number in range(count):
        client.xadd(KEY, {"id": f"{tenant}-{number}", "tenant": tenant})


def test_what_is_taken_and_what_is_not(stream: Outbox, shard: Shard, client: redis.Redis) -> None:
    def now() -> tuple[int, float]:
        found = backlog(shard)
        return found.events, found.oldest_seconds

    assert read_backlogs(shard, [(None, None)], shard.read_clock()) == [None], "nobody knows"
    add(client, 3, at=1000)  # before the group, so they are not its own
    stream.groups.ensure(GROUP)
    assert now() == (0, 0.0)
    moment = server_time(client)
    old = add(client, 2, at=moment - 90_000)
    add(client, 3, at=moment - 30_000)
    assert now() == (5, pytest.approx(90, abs=25))
    stream.read(GROUP, 3)
    assert now() == (5, pytest.approx(90, abs=25)), "to take is not to acknowledge"
    stream.acknowledge(GROUP, old)
    assert now() == (3, pytest.approx(30, abs=25))
    stream.acknowledge(GROUP, ids(stream.read(GROUP, 1)))
    assert now() == (2, pytest.approx(30, abs=25))
    stream.acknowledge(GROUP, ids(stream.pending(GROUP)))
    stream.acknowledge(GROUP, ids(stream.read(GROUP, 10)))
    assert now() == (0, 0.0)


@pytest.mark.parametrize("to_the_end", [False, True])
@pytest.mark.parametrize("lag", [True, False], ids=["Redis 7", "Redis 6.2"])
def test_groups_at_one_position_are_counted_as_each_alone(
    shard: Shard, client: redis.Redis, lag: bool, to_the_end: bool
) -> None:
    """Also where they share a filter, and events are for one of them only."""
    tenants = {"all": None, "acme": ["acme"], "same": ["acme"], "too": ["acme"], "both": ["acme", "globex"]}
    for name in tenants:
        client.xgroup_create(KEY, name, id="0", mkstream=True)
    for number in range(30):
        add_for(client, ("acme", "globex", "initech")[number % 3], 1)
    client.xreadgroup("too", "us", {KEY: ">"}, count=7)
    for again in (False, True):
        rows, now = streams.groups(client, shard.keys.events), shard.read_clock()
        groups = [
            (
                rows[name.encode()] | ({} if lag else {"lag": None}),
                Subscription(EndpointSettings.model_validate({"name": name, "url": "http://x/", "tenants": some})),
            )
            for name, some in tenants.items()
        ]

        def count(*some: Any) -> list[Any]:
            memory = BacklogMemory(exact=40 if lag else 10)
            return read_backlogs(shard, some, now, to_the_end=to_the_end, memory=memory)  # noqa: B023 - called at once

        together = count(*groups, (None, None))
        assert together == [*(count(each)[0] for each in groups), None]
        assert again or together[0].events == (30 if lag or to_the_end else 10)
        client.xadd(KEY, {"id": "again", "tenant": "acme", "only_for": "acme"})


def test_events_for_one_endpoint_only_are_counted_for_no_other(shard: Shard, client: redis.Redis) -> None:
    names = ("acme", "same")
    for name in names:
        client.xgroup_create(KEY, name, id="0", mkstream=True)
    client.xadd(KEY, {"id": "again", "tenant": "acme", "only_for": "acme"})
    rows = streams.groups(client, shard.keys.events)
    endpoints = [
        EndpointSettings.model_validate({"name": name, "url": "http://x/", "tenants": ["acme"]}) for name in names
    ]
    groups = [(rows[each.name.encode()], Subscription(each)) for each in endpoints]
    assert [each and each.events for each in read_backlogs(shard, groups, shard.read_clock())] == [1, 0]


def test_nobody_knows_how_many_wait_if_the_group_goes_meanwhile(
    stream: Outbox, shard: Shard, client: redis.Redis
) -> None:
    stream.groups.ensure(GROUP)
    add(client, 3)
    stream.read(GROUP, 1)
    group = streams.groups(client, shard.keys.events)[GROUP.encode()]
    client.xgroup_destroy(KEY, GROUP)
    assert read_backlogs(shard, [(group, None)], shard.read_clock()) == [None]


def test_a_long_backlog_is_read_again_only_where_the_group_has_moved(
    stream: Outbox, shard: Shard, client: redis.Redis
) -> None:
    """A daemon whose endpoint is dead used a third of a core to read the same events again and again."""
    stream.groups.ensure(GROUP)
    add_for(client, "acme", 30)
    memory = BacklogMemory(20)

    def read() -> tuple[int, bool]:
        """The events, and whether the stream was read."""
        client.config_resetstat()
        found = backlog(shard, ACME, memory=memory)
        return found.events, "cmdstat_xrange" in client.info("commandstats")

    known = 30 if counts_lag(client) else 20
    assert read() == (known, True)
    assert read() == (known, False)
    add_for(client, "globex", 10)
    assert read() == (40 if known == 30 else 20, False)
    stream.read(GROUP, 5)
    assert read()[1], "it has moved"
    stream.read(GROUP, 30)
    for _ in range(2):
        assert read() == (35, True), "a short one is counted each time"


def test_a_long_backlog_is_remembered_where_redis_does_not_know_the_lag(
    stream: Outbox, shard: Shard, client: redis.Redis
) -> None:
    """Redis 6.2 never does, and Redis 7 not after events were removed."""
    stream.groups.ensure(GROUP)
    added = add(client, 30)
    stream.read(GROUP, 1)
    client.xdel(KEY, added[-1])
    assert client.xinfo_groups(KEY)[0].get("lag") is None
    memory = BacklogMemory(20)
    for _ in range(2):
        found = backlog(shard, memory=memory)
        assert (found.events, found.exact) == (1 + 20, False)


def test_a_long_backlog_is_remembered_for_a_minute(stream: Outbox, shard: Shard, client: redis.Redis) -> None:
    clock: Any = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    stream.groups.ensure(GROUP)
    add(client, 20)  # exactly as many as are counted one by one
    memory = BacklogMemory(20, clock.monotonic)
    was_read = []
    for clock.now in (1000.0, 1001.0, 1000.0 + REMEMBERED, 1001.0 + REMEMBERED):
        client.config_resetstat()
        assert backlog(shard, memory=memory).events == 20
        was_read.append("cmdstat_xrange" in client.info("commandstats"))
    assert was_read == [True, False, False, True]


def test_a_stream_that_was_lost_is_forgotten(stream: Outbox, shard: Shard, client: redis.Redis) -> None:
    """Its group is made again at the same position, and what is added then is no part of what was read before."""
    if not counts_lag(client):
        pytest.skip("Redis 6.2 does not tell that there are fewer events than before")
    memory = BacklogMemory(20)
    stream.groups.ensure(GROUP)
    add_for(client, "acme", 30)
    assert backlog(shard, ACME, memory=memory).events == 30
    client.delete(KEY)
    stream.groups.ensure(GROUP)
    add_for(client, "globex", 5)
    assert backlog(shard, ACME, memory=memory).events == 0
    add_for(client, "globex", 30)
    assert backlog(shard, ACME, memory=memory).events == 0


def test_after_events_were_removed(stream: Outbox, shard: Shard, client: redis.Redis) -> None:
    """From then on Redis 7 does not know a group's lag, either."""
    stream.groups.ensure(GROUP)
    added = add(client, 10)
    stream.read(GROUP, 2)
    client.xdel(KEY, *added[5:7])
    assert backlog(shard).events == 8


def test_events_that_the_endpoint_does_not_want_are_left_out(stream: Outbox, shard: Shard, client: redis.Redis) -> None:
    stream.groups.ensure(GROUP)
    add_for(client, "globex", 3)
    assert backlog(shard, ACME) == GroupBacklog()
    add_for(client, "acme", 2)
    assert backlog(shard, ACME).events == 2
    assert backlog(shard).events == 5


def test_beyond_the_limit_it_is_an_estimate(stream: Outbox, shard: Shard, client: redis.Redis) -> None:
    stream.groups.ensure(GROUP)
    for _ in range(60):
        add_for(client, "acme", 2)
        add_for(client, "globex", 3)
    found = backlog(shard, ACME, memory=BacklogMemory(100))
    counts = "lag" in client.xinfo_groups(KEY)[0]  # Redis 6.2 does not count
    assert found.events == (120 if counts else 40)
    assert not found.exact
    assert backlog(shard, ACME, to_the_end=True, memory=BacklogMemory(100)).events == 120


def test_without_a_filter_only_a_page_is_read(stream: Outbox, shard: Shard, client: redis.Redis) -> None:
    """Maintenance took a sixth of the CPU time of a delivery, to look at events that the endpoint wants anyway."""
    if not counts_lag(client):
        pytest.skip("Redis 6.2 does not count them")
    stream.groups.ensure(GROUP)
    everything = Subscription(EndpointSettings.model_validate({"name": GROUP, "url": "http://x/"}))
    add(client, 1000)
    found = backlog(shard, everything)
    assert (found.events, found.exact) == (1000, True)
    add(client, 500)
    for subscription, exact in ((everything, False), (None, True)):
        client.config_resetstat()
        found = backlog(shard, subscription)
        assert (found.events, found.exact) == (1500, exact)
        assert client.info("commandstats")["cmdstat_xrange"]["calls"] == 1


def test_a_filter_reads_a_bounded_number_of_bytes(stream: Outbox, shard: Shard, client: redis.Redis) -> None:
    """A page too many at most. Whoever needs the whole count still gets it."""
    stream.groups.ensure(GROUP)
    for number in range(400):
        client.xadd(KEY, {"id": str(number), "tenant": ("acme", "globex")[number % 2], "scope": "x" * 8000})
    client.config_resetstat()
    found = backlog(shard, ACME)
    assert client.info("commandstats")["cmdstat_xrange"]["calls"] <= 1 + SAMPLE_BYTES // (8000 * 100)
    assert not found.exact
    assert found.events == (200 if counts_lag(client) else pytest.approx(33, abs=1))
    whole = backlog(shard, ACME, to_the_end=True)
    assert (whole.events, whole.exact) == (200, True)


@pytest.mark.newest_redis
@pytest.mark.parametrize(("most", "size", "seen"), [(5, 30, 3), (2, 30, 2), (5, 29, 3), (9, 90, 5)])
def test_a_sample_ends_with_the_event_that_makes_it_large_enough(most: int, size: int, seen: int) -> None:
    share = _share(iter([(b"1-0", {}, 10)] * 5), None, most, size)
    assert (share.seen, share.more) == (seen, seen < 5)


def test_a_bounded_number_of_events_is_kept_for_other_groups(
    shard: Shard, client: redis.Redis, stream: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "SHARED", 2 * SAMPLE_PAGE)
    add(client, 3 * SAMPLE_PAGE + 5)
    pages = _Pages(shard)
    assert len(list(pages.read(b"0-0"))) == 3 * SAMPLE_PAGE + 5
    assert [len(page) for page in pages._pages.values()] == [SAMPLE_PAGE] * 2


def test_a_missing_right_is_told(own_shard: Shard) -> None:
    stream = Outbox(own_shard, "us")
    stream.groups.ensure(GROUP)
    add(own_shard.client, 1)
    stream.read(GROUP, 1)
    own_shard.client.acl_setuser("default", enabled=True, nopass=True, commands=["-xpending"])
    with pytest.raises(redis.ResponseError):
        backlog(own_shard)


def test_the_gauge_is_the_number_of_status(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """A paused endpoint that gets one tenant's events, while another tenant's come too."""
    endpoints = [{"name": GROUP, "url": "http://127.0.0.1:9/", "tenants": ["acme"]}]
    env = environment(server.url, endpoints=endpoints, sweep__interval="200ms")
    client.hset("sweeperd:endpoints", GROUP, '{"paused_at": 1, "reason": "a test"}')
    settings = Settings.model_validate({"webhooks": {"endpoints": endpoints}})
    with daemon(env, tmp_path) as running:
        eventually(lambda: client.exists(KEY) and client.xinfo_groups(KEY))
        add_for(client, "globex", 3)
        add_for(client, "acme", 2)
        eventually(lambda: running.metric("sweeperd_webhook_pending_events", endpoint=GROUP) == 2)
        (endpoint,) = read_status(settings, Shard(RedisSettings.model_validate({"url": server.url}))).endpoints
        assert endpoint.pending == 2
        assert running.metric("sweeperd_webhook_oldest_pending_seconds", endpoint=GROUP) >= 0
