"""Delivered events are acknowledged together, on real servers: none early, none lost, and none is left at a stop."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from sweeperd.config import RedisSettings
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.delivery.lane import LOGGED, Lane
from sweeperd.delivery.settler import Disposition, Settlement, Settler
from sweeperd.metrics import Metrics
from sweeperd.outbox import PARKED, Outbox, OutboxEntry
from sweeperd.store import Shard
from sweeperd.store.operations import run
from sweeperd.store.scripts import Script
from tests.support.builders import make_lane, room_for
from tests.support.harness import eventually, waits
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.streams import entries

KEY, GROUP = "sweeperd:events", "billing"
DEAD_LETTERS = "sweeperd_webhook_dead_letters_total"


class Gathering:
    """A settler of this process on a stream with so many taken events, and what it has done with them."""

    def __init__(self, shard: Shard, events: int, together: int, timing: Timing = DEFAULT_TIMING) -> None:
        self._shard = shard
        self.outbox = Outbox(shard, "us")
        self.outbox.groups.ensure(GROUP)
        for number in range(events):
            shard.client.xadd(KEY, {"id": f"r{number}"})
        self.taken = self.outbox.read(GROUP, events)
        shard.client.config_resetstat()
        self.metrics = Metrics()
        self.in_flight = room_for(events)
        self.in_flight.add(self.taken)
        parts: dict[str, Any] = {"outbox": self.outbox, "in_flight": self.in_flight, "metrics": self.metrics}
        self.lane = make_lane(shard, GROUP, timing=timing, **parts)
        #: The lanes that had something settled.
        self.told: list[Lane] = []
        self.settler = Settler(shard, timing, together, self.told.extend)
        self.thread = threading.Thread(target=self.settler.run, daemon=True)

    def add(self, entries: Sequence[OutboxEntry], action: Disposition = Disposition.ACKNOWLEDGE) -> None:
        for entry in entries:
            self.settler.add(self.lane, [Settlement(action, [entry], "HTTP 500")])

    def end(self) -> None:
        self.settler.end()
        self.thread.join(5)
        assert not self.thread.is_alive()

    @property
    def delivered(self) -> int:
        return self.lane.counts()["delivered"]

    @property
    def owners(self) -> dict[bytes, tuple[bytes, int]]:
        """The pending events: id -> owner and deliveries."""
        rows: Any = self._shard.client.xpending_range(KEY, GROUP, "-", "+", 1000)
        return {row["message_id"]: (row["consumer"], row["times_delivered"]) for row in rows}

    @property
    def pending(self) -> int:
        return len(self.owners)

    @property
    def trips(self) -> int:
        """How many XACKs the server has run."""
        return int(self._shard.client.info("commandstats").get("cmdstat_xack", {"calls": 0})["calls"])

    @property
    def refusals(self) -> int:
        """How many XACKs the server has refused."""
        return int(self._shard.client.info("commandstats").get("cmdstat_xack", {}).get("rejected_calls", 0))


@contextlib.contextmanager
def refused(client: redis.Redis, command: str = "xack") -> Iterator[None]:
    """While the block lasts, the server refuses this command."""
    client.acl_setuser("default", enabled=True, nopass=True, commands=[f"-{command}"])
    try:
        yield
    finally:
        client.acl_setuser("default", enabled=True, nopass=True, commands=[f"+{command}"])


def test_what_has_gathered_is_acknowledged_in_one_round_trip(shard: Shard) -> None:
    gathering = Gathering(shard, 20, together=100)
    gathering.add(gathering.taken)
    gathering.thread.start()
    eventually(lambda: not len(gathering.in_flight))
    assert (gathering.delivered, gathering.pending, gathering.trips) == (20, 0, 1)
    gathering.end()
    assert gathering.told == [gathering.lane]


def test_what_is_acknowledged_already_is_counted_alone(shard: Shard) -> None:
    """After a fail-over, a second acknowledgement would end an event whose records the copy lacks."""
    gathering = Gathering(shard, 3, together=3)
    first, *rest = gathering.taken
    gathering.settler.add(gathering.lane, [Settlement(Disposition.ACKNOWLEDGE, rest, acknowledged=True)])
    gathering.add([first])
    gathering.thread.start()
    eventually(lambda: not len(gathering.in_flight))
    assert (gathering.delivered, [*gathering.owners]) == (3, [entry.id for entry in rest])
    gathering.settler.add(gathering.lane, [Settlement(Disposition.ACKNOWLEDGE, rest, acknowledged=True)])
    eventually(lambda: gathering.delivered == 5)
    assert gathering.trips == 1
    gathering.end()


def test_what_gathers_is_acknowledged_when_it_is_enough(shard: Shard) -> None:
    """The first waits for more, and nothing waits longer where as many have gathered as share a round trip."""
    gathering = Gathering(shard, 3, together=3, timing=Timing(gather_settlements=60))
    gathering.add(gathering.taken[:2])
    gathering.thread.start()
    eventually(lambda: waits(gathering.thread))
    assert (gathering.delivered, gathering.pending, gathering.trips) == (0, 3, 0)
    gathering.add(gathering.taken[2:])
    eventually(lambda: gathering.delivered == 3, limit=5)
    assert (gathering.pending, gathering.trips) == (0, 1)
    gathering.end()


def test_the_end_does_not_wait_for_more(shard: Shard) -> None:
    gathering = Gathering(shard, 2, together=3, timing=Timing(gather_settlements=60))
    gathering.add(gathering.taken)
    gathering.thread.start()
    eventually(lambda: waits(gathering.thread))
    gathering.end()
    assert (gathering.delivered, gathering.pending) == (2, 0)


def test_only_what_was_added_is_acknowledged(shard: Shard) -> None:
    gathering = Gathering(shard, 5, together=2)
    gathering.thread.start()
    gathering.add(gathering.taken[1:3])
    eventually(lambda: len(gathering.in_flight) == 3)
    gathering.end()
    left = [gathering.taken[0], *gathering.taken[3:]]
    assert set(gathering.owners) == set(gathering.in_flight.ids()) == {entry.id for entry in left}


def test_each_action(shard: Shard) -> None:
    """All in one round; the counters say what was delivered and given up on, and nothing else."""
    gathering = Gathering(shard, 4, together=100)
    actions = [
        Disposition.RELEASE,
        Disposition.DEAD_LETTER,
        Disposition.ACKNOWLEDGE,
        Disposition.NACK,
    ]
    for entry, action in zip(gathering.taken, actions, strict=True):
        gathering.add([entry], action)
    gathering.thread.start()
    gathering.end()
    released, nacked = gathering.taken[0], gathering.taken[3]
    assert gathering.owners == {released.id: (PARKED, 0), nacked.id: (PARKED, 1)}
    assert len(gathering.in_flight) == 0
    assert gathering.lane.counts() == {"delivered": 1, "dead_lettered": 1}
    assert gathering.metrics.registry.get_sample_value(DEAD_LETTERS, {"endpoint": GROUP}) == 1
    ((_, letter),) = entries(shard.client, "sweeperd:dead-letters")
    assert (letter[b"event"], letter[b"reason"]) == (gathering.taken[1].id, b"HTTP 500")


@pytest.mark.parametrize(("action", "wait"), [(Disposition.RELEASE, 0.0), (Disposition.NACK, 30.0)])
def test_a_parked_event_is_due_after_its_wait(shard: Shard, action: Disposition, wait: float) -> None:
    gathering = Gathering(shard, 1, together=1, timing=Timing(clock=lambda: 1000.0))
    gathering.add(gathering.taken, action)
    gathering.thread.start()
    gathering.end()
    assert 1000 + wait / 2 <= gathering.lane.due_at <= 1000 + wait * 1.5


def test_a_single_one_does_not_wait_for_more(shard: Shard) -> None:
    gathering = Gathering(shard, 2, together=100)
    gathering.thread.start()
    for number, entry in enumerate(gathering.taken, 1):
        gathering.add([entry])
        eventually(lambda number=number: gathering.delivered == number)
    assert (gathering.pending, gathering.trips) == (0, 2)
    gathering.end()


def test_what_redis_refuses_is_tried_again(own_shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    gathering = Gathering(own_shard, 7, together=2, timing=Timing(recovery_pause=0.02))
    gathering.thread.start()
    with refused(own_shard.client):
        gathering.add(gathering.taken[:4])
        eventually(lambda: gathering.refusals >= 5)
        gathering.add(gathering.taken[6:], Disposition.NACK)
        eventually(lambda: "events in hand wait to be settled" in caplog.text)
        gathering.add(gathering.taken[4:6])
        assert len(gathering.in_flight) == gathering.pending == 7, "they stay in hand"
    eventually(lambda: not len(gathering.in_flight))
    assert gathering.delivered == 6, "each once"
    assert gathering.owners == {gathering.taken[6].id: (PARKED, 1)}
    assert caplog.text.count("events in hand wait to be settled") == 1, "once a minute at most"
    gathering.end()


def test_what_redis_refuses_waits_for_the_pause_and_holds_nothing_else(own_shard: Shard) -> None:
    gathering = Gathering(own_shard, 2, together=1, timing=Timing(recovery_pause=3600))
    gathering.thread.start()
    with refused(own_shard.client):
        gathering.add(gathering.taken[:1])
        eventually(lambda: gathering.refusals == 1 and waits(gathering.thread))
    gathering.add(gathering.taken[1:])
    eventually(lambda: gathering.delivered)
    assert gathering.owners.keys() == {gathering.taken[0].id}
    gathering.end()
    assert (gathering.delivered, gathering.pending) == (2, 0)


@pytest.mark.parametrize(("events", "lines"), [(1, 1), (LOGGED, LOGGED), (LOGGED + 1, 1)])
def test_many_events_that_are_given_up_together_share_a_line(
    shard: Shard, caplog: pytest.LogCaptureFixture, events: int, lines: int
) -> None:
    gathering = Gathering(shard, events, together=events)
    gathering.add(gathering.taken, Disposition.DEAD_LETTER)
    gathering.thread.start()
    gathering.end()
    told = [vars(record) for record in caplog.records if record.message.startswith("given up")]
    assert [each.get("events") for each in told] == ([None] * lines if events == lines else [events])
    assert told[0]["stream_id"] == gathering.taken[0].id.decode()


def test_a_letter_whose_answer_was_lost_is_counted_and_logged(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.script_load(Script("delivery/dead_letter").source)
    with Proxy(server.port) as proxy:
        shard = Shard(RedisSettings(url=SecretStr(proxy.url)))
        gathering = Gathering(shard, 3, together=3, timing=Timing(recovery_pause=0.02))
        proxy.loses = Script("delivery/dead_letter").sha.encode()
        gathering.add(gathering.taken, Disposition.DEAD_LETTER)
        gathering.thread.start()
        eventually(lambda: not len(gathering.in_flight))
        gathering.end()
        shard.close()
    assert proxy.loses is None
    assert client.xlen("sweeperd:dead-letters") == 3
    assert gathering.metrics.registry.get_sample_value(DEAD_LETTERS, {"endpoint": GROUP}) == 3
    assert gathering.lane.counts()["dead_lettered"] == 3
    assert len([record for record in caplog.records if record.message.startswith("given up")]) == 3
    run(client, gathering.lane.give_up(gathering.taken, "again"))
    assert gathering.lane.counts()["dead_lettered"] == 3, "what is no more pending then is somebody else's"


def test_what_redis_refuses_within_a_script_is_tried_again(own_shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    gathering = Gathering(own_shard, 1, together=1, timing=Timing(recovery_pause=0.02))
    gathering.thread.start()
    with refused(own_shard.client, "xclaim"):
        gathering.add(gathering.taken, Disposition.NACK)
        eventually(lambda: "events in hand wait to be settled" in caplog.text)
        assert len(gathering.in_flight) == 1, "the event stays in hand"
    eventually(lambda: not len(gathering.in_flight))
    assert gathering.owners == {gathering.taken[0].id: (PARKED, 1)}
    assert "Traceback" not in caplog.text
    gathering.end()


def test_at_the_end_what_cannot_be_acknowledged_stays_pending(
    own_shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    gathering = Gathering(own_shard, 4, together=2)
    gathering.thread.start()
    with refused(own_shard.client):
        gathering.add(gathering.taken)
        eventually(lambda: "events in hand wait to be settled" in caplog.text)
        gathering.end()
    assert (gathering.delivered, gathering.pending, len(gathering.in_flight)) == (0, 4, 0)
    assert "events are left pending" in caplog.text


def test_a_fault_of_ours_does_not_end_it(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    gathering = Gathering(shard, 2, together=1)
    gathering.thread.start()
    shard.client.rename(KEY, "elsewhere")
    shard.client.set(KEY, "no stream")
    gathering.add(gathering.taken[:1])
    eventually(lambda: len(gathering.in_flight) == 1)
    assert gathering.delivered == 0
    assert "events could not be settled" in caplog.text
    shard.client.rename("elsewhere", KEY)
    gathering.add(gathering.taken[1:])
    eventually(lambda: gathering.delivered == 1)
    assert gathering.pending == 1
    gathering.end()


@pytest.mark.parametrize("action", Disposition)
def test_events_of_a_group_that_has_gone_are_let_go(
    shard: Shard, caplog: pytest.LogCaptureFixture, action: Disposition
) -> None:
    """A replay that was cancelled, or a group that is lost: it is made again and gives them out again. No traceback."""
    gathering = Gathering(shard, 2, together=100)
    gathering.add(gathering.taken, action)
    shard.client.xgroup_destroy(KEY, GROUP)
    gathering.thread.start()
    eventually(lambda: not len(gathering.in_flight))
    gathering.end()
    assert not [record for record in caplog.records if record.exc_info]
    assert gathering.lane.counts()["dead_lettered"] == shard.client.xlen("sweeperd:dead-letters") == 0
    assert gathering.metrics.registry.get_sample_value(DEAD_LETTERS, {"endpoint": GROUP}) is None
