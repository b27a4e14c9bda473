"""Works on the replays to the endpoints of one shard: a lane for each."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import redis

from sweeperd.delivery.engine import Engine
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.reader import ensure_group
from sweeperd.outbox import Outbox
from sweeperd.outbox.replays import ReplayNote, ReplayStore, ReplaySubscription, end_cancelled
from sweeperd.store import Shard

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningReplay:
    """One replay in this process."""

    note: ReplayNote
    subscription: ReplaySubscription
    lane: Lane


class Replays:
    """
    Works on each replay to these endpoints, and ends a replay when all events of the replay are delivered. `make` makes
    the lane of a replay. Call `refresh` every few seconds, from a single thread.
    """

    def __init__(
        self,
        shard: Shard,
        outbox: Outbox,
        engine: Engine,
        endpoints: Iterable[str],
        make: Callable[[ReplayNote], tuple[Lane, ReplaySubscription]],
    ) -> None:
        self._shard = shard
        self._outbox = outbox
        self._engine = engine
        self._store = ReplayStore(shard)
        self._endpoints = frozenset(endpoints)
        self._make = make
        self._running: dict[str, RunningReplay] = {}
        self._counts = Counter[str]()

    @property
    def lanes(self) -> list[Lane]:
        """The lanes of all replays that have not ended."""
        return [replay.lane for replay in list(self._running.values())]

    def adopt(self, before: "Replays", kept: Collection[str]) -> None:
        """Go on with the replays to these endpoints; the others begin anew in lanes with the new settings."""
        self._running = {name: replay for name, replay in before._running.items() if name in kept}
        self._engine.end(replay.lane for name, replay in before._running.items() if name not in kept)

    def groups(self) -> list[str]:
        """
        The consumer groups of the replays to these endpoints, those included that this process has not begun yet.
        Raises redis.RedisError.
        """
        return [note.group for note in self._notes().values()]

    def refresh(self) -> None:
        """Begin, stop and end replays as their notes say. Raises redis.RedisError."""
        notes = self._notes()
        for endpoint, replay in list(self._running.items()):
            note = notes.get(endpoint)
            if note is None or note.cancelled or note.made_at != replay.note.made_at:
                self._engine.end([replay.lane])
            self._remove_ended(endpoint, replay)
        for note in notes.values():
            if note.endpoint in self._running:
                continue
            if note.cancelled:
                end_cancelled(self._store, self._outbox, note)
            else:
                self._begin(note)
        self._end_finished(notes.values())

    def leave(self) -> None:
        """The process stops: leave the groups of the replays whose lanes have ended."""
        for endpoint, replay in list(self._running.items()):
            self._remove_ended(endpoint, replay)

    def finish(self) -> None:
        """End each replay whose events are all delivered. Raises redis.RedisError."""
        self._end_finished(self._notes().values())

    def counts(self) -> Counter[str]:
        """How many events were `delivered` and `dead_lettered` by the replays of this process."""
        return sum((lane.counts() for lane in self.lanes), Counter(self._counts))

    def left(self) -> int:
        """How many events of all replays are not delivered, about. Raises redis.RedisError."""
        notes = [note for note in self._notes().values() if not note.cancelled]
        groups = self._store.groups() if notes else {}
        return sum(self._store.progress(note, groups).left for note in notes)

    def _notes(self) -> dict[str, ReplayNote]:
        return {endpoint: note for endpoint, note in self._store.all().items() if endpoint in self._endpoints}

    def _begin(self, note: ReplayNote) -> None:
        lane, subscription = self._make(note)
        replay = RunningReplay(note, subscription, lane)
        ensure_group(replay.lane)
        if replay.lane.stop.is_set():
            return  # since the note was read, the replay has ended
        self._running[note.endpoint] = replay
        self._engine.add([replay.lane])
        log.info("a replay begins here", extra=self._log_fields(note))

    def _end_finished(self, notes: Iterable[ReplayNote]) -> None:
        running = [note for note in notes if not note.cancelled]
        groups = self._store.groups() if running else {}
        for note in running:
            replay, exhausted = self._running.get(note.endpoint), self._store.exhausted(note, groups)
            if replay is not None:
                # If a group is lost and made again, the group takes events anew.
                replay.subscription.exhausted = exhausted
            if exhausted and self._store.end(note):
                log.warning("a replay has ended", extra=self._log_fields(note))
                if replay is not None:
                    self._engine.end([replay.lane])

    def _remove_ended(self, endpoint: str, replay: RunningReplay) -> None:
        if not replay.lane.ended.is_set():
            return
        del self._running[endpoint]
        self._counts += replay.lane.counts()
        self._outbox.groups.forget(replay.note.group)
        try:
            self._outbox.groups.leave(replay.note.group)
        except redis.RedisError as error:  # Redis cannot be reached, or the group has gone
            fields = self._log_fields(replay.note) | {"error": str(error)}
            log.debug("the consumer is not removed from the group of a replay", extra=fields)

    def _log_fields(self, note: ReplayNote) -> dict[str, object]:
        return {"shard": self._shard.name, "endpoint": note.endpoint, "events": note.events}
