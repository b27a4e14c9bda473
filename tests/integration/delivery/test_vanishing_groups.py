"""A group that goes between two steps of the maintenance. No server can be made to do so: a function is replaced."""

from typing import Any

import pytest
import redis

from sweeperd.outbox import EndpointStateStore, Outbox
from sweeperd.store import Shard, streams
from tests.integration.delivery.test_groups import HOUR, NOWHERE
from tests.integration.delivery.test_replays import add, begin
from tests.support.deliveries import EVENTS, Delivery, expire
from tests.support.harness import server_time


class Vanishing:
    """The groups of the stream; each look at them is the last one at this group."""

    def __init__(self, client: redis.Redis, group: str) -> None:
        self._client = client
        self._group = group

    def __call__(self, client: redis.Redis, key: bytes) -> dict[bytes, dict[str, Any]]:
        found = streams_groups(client, key)
        self._client.xgroup_destroy(EVENTS, self._group)
        return found


streams_groups = streams.groups


@pytest.mark.parametrize("after", range(4))
def test_a_replay_that_ends_during_maintenance_does_not_fail_it(
    after: int, shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = server_time(client)
    add(client, now - HOUR, 3)
    delivery = Delivery(shard, NOWHERE, 2, {})
    EndpointStateStore(shard).pause("hook", "moving house")
    running = begin(shard, now - 2 * HOUR, now)
    Outbox(shard, "them").read(running.group, 3)
    expire(client, "waiting")
    looks = [0]
    vanish = Vanishing(client, running.group)

    def look(*arguments: Any) -> Any:
        looks[0] += 1
        return vanish(*arguments) if looks[0] == after + 1 else streams_groups(*arguments)

    monkeypatch.setattr(streams, "groups", look)
    delivery.dispatcher.maintain()
    monkeypatch.undo()
    client.xgroup_destroy(EVENTS, running.group)
    assert delivery.sample("sweeperd_webhook_pending_events") == 1
