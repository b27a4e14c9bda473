"""Delivers the events of one shard with a few threads, however many lanes it has."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from sweeperd.context import ShardContext
from sweeperd.delivery.in_flight import Room
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.pool import Pool
from sweeperd.delivery.reader import Reader
from sweeperd.delivery.settler import Settler
from sweeperd.delivery.watcher import Watcher
from sweeperd.outbox import Outbox
from sweeperd.progress import Progress, working

#: How long a thread may take beyond the time of a command of Redis, seconds.
STUCK = 60.0


class Engine:
    """
    The lanes of one shard, and the threads that work on all of them: a watcher, a reader, a settler, and the senders of
    an elastic pool. Threads may share it.
    """

    def __init__(self, context: ShardContext, outbox: Outbox, room: Room) -> None:
        shard, timing, name = context.shard, context.timing, context.shard.name
        self._shard = shard
        self._room = room
        self._stop = threading.Event()
        self._settler = Settler(shard, timing, max(1, room.concurrency // 2), self._settled)
        self._pool = Pool(name, room.concurrency, self._settler, timing)
        self._reader = Reader(context, outbox, self._pool, self._settler, room)
        self._lanes: list[Lane] = []
        #: By the work of the thread.
        self._progress: dict[str, Progress] = {}
        self._threads = [
            self._thread("settle", self._settler.run),
            self._thread("read", lambda: self._reader.run(self._stop)),
        ]
        if not context.until_idle:
            watcher = self._reader.watcher = Watcher(shard, timing, self._reader.news)
            self._threads.append(self._thread("watch", lambda: watcher.run(self._stop)))

    @property
    def lanes(self) -> list[Lane]:
        """The lanes that have not ended."""
        self._lanes = [lane for lane in self._lanes if not lane.ended.is_set()]
        return list(self._lanes)

    @property
    def started(self) -> bool:
        """Whether the reader was started."""
        return self._threads[1].ident is not None

    @property
    def complete(self) -> bool:
        """Whether every thread runs."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def goes_on(self) -> bool:
        """Whether every thread runs and moves, so that lanes can be added and ended."""
        return self.complete and not self._silent

    @property
    def stuck(self) -> list[str]:
        """The threads that hang, in words."""
        return self._silent + [f"send thread of {lane.endpoint}" for lane in self.lanes if lane.hanging]

    @property
    def _silent(self) -> list[str]:
        longest = STUCK + self._shard.patience
        return [f"{work} thread" for work, progress in self._progress.items() if progress.silent_for > longest]

    @property
    def halted(self) -> str:
        """Why Redis keeps all lanes from their work now; empty if it does not."""
        return self._reader.trouble

    def add(self, lanes: Sequence[Lane]) -> None:
        """Work on these lanes too."""
        self._lanes = [*self.lanes, *lanes]
        self._reader.touch(lanes)

    def end(self, lanes: Iterable[Lane]) -> None:
        """Take no more events for these lanes, and finish what is in hand; then each of them has `ended`."""
        ending = list(lanes)
        for lane in ending:
            lane.stop.set()
            if not self.started:
                lane.end()
        self._pool.tend()
        self._reader.touch(ending)

    def between_rounds(self, change: Callable[[], None]) -> None:
        """Call this while no operation of the reader is under way. The reader has to be started."""
        self._reader.change(change)

    def allow(self, concurrency: int) -> None:
        """From now on allow this many requests in flight."""
        self._room.concurrency = concurrency
        self._settler.together = max(1, concurrency // 2)
        self._pool.allow(concurrency)

    def start(self) -> None:
        """Start the threads. Raises RuntimeError if the system gives no more threads; `stop` ends the started ones."""
        for thread in self._threads:
            if thread.ident is None:
                try:
                    thread.start()
                except RuntimeError:
                    self.stop()
                    raise

    def stop(self) -> None:
        """Take no more events; `join` has to follow."""
        self._stop.set()
        for lane in self.lanes:
            lane.stop.set()
        self._pool.tend()
        self._reader.wake()
        if not self.started:
            self._settler.end()

    def join(self, deadline: float | None = None) -> bool:
        """Wait until `deadline` (monotonic) for all threads. Returns whether all have ended."""
        threads = [thread for thread in self._threads if thread.ident is not None]
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _settled(self, lanes: Sequence[Lane]) -> None:
        freed = self._reader.starved or any(
            lane.due_at < math.inf or (lane.awaits_room and lane.in_flight.worth_reading) for lane in lanes
        )
        self._reader.touch(lanes, wake=freed)

    def _thread(self, work: str, target: Callable[[], None]) -> threading.Thread:
        progress = self._progress[work] = Progress()

        def run() -> None:
            with working(progress):
                target()

        return threading.Thread(target=run, name=f"{work}-{self._shard.name}", daemon=True)
