"""Checks that single events and the relay yield the CPU to a sweep, while batches do not."""

import threading
from collections.abc import Sequence

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.metrics import Metrics
from sweeperd.runtime.sweeps import kind_sweeps
from sweeperd.store import Shard
from sweeperd.sweep import Decision
from tests.support.deliveries import expire
from tests.support.harness import eventually, reserve
from tests.support.receiver import Receiver


@pytest.mark.parametrize(("batch_size", "waits"), [(1, 29), (5, 0)])
def test_events_beside_a_sweep(batch_size: int, waits: int, client: redis.Redis, shard: Shard) -> None:
    with Receiver() as receiver:
        endpoint = {"name": "hook", "url": receiver.url, "batch_size": batch_size}
        settings = Settings.model_validate({"webhooks": {"endpoints": [endpoint]}})
        context = ShardContext(settings, shard, Metrics(), threading.Event(), concurrency=4, until_idle=True)
        dispatcher = Dispatcher(context)
        dispatcher.prepare()
        expire(client, *map(str, range(30)))
        with context.cpu_turns.sweep():
            eventually(lambda: context.cpu_turns.sweeping)
            dispatcher.start()
            assert dispatcher.join()
        assert dispatcher.report().delivered == 30
    labels = {"endpoint": "hook"}
    counted = context.metrics.registry.get_sample_value("sweeperd_webhook_sweep_waits_total", labels)
    # Two that come far apart do not wait for one another.
    assert counted == 0 if not waits else 0 < (counted or 0) <= waits


def test_a_tick_is_a_sweep(client: redis.Redis, shard: Shard) -> None:
    context, seen = ShardContext(Settings(), shard, Metrics(), threading.Event(), 1), []

    def observe(_: Sequence[Decision]) -> None:
        seen.append(eventually(lambda: context.cpu_turns.sweeping))

    reserve(client, ["overdue"])
    (sweep,) = kind_sweeps(context, observe)
    sweep.run()
    assert seen == [True]
    assert not context.cpu_turns.sweeping
