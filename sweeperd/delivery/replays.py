"""The replays that this process works off on one shard."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import redis

from sweeperd.delivery.endpoint import EndpointDelivery
from sweeperd.delivery.outbox import Outbox
from sweeperd.delivery.replay import ReplayNote, ReplaySubscription
from sweeperd.delivery.replay_store import ReplayStore, end_cancelled
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningReplay:
    """One replay in this process. It has a stop of its own, because it ends before the process does."""

    note: ReplayNote
    subscription: ReplaySubscription
    delivery: EndpointDelivery
    stop: threading.Event


#: Makes the delivery of a replay, which is not started.
Make = Callable[[ReplayNote], RunningReplay]


class Replays:
    """
    Begins to work on each replay to one of these endpoints that an operator has begun, and ends each one whose events
    have all been delivered. `refresh` is called every few seconds, by one thread at a time.
    """

    def __init__(self, shard: Shard, outbox: Outbox, endpoints: Iterable[str], make: Make) -> None:
        self._shard = shard
        self._outbox = outbox
        self._store = ReplayStore(shard)
        self._endpoints = frozenset(endpoints)
        self._make = make
        self._running: dict[str, RunningReplay] = {}
        self._counts = Counter[str]()

    @property
    def deliveries(self) -> list[EndpointDelivery]:
        """Those that have not ended."""
        return [replay.delivery for replay in list(self._running.values())]

    @property
    def groups(self) -> list[str]:
        """The consumer groups of the replays that this process works on."""
        return [replay.note.group for replay in list(self._running.values())]

    def refresh(self, *, until_idle: bool = False) -> None:
        """Start, stop and end what is to be. Raises redis.RedisError."""
        notes = self._notes()
        for endpoint, replay in list(self._running.items()):
            note = notes.get(endpoint)
            if note is None or note.cancelled or note.made_at != replay.note.made_at:
                replay.stop.set()
            self._remove_ended(endpoint, replay)
        for note in notes.values():
            if note.endpoint in self._running:
                continue
            if note.cancelled:
                end_cancelled(self._store, self._outbox, note)
            else:
                self._start(note, until_idle=until_idle)
        self._end_finished(notes.values())

    def stop(self) -> None:
        """Take no more events; `join` has to follow."""
        for replay in self._running.values():
            replay.stop.set()
            replay.delivery.wake()

    def join(self, deadline: float | None = None) -> bool:
        """Wait until `deadline` (monotonic) for their threads. Returns whether they have all ended."""
        for endpoint, replay in list(self._running.items()):
            replay.delivery.join(deadline)
            self._remove_ended(endpoint, replay)
        return not self._running

    def finish(self) -> None:
        """End the replays that are at their end. Raises redis.RedisError."""
        self._end_finished(self._notes().values())

    def counts(self) -> Counter[str]:
        """How many events were `delivered` and `dead_lettered` by the replays of this process."""
        return sum((delivery.counts() for delivery in self.deliveries), Counter(self._counts))

    def left(self) -> int:
        """How many events of all replays are not delivered, about. Raises redis.RedisError."""
        return sum(self._store.progress(note).left for note in self._notes().values() if not note.cancelled)

    def _notes(self) -> dict[str, ReplayNote]:
        return {endpoint: note for endpoint, note in self._store.all().items() if endpoint in self._endpoints}

    def _start(self, note: ReplayNote, *, until_idle: bool) -> None:
        replay = self._make(note)
        replay.delivery.prepare()
        if replay.stop.is_set():
            return  # it has ended since its note was read
        self._running[note.endpoint] = replay
        log.info("a replay begins here", extra=self._log_fields(note))
        replay.delivery.start(until_idle=until_idle)

    def _end_finished(self, notes: Iterable[ReplayNote]) -> None:
        for note in notes:
            if note.cancelled:
                continue
            replay, exhausted = self._running.get(note.endpoint), self._store.exhausted(note)
            if replay is not None:
                # A group that was lost and is made again takes events anew.
                replay.subscription.exhausted = exhausted
            if exhausted and self._store.end(note):
                log.warning("a replay has ended: all of its events were delivered", extra=self._log_fields(note))
                if replay is not None:
                    replay.stop.set()

    def _remove_ended(self, endpoint: str, replay: RunningReplay) -> None:
        if not replay.delivery.join(time.monotonic()):
            return
        del self._running[endpoint]
        self._counts += replay.delivery.counts()
        self._outbox.groups.forget(replay.note.group)
        try:
            self._outbox.groups.leave(replay.note.group)
        except redis.ResponseError:
            log.debug("the group of a replay has gone", extra=self._log_fields(replay.note))

    def _log_fields(self, note: ReplayNote) -> dict[str, object]:
        return {"shard": self._shard.name, "endpoint": note.endpoint, "events": note.events}
