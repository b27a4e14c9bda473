"""Runs operators' queries and repairs on a shard that is a slot of a Cluster."""

import threading

from sweeperd.config import Settings
from sweeperd.ops.quarantine import Quarantine, QuarantineFilter
from sweeperd.ops.show import Fate, inspect
from sweeperd.ops.status import read_status
from sweeperd.outbox import Outbox
from sweeperd.store import Shard
from sweeperd.sweep import Outcome
from sweeperd.sweep.last_sweep import LastSweepStore
from tests.support.builders import make_sweeper, reservations_kind
from tests.support.harness import reserve
from tests.topology.servers import Cluster

PREFIX = "{an operator's}:"


def walk(running: Cluster) -> None:
    """Two reservations in a slot of their own: one expires, one is set aside and repaired. Nothing is left of them."""
    endpoints = [{"name": "billing", "url": "http://127.0.0.1:9/"}]
    settings = Settings.model_validate({"redis": {"url": running.url}, "webhooks": {"endpoints": endpoints}})
    shard = Shard(settings.redis, PREFIX)
    kind = reservations_kind(shard.keys, settings.sweep)
    board, stream = LastSweepStore(shard, kind), Outbox(shard, "us")
    sweeper = make_sweeper(
        shard, kind, settings.sweep, lambda decisions, _: board.decided(decisions), threading.Event()
    )
    with running.client(running.owner(PREFIX)) as client:
        reserve(client, ["a", "b"], prefix=PREFIX)
        client.hset(f"{PREFIX}reservation:res_b", "state", "LIMBO")
        stream.groups.ensure("billing")
        board.note(sweeper.tick())
        client.hset(f"{PREFIX}reservation:res_b", "state", "ACTIVE")
    status = read_status(settings, shard)
    assert (status.error, status.reservations.quarantined, status.due.entries) == ("", 1, 0)
    assert status.reservations.tick is not None
    assert (status.reservations.tick.expired, status.endpoints[0].pending) == (1, 1)
    found = inspect(settings, shard, kind, b"a")
    assert found is not None
    assert found.event is not None
    assert [(one.endpoint, one.fate) for one in found.event.deliveries] == [("billing", Fate.NOT_TAKEN)]
    ((done,),) = Quarantine(shard, kind, 50).requeue(QuarantineFilter())
    assert (done.entry.id, done.problem) == (b"b", "")
    assert read_status(settings, shard).due.overdue == 1
    found = inspect(settings, shard, kind, b"b")
    assert found is not None
    assert found.sweep.outcome == Outcome.EXPIRED
    assert sweeper.tick().counts == {Outcome.EXPIRED: 1}
    shard.close()
    with running.client(running.owner(PREFIX)) as client:
        for key in list(client.scan_iter(f"{PREFIX}*")):
            client.delete(key)
