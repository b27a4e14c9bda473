"""Reservations that another sweeper set aside: finds them, and takes them into the quarantine."""

from collections.abc import Iterator, Sequence

from sweeperd.config import SweepSettings
from sweeperd.ops.reconcile.keyspace import Keyspace
from sweeperd.ops.reconcile.reader import ReservationReader
from sweeperd.ops.reconcile.report import Fault
from sweeperd.ops.throttle import Throttle
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard


def find_foreign(shard: Shard, settings: SweepSettings, throttle: Throttle | None = None) -> Iterator[bytes]:
    """The ids of all such reservations of a shard; an id may come twice. Raises RedisUnavailable, redis.RedisError."""
    throttle, stem, mark = throttle or Throttle(), shard.keys.reservation(b""), Fault.FOREIGN_QUARANTINE.value.encode()
    with ReservationReader(shard, settings, throttle) as reader:
        for _, page in Keyspace(shard, throttle).keys(stem):
            for sight in reader.read([key.removeprefix(stem) for key in page], None):
                if sight.mark == mark:
                    yield sight.entry


def adopt(shard: Shard, ids: Sequence[bytes]) -> list[bool]:
    """Take these into the quarantine. False for one that has no mark of another sweeper. Raises redis.RedisError."""
    keys = shard.keys
    calls = [Call([keys.reservation(each), keys.reservation_index, keys.quarantine], [each]) for each in ids]
    replies = Script("ops/adopt").run_many(shard.client, calls)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return [reply == b"adopted" for reply in replies]
