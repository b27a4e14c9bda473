"""Reads what a walk needs of each reservation, many in one round trip."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from sweeperd.config import SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.ops.reconcile.keyspace import Throttle, batches
from sweeperd.store.scripts import Call, Script, ScriptPipeline
from sweeperd.store.shard import Shard

#: How many reservations one script reads (0.1 to 0.2 ms of Redis's time), and how many one round trip.
SCRIPT_BATCH, BATCH = 5, 50


class Sight(NamedTuple):
    """What was seen of one reservation."""

    entry: bytes
    #: A fault, `dismissed`, `foreign_expiry`, or nothing.
    mark: bytes
    #: What it holds, as reconcile_look.lua replies.
    holding: Sequence[bytes]


class ReservationReader:
    """Runs reconcile_look.lua on a connection of its own."""

    def __init__(self, shard: Shard, settings: SweepSettings, throttle: Throttle) -> None:
        self._keys = shard.keys
        self._grace_ms = milliseconds(settings.grace)
        #: How long an ended reservation stays readable, ms: the shortest time that the settings or what was read so far
        #: name. Other writers have settings of their own.
        self.retention_ms = milliseconds(settings.audit_retention)
        self._throttle = throttle
        self._pipeline = ScriptPipeline(Script("ops/reconcile_look"), shard.client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipeline.close()

    def read(self, ids: Sequence[bytes], since_ms: int | None) -> Iterator[Sight]:
        """Those of these reservations of which something was seen. `since_ms` None: not what they hold."""
        for some in batches(ids, BATCH):
            parts = list(batches(some, SCRIPT_BATCH))
            self._throttle.begin()
            self._pipeline.send([self._call(part, since_ms) for part in parts])
            replies, micros, _ = self._pipeline.receive()
            self._throttle.end(busy=None if micros is None else micros / 1_000_000)
            for part, reply in zip(parts, replies, strict=True):
                if isinstance(reply, Exception):
                    raise reply
                *seen, retention = reply
                if retention:
                    self.retention_ms = min(self.retention_ms, int(retention))
                yield from _sights(part, seen)

    def _call(self, ids: Sequence[bytes], since_ms: int | None) -> Call:
        reservations = [self._keys.reservation(entry) for entry in ids]
        keys = [self._keys.reservation_index, self._keys.quarantine, *reservations]
        return Call(keys, [self._grace_ms, "" if since_ms is None else since_ms, *ids])


def _sights(ids: Sequence[bytes], reply: Sequence[Any]) -> Iterator[Sight]:
    for entry, seen in zip(ids, reply, strict=True):
        if seen:
            yield Sight(entry, seen[0], seen[1])
