"""One consumer group, processes with different filters: who counts, what is acknowledged, what waits for whom."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.config import EndpointSettings
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.outbox import PARKED, Filters, Outbox, OutboxEntry, Subscription, is_waiting
from sweeperd.outbox.filters import FilterNote, read_filters
from sweeperd.outbox.groups import LONG_IDLE_MS
from sweeperd.outbox.replays import ReplayCount, ReplaySpan, ReplaySubscription, filter_gap
from sweeperd.store import Shard
from sweeperd.store.scripts import Call
from tests.lua.builders import NOW, frozen
from tests.support.deliveries import EVENTS, expire
from tests.support.fixtures import full
from tests.support.harness import server_time

KEY = "sweeperd:filters"
SILENCE_MS = int(DEFAULT_TIMING.take_over_after * 1000)


def hook(**settings: Any) -> EndpointSettings:
    return EndpointSettings.model_validate({"name": "hook", "url": "http://127.0.0.1:9/", **settings})


class Process:
    """A process that delivers to `hook`, as far as Redis sees it. Its monotonic clock is the test's own."""

    def __init__(self, shard: Shard, name: str, *tenants: str, **settings: Any) -> None:
        self.now = 1000.0
        timing = Timing(clock=lambda: self.now)
        self.endpoint = hook(tenants=list(tenants) or None, **settings)
        self.subscription = Subscription(self.endpoint)
        self.filters = Filters(shard, name, [self.endpoint], timing)
        self.outbox = Outbox(shard, name, timing=timing, filters=self.filters)
        self.owner = FilterNote.of(self.endpoint).owner

    def note(self) -> None:
        """A heartbeat that is due."""
        self.now += DEFAULT_TIMING.heartbeat_every
        self.filters.update()

    def take(self) -> list[OutboxEntry]:
        """Take what is new, and acknowledge what is not wanted. Returns the wanted events."""
        return self.judge(self.outbox.read("hook", 100))

    def judge(self, entries: list[OutboxEntry]) -> list[OutboxEntry]:
        wants = self.subscription.wants
        self.outbox.acknowledge_unwanted(self.subscription, [entry for entry in entries if not wants(entry)])
        return [entry for entry in entries if wants(entry)]


@pytest.fixture
def process(shard: Shard, client: redis.Redis) -> Callable[..., Process]:
    client.xgroup_create(EVENTS, "hook", "0", mkstream=True)
    return lambda name, *tenants, **settings: Process(shard, name, *tenants, **settings)


Pair = tuple[Process, Process]


@pytest.fixture
def both(process: Callable[..., Process]) -> Pair:
    """An old process, which wants the events of `a`, and a new one, which wants those of `b` too. Both are known."""
    old, new = process("old", "a"), process("new", "a", "b")
    old.note()
    new.note()
    return old, new


def pending(client: redis.Redis, group: str = "hook") -> dict[bytes, tuple[bytes, int]]:
    rows: Any = client.xpending_range(EVENTS, group, "-", "+", 1000)
    return {row["message_id"]: (row["consumer"], row["times_delivered"]) for row in rows}


def living(shard: Shard) -> set[str]:
    return {each.process for each in read_filters(shard).processes}


def numbers(client: redis.Redis, field: str) -> list[int]:
    found: Any = client.hget(KEY, field)
    return [int(each) for each in found.split()]


def silence(client: redis.Redis, name: str, milliseconds: int) -> None:
    """Let the process be silent for so long of the time in which Redis answered."""
    heard, called_at = numbers(client, f"heard:{name}")[0], numbers(client, "answered")[1]
    client.hset(KEY, "answered", f"{heard + milliseconds} {called_at}")


# ---- notes


def test_a_filter_is_the_same_in_any_order() -> None:
    one, other = hook(tenants=["a", "b"], events=["x.y"]), hook(events=["x.y"], tenants=["b", "a", "a"], batch_size=5)
    assert FilterNote.of(one) == FilterNote.of(other)
    different = [hook(), hook(tenants=["a"]), hook(events=["a"]), hook(scopes=["a"]), one]
    assert len({FilterNote.of(each).digest for each in different}) == len(different)


def test_the_version_changes_with_the_filters_and_with_nothing_else(process: Callable[..., Process]) -> None:
    old = process("old", "a")
    versions = []
    for act in (old.note, old.note, (new := process("new", "a", "b")).note, new.note, old.note):
        act()
        versions.append(old.filters.refresh().version)
    assert versions[0] == versions[1] != versions[2] == versions[3] == versions[4]
    new.filters.leave()
    assert old.filters.refresh().version not in versions
    assert [each.process for each in old.filters.refresh().processes] == ["old"]


def test_a_process_without_endpoints_notes_nothing(shard: Shard, client: redis.Redis) -> None:
    filters = Filters(shard, "sweeper")
    filters.update()
    filters.leave()
    assert not client.exists(KEY)


def test_a_heartbeat_comes_as_often_as_others(
    shard: Shard, client: redis.Redis, process: Callable[..., Process]
) -> None:
    old = process("old", "a")
    old.note()
    client.delete(KEY)
    old.filters.update()
    assert not client.exists(KEY), "not due"
    old.note()
    assert living(shard) == {"old"}


@pytest.mark.parametrize(("silent_ms", "lives"), [(SILENCE_MS - 1000, True), (SILENCE_MS + 1, False)])
def test_a_silent_process_does_not_count(
    silent_ms: int, lives: bool, shard: Shard, client: redis.Redis, process: Callable[..., Process]
) -> None:
    old, new = process("old", "a"), process("new", "a", "b")
    old.note()
    new.note()
    silence(client, "new", silent_ms)
    old.note()
    assert living(shard) == ({"old", "new"} if lives else {"old"})
    new.note()
    assert living(shard) == {"old", "new"}, "it lives after all"


def test_silence_counts_only_while_redis_answers(
    shard: Shard, client: redis.Redis, process: Callable[..., Process]
) -> None:
    """An hour in which nobody could reach Redis is no silence of anybody; nor is a clock that was set."""
    old, new = process("old", "a"), process("new", "a", "b")
    for called_at in (server_time(client) - 3_600_000, server_time(client) + 3_600_000):
        old.note()
        new.note()
        client.hset(KEY, "answered", f"{numbers(client, 'answered')[0]} {called_at}")
        old.note()
        assert living(shard) == {"old", "new"}
    for _ in range(SILENCE_MS // 1000 + 1):  # such as runs of --once, an hour apart
        client.hset(KEY, "answered", f"{numbers(client, 'answered')[0]} {server_time(client) - 3_600_000}")
        old.note()
    assert living(shard) == {"old"}, "a dead process does not count for ever"


@pytest.mark.parametrize(("pause", "counted"), [(0, 0), (4000, 4000), (5000, 5000), (5001, 1000), (-1, 0)])
def test_a_gap_counts_whole_or_for_a_fifteenth_of_the_silence(pause: int, counted: int, client: redis.Redis) -> None:
    client.hset(KEY, mapping={"answered": f"20000 {NOW - pause}", "heard:last": f"{5000 + counted} 1"})
    client.hset(KEY, mapping={"heard:gone": f"{4999 + counted} 1", "heard:ahead": "90000 7"})
    frozen(NOW, "delivery/note_filters").run(client, Call([KEY.encode()], ["us", "{}", 15_000, 5000]))
    assert numbers(client, "answered") == [20_000 + counted, NOW]
    assert numbers(client, "heard:us") == [20_000 + counted, NOW]
    assert numbers(client, "heard:ahead") == [20_000 + counted, 7], "`answered` was lost since"
    assert (client.hexists(KEY, "heard:last"), client.hexists(KEY, "heard:gone")) == (True, False)


def test_filters_that_differ_for_long(shard: Shard, client: redis.Redis, process: Callable[..., Process]) -> None:
    old, same, new = process("old", "a"), process("same", "a"), process("new", "a", "b")
    for each in (old, same, new):
        each.note()
    now = server_time(client)
    assert read_filters(shard).difference("hook", now + 50_000) == "", "a rolling update"
    assert read_filters(shard).difference("other", now + 90_000) == ""
    words, _, sides = read_filters(shard).difference("hook", now + 90_000).partition(": ")
    # The older first; here all may be noted in the same millisecond.
    assert (words, set(sides.split(" | "))) == ("has had different filters for 1 m 30 s", {"old, same", "new"})
    client.hset(KEY, "heard:old", f"0 {now + 60_000}")
    old.note()
    assert numbers(client, "heard:old")[1] <= server_time(client), "a moment ahead of the clock is corrected"
    new.filters.leave()
    assert read_filters(shard).difference("hook", now + 90_000) == ""


@pytest.mark.every_redis
def test_filters_are_noted_at_maxmemory(shard: Shard, process: Callable[..., Process]) -> None:
    old = process("old", "a")
    with full(shard):
        old.note()
    assert living(shard) == {"old"}


def test_what_cannot_be_read_selects_nothing(
    shard: Shard, client: redis.Redis, process: Callable[..., Process]
) -> None:
    old = process("old", "a")
    old.note()
    client.hset(KEY, mapping={"filters:odd": "nonsense", "heard:odd": "0 0", "answered": "nonsense", "extra": "x"})
    old.note()
    assert living(shard) == {"old"}
    client.hset(KEY, "heard:old", "nonsense")
    old.note()
    assert living(shard) == {"old"}


def test_a_note_of_a_later_version_keeps_its_digest(client: redis.Redis, process: Callable[..., Process]) -> None:
    """A filter with more than this version knows selects no less than what this version reads."""
    old = process("old", "a")
    old.note()
    client.hset(KEY, "filters:new", '{"hook":{"digest":"later","tenants":["b"],"kinds":["seats"]}}')
    client.hset(KEY, mapping={"heard:new": "0 5", "version": "9@9"})
    (event,) = expire(client, "one", tenant="b")
    assert old.take() == []
    assert pending(client) == {event: (b"(released:later)", 0)}


# ---- what nobody wants, and what another process wants


def test_what_nobody_wants_is_acknowledged(client: redis.Redis, process: Callable[..., Process]) -> None:
    old, new = process("old", "a"), process("new", "a", "b")
    expire(client, "one", tenant="c")
    assert (old.take(), pending(client)) == ([], {}), "without notes, as one process alone"
    for each in (old, new):
        each.note()
    old.filters.refresh()
    mine, _ = expire(client, "two", tenant="a")[0], expire(client, "three", tenant="c")
    assert [entry.id for entry in old.take()] == [mine]
    assert pending(client) == {mine: (b"old", 1)}


def test_what_only_another_process_wants_waits_for_it(client: redis.Redis, both: Pair) -> None:
    old, new = both
    (event,) = expire(client, "one", tenant="b")
    assert old.take() == []
    assert pending(client) == {event: (new.owner, 0)}
    assert is_waiting(new.owner)
    assert not old.outbox.may_take(old.subscription, new.owner)
    assert new.outbox.may_take(new.subscription, new.owner)
    (waiting,) = new.outbox.pending("hook")
    assert waiting.idle_ms >= LONG_IDLE_MS
    (entry,) = new.judge(new.outbox.claim("hook", [waiting], SILENCE_MS))
    assert (entry.id, entry.deliveries) == (event, 1)
    assert not new.outbox.groups.held_elsewhere("hook")


def test_a_filter_that_is_noted_after_the_judgement(client: redis.Redis, process: Callable[..., Process]) -> None:
    """The old process has read and judged the event; the note of the new one comes first."""
    old, new = process("old", "a"), process("new", "a", "b")
    old.note()
    (event,) = expire(client, "one", tenant="b")
    taken = old.outbox.read("hook", 10)
    new.note()
    assert old.judge(taken) == []
    assert pending(client) == {event: (new.owner, 0)}


def test_parked_events_are_judged_alike(client: redis.Redis, both: Pair) -> None:
    old, new = both
    (event,) = expire(client, "one", tenant="b")
    for hand_over in (1, 2):
        (entry,) = new.take() if hand_over == 1 else new.judge(new.outbox.claim("hook", new.outbox.pending("hook"), 0))
        new.outbox.nack("hook", [entry])
        assert pending(client) == {event: (PARKED, hand_over)}
        assert old.judge(old.outbox.claim("hook", old.outbox.pending("hook"), 0)) == []
        assert pending(client) == {event: (new.owner, hand_over)}, "the hand-over counts once"


def test_parked_events_that_are_looked_up_keep_their_deliveries(client: redis.Redis, both: Pair) -> None:
    """As with an open circuit, where old events are given up on without a claim."""
    old, new = both
    (event,) = expire(client, "one", tenant="b")
    (other,) = expire(client, "two", tenant="c")
    new.outbox.nack("hook", new.outbox.read("hook", 10))
    entries = old.outbox.look_up(old.outbox.pending("hook"))
    assert [entry.id for entry in entries] == [event, other]
    old.outbox.acknowledge_unwanted(old.subscription, entries, PARKED)
    assert pending(client) == {event: (new.owner, 1)}
    old.outbox.acknowledge_unwanted(old.subscription, entries[:1], PARKED)
    assert pending(client) == {event: (new.owner, 1)}, "the owner is another one by now"


@pytest.mark.parametrize("dead", [True, False], ids=["silent", "ended"])
def test_without_such_a_process_an_event_is_judged_anew(dead: bool, client: redis.Redis, both: Pair) -> None:
    old, new = both
    expire(client, "one", tenant="b")
    old.take()
    if dead:
        silence(client, "new", SILENCE_MS + 1)
    else:
        new.filters.leave()
    old.note()
    assert old.outbox.may_take(old.subscription, new.owner)
    assert old.judge(old.outbox.claim("hook", old.outbox.pending("hook"), SILENCE_MS)) == []
    assert pending(client) == {}


def test_a_narrower_filter_waits_for_the_end_of_the_wider_one(
    client: redis.Redis, process: Callable[..., Process]
) -> None:
    old, new = process("old", "a", "b"), process("new", "a")
    for each in (old, new):
        each.note()
    (event,) = expire(client, "one", tenant="b")
    assert new.take() == []
    assert pending(client) == {event: (old.owner, 0)}


@pytest.mark.parametrize("lost", ["flush", "fail-over"])
def test_notes_that_redis_lost_count_until_they_are_there_again(
    lost: str, client: redis.Redis, process: Callable[..., Process]
) -> None:
    old, new = process("old", "a"), process("new", "a", "b")
    old.note()
    before = client.hgetall(KEY)
    new.note()
    old.note()
    (event,) = expire(client, "one", tenant="b")
    client.delete(KEY)
    if lost == "fail-over":
        client.hset(KEY, mapping=before)  # type: ignore[arg-type]
    assert old.take() == []
    assert pending(client) == {event: (new.owner, 0)}
    assert not old.outbox.may_take(old.subscription, new.owner)
    old.note()
    assert not old.outbox.may_take(old.subscription, new.owner)
    old.now += DEFAULT_TIMING.take_over_after
    assert old.outbox.may_take(old.subscription, new.owner), "the process that noted it is not there any more"


def test_scopes_and_types_are_judged_alike(client: redis.Redis, process: Callable[..., Process]) -> None:
    one, two = process("one", scopes=["tenant:none*"]), process("two", scopes=["tenant:ac*"])
    three, four = process("three", events=["seats"]), process("four", events=["reservation"], scopes=["x"])
    for each in (one, three, four, two):
        each.note()
    for number, each in enumerate((one, three, four)):
        each.note()
        (event,) = expire(client, str(number))
        assert each.take() == []
        assert pending(client)[event] == (two.owner, 0)


def test_a_replay_goes_by_the_filters_too(client: redis.Redis, both: Pair) -> None:
    """The span is the same for all processes; only the filter of another process may want an event of it."""
    old, new = both
    inside, _ = expire(client, "in", tenant="b")[0], expire(client, "in", tenant="c")
    count = ReplayCount()
    count.add(inside)
    (outside,) = expire(client, "out", tenant="b")
    note = count.note("hook", ReplaySpan(0, 10**14))
    client.xgroup_create(EVENTS, note.group, "0")
    replay = ReplaySubscription(old.endpoint, note)
    old.outbox.acknowledge_unwanted(replay, old.outbox.read(note.group, 10))
    assert pending(client, note.group) == {inside: (new.owner, 0)}
    assert outside not in pending(client, note.group)
    assert new.outbox.may_take(ReplaySubscription(new.endpoint, note), new.owner)
    assert not old.outbox.in_hand(note.group)


def test_a_replay_that_no_process_selects_alike(shard: Shard, process: Callable[..., Process]) -> None:
    """An operator has the new settings, the processes do not: they would leave out events that were counted."""
    old, new = process("old", "a"), process("new", "a", "b")
    assert filter_gap(shard, new.endpoint) == ""
    old.note()
    assert filter_gap(shard, new.endpoint) != ""
    assert filter_gap(shard, old.endpoint) == ""
    new.note()
    assert filter_gap(shard, new.endpoint) == ""


# ---- those who look after all pending events


def test_an_open_circuit_takes_back_released_events(client: redis.Redis, both: Pair) -> None:
    old, new = both
    (event,) = expire(client, "one", tenant="b")
    old.take()
    assert old.outbox.orphaned(old.subscription, (), 10) == []
    assert [each.id for each in new.outbox.orphaned(new.subscription, (), 10)] == [event]
    new.filters.leave()
    old.note()
    assert [each.id for each in old.outbox.orphaned(old.subscription, (), 10)] == [event]


def test_waits_end_for_released_events_too(client: redis.Redis, both: Pair) -> None:
    """After a clock was set back, Redis takes an idle time for 0."""
    old, new = both
    (event,) = expire(client, "one", tenant="b")
    old.take()
    client.xclaim(EVENTS, "hook", new.owner.decode(), 0, [event], idle=0, justid=True)
    new.outbox.end_waits("hook")
    (waiting,) = new.outbox.pending("hook")
    assert (waiting.owner, waiting.idle_ms >= LONG_IDLE_MS) == (new.owner, True)


def test_the_stream_is_not_trimmed_past_a_released_event(shard: Shard, client: redis.Redis, both: Pair) -> None:
    old, new = both
    (event,) = expire(client, "one", tenant="b")
    expire(client, *map(str, range(300)), tenant="c")
    old.outbox.acknowledge_unwanted(old.subscription, old.outbox.read("hook", 1000))
    old.outbox.groups.trim(["hook"], 0, 0)
    assert client.xrange(EVENTS, event, event)
    assert old.outbox.groups.remove_silent("hook") == 0, "its owner holds an event"
    assert pending(client) == {event: (new.owner, 0)}


def test_many_events_at_a_time(client: redis.Redis, both: Pair) -> None:
    old, new = both
    wanted = expire(client, *map(str, range(1200)), tenant="b")
    expire(client, *map(str, range(1200)), tenant="c")
    old.outbox.acknowledge_unwanted(old.subscription, old.outbox.read("hook", 5000))
    rows: Any = client.xpending(EVENTS, "hook")
    assert rows["consumers"] == [{"name": new.owner, "pending": len(wanted)}]


def test_unwanted_events_that_are_acknowledged_already_are_done(
    process: Callable[..., Process], client: redis.Redis
) -> None:
    us = process("us", "acme")
    us.note()
    (event,) = expire(client, "other", tenant="other")
    entries = us.outbox.read("hook", 1)
    client.xack(EVENTS, "hook", event)
    us.outbox.acknowledge_unwanted(us.subscription, entries)
    assert pending(client) == {}


def test_a_group_passes_what_nobody_wants_without_reading_it(
    process: Callable[..., Process], client: redis.Redis
) -> None:
    us = process("us", "acme")
    us.note()
    ids: Any = [client.xadd(EVENTS, {"tenant": "other"}) for _ in range(5)]
    client.xadd(EVENTS, {"tenant": "acme"})
    assert us.outbox.pass_unwanted(us.subscription, ids[1], ids[4]) == (False, us.outbox.peek(b"0-0", 1))
    assert pending(client) == {ids[0]: (b"us", 1)}, "the group was elsewhere: that event was read"
    assert us.outbox.pass_unwanted(us.subscription, ids[1], ids[4]) == (True, [])
    assert pending(client) == {ids[0]: (b"us", 1)}
    assert [dict(entry.fields) for entry in us.outbox.read("hook", 9)] == [{b"tenant": b"acme"}]
    assert us.outbox.pass_unwanted(us.subscription, ids[0], ids[4]) == (False, []), "there is nothing to read"
    client.xadd(EVENTS, {"tenant": "acme"})
    assert us.outbox.pass_unwanted(us.subscription, ids[0], ids[4])[1][0].fields == {b"tenant": b"acme"}
    assert ids[0] in pending(client), "a process has it in hand"


def test_a_group_is_not_moved_beyond_events_that_a_fail_over_has_lost(
    process: Callable[..., Process], client: redis.Redis
) -> None:
    """The clock of the new primary may be behind, so its next event comes before the lost ones."""
    us = process("us", "acme")
    us.note()
    first: Any = client.xadd(EVENTS, {"tenant": "other"}, id="1000-1")
    wanted: Any = client.xadd(EVENTS, {"tenant": "acme"}, id="1500-1")
    assert us.outbox.pass_unwanted(us.subscription, first, b"2000-1") == (False, [])
    assert [entry.id for entry in us.outbox.read("hook", 9)] == [first, wanted]


def test_a_group_passes_nothing_that_another_process_may_want(
    process: Callable[..., Process], client: redis.Redis
) -> None:
    us, them = process("us", "acme"), process("them", "other")
    us.note()
    first: Any = client.xadd(EVENTS, {"tenant": "other"})
    last: Any = client.xadd(EVENTS, {"tenant": "other"})
    them.note()
    for _ in range(2):  # the first call learns of the other filter
        assert us.outbox.pass_unwanted(us.subscription, first, last) == (False, [])
        assert us.filters.known.version == them.filters.known.version
    assert pending(client) == {}
    assert [entry.id for entry in us.outbox.read("hook", 9)] == [first, last]


def test_a_filter_that_another_thread_learns_of_meanwhile_counts(
    process: Callable[..., Process], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep's thread notes the filters too."""
    us, them = process("us", "acme"), process("them", "other")
    us.note()
    event: Any = client.xadd(EVENTS, {"tenant": "other"})
    others = us.filters.others

    def during(endpoint: str) -> Any:
        found = others(endpoint)
        them.note()
        us.note()
        return found

    monkeypatch.setattr(us.filters, "others", during)
    assert us.outbox.pass_unwanted(us.subscription, event, event) == (False, [])
    assert [entry.id for entry in them.outbox.read("hook", 9)] == [event]
