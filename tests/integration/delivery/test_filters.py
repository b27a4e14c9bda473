"""A rolling change of the filter of an endpoint: two processes, one consumer group."""

import itertools
import time
from collections import Counter
from typing import Any

import pytest
import redis

from sweeperd.config import EndpointSettings, Settings
from sweeperd.context import Timing
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.errors import RedisUnavailable
from sweeperd.ops.check.findings import CheckLevel
from sweeperd.ops.check.server import check_shard
from sweeperd.ops.endpoint_status import read_endpoints
from sweeperd.ops.processes import Processes
from sweeperd.outbox import Filters
from sweeperd.outbox.dead_letters import LetterCounts
from sweeperd.outbox.filters import read_filters
from sweeperd.store import Shard
from tests.support.deliveries import EVENTS, Deliver, Delivery, expire, settled
from tests.support.harness import eventually
from tests.support.receiver import Receiver

KEY = "sweeperd:filters"
#: A process that is silent is dead soon.
QUICK = Timing(take_over_after=2.0, heartbeat_every=0.1, block=0.05, refresh_every=0.1, scan_every=0.05)
OLD, NEW = {"tenants": ["a"]}, {"tenants": ["a", "b"]}


def both(client: redis.Redis, count: int, *tenants: str) -> list[bytes]:
    """Events of these tenants in turn."""
    turns = itertools.cycle(tenants)
    return [entry for number in range(count) for entry in expire(client, f"r{number}", tenant=next(turns))]


def endpoint(settings: dict[str, Any]) -> dict[str, Any]:
    return {"name": "hook", "url": "http://127.0.0.1:9/", **settings}


def endpoints(settings: dict[str, Any]) -> list[EndpointSettings]:
    return [EndpointSettings.model_validate(endpoint(settings))]


def released(delivery: Delivery) -> set[bytes]:
    return {owner for owner, _, _ in delivery.pending().values() if owner.startswith(b"(released:")}


def test_a_filter_is_widened(client: redis.Redis, deliver: Deliver, shard: Shard) -> None:
    """From the note of the new process on, each event that it wants is delivered."""
    with Receiver() as receiver, deliver(receiver.url, endpoint=OLD, timing=QUICK) as old:
        early = both(client, 20, "b")
        eventually(lambda: not old.pending() and client.xinfo_groups(EVENTS)[0]["last-delivered-id"] == early[-1])
        with deliver(receiver.url, endpoint=NEW, timing=QUICK):
            both(client, 200, "a", "b")
            eventually(lambda: len(receiver.requests) == 200)
            settled(old)
        assert Counter(request.event["tenant_id"] for request in receiver.requests) == {"a": 100, "b": 100}
        assert old.events("delivered") > 0, "both processes have worked"
        assert [each.process for each in read_filters(shard).processes] == [old.dispatcher._outbox.consumer]


def test_a_roll_back_holds_nothing_up(client: redis.Redis, deliver: Deliver) -> None:
    """The new process is killed before it has delivered: what it wanted is judged anew, and acknowledged."""
    with Receiver() as receiver, deliver(receiver.url, endpoint=OLD, timing=QUICK) as old:
        Filters(old.dispatcher._shard, "newcomer", endpoints(NEW), QUICK).update()
        wanted = both(client, 10, "b")
        eventually(lambda: released(old) and len(old.pending()) == len(wanted))
        both(client, 10, "a")
        eventually(lambda: len(receiver.requests) == 10)
        settled(old)
    assert {request.event["tenant_id"] for request in receiver.requests} == {"a"}


def test_a_process_notes_its_filters_before_it_takes_an_event(
    client: redis.Redis, shard: Shard, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Redis refuses the note, nothing is taken, and the process is not ready."""

    def refuse(_self: Filters) -> None:
        raise redis.ResponseError("NOPERM no right")

    client.xgroup_create(EVENTS, "hook", "0", mkstream=True)
    (event,) = expire(client, "one", tenant="a")
    with Receiver() as receiver:
        with monkeypatch.context() as patch:
            prepare = Dispatcher.prepare
            patch.setattr(Dispatcher, "prepare", lambda _: None)
            patch.setattr(Filters, "update", refuse)
            with deliver(receiver.url, endpoint=NEW, timing=QUICK) as delivery:
                with pytest.raises(RedisUnavailable):
                    prepare(delivery.dispatcher)
                time.sleep(0.3)
                assert not delivery.pending()
                patch.undo()
                eventually(lambda: len(receiver.requests) == 1)
    assert client.xinfo_groups(EVENTS)[0]["last-delivered-id"] == event


def test_a_process_that_prepares_notes_its_filters(shard: Shard) -> None:
    made = Delivery(shard, "http://127.0.0.1:9/", 1, OLD)
    assert [each.process for each in read_filters(shard).processes] == [made.dispatcher._outbox.consumer]


def test_filters_that_differ_for_long_are_reported(
    client: redis.Redis, shard: Shard, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, in the log; by `check` and by the status as long as it lasts."""
    with deliver("http://127.0.0.1:9/", endpoint=OLD) as delivery:
        Filters(shard, "newcomer", endpoints(NEW)).update()
        settings = Settings.model_validate({"webhooks": {"endpoints": [endpoint(NEW)]}})
        for ago in (0, 90_000):
            for row in client.hscan_iter(KEY, "heard:*"):
                heard, since = row[1].split()
                client.hset(KEY, row[0], f"{int(heard)} {int(since) - ago}")
            delivery.dispatcher._filters.refresh()
            for _ in range(3):
                delivery.dispatcher.maintain()
            (status,) = read_endpoints(settings, shard, shard.read_clock(), LetterCounts(), Processes())
            (found,) = [each for each in check_shard(shard, settings) if each.check == "filters"]
            said = [record for record in caplog.records if "different filters" in record.message]
            if not ago:
                assert (status.warning, found.level, said) == ("", CheckLevel.OK, [])
        assert "newcomer" in status.warning
        assert found.level is CheckLevel.WARNING
        assert len(said) == 1
