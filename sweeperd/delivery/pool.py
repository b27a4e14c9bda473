"""Sends the batches of all lanes of a shard from an elastic pool of threads."""

import heapq
import itertools
import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from sweeperd import progress
from sweeperd.context import Timing
from sweeperd.delivery import cpu_policy
from sweeperd.delivery.batches import Batch
from sweeperd.delivery.lane import Lane, Work
from sweeperd.delivery.senders import Sent
from sweeperd.delivery.settler import Settler
from sweeperd.logs import LogThrottle
from sweeperd.outbox import OutboxEntry

log = logging.getLogger(__name__)

#: A request that takes longer than this many times the median does not keep other lanes from theirs. While the CPU is
#: busy all requests take longer, and more threads would not help. And the least and the greatest such time, seconds.
SLOW, LEAST_SLOW, MOST_SLOW = 4.0, 0.05, 0.25
#: The median follows the requests by steps of this factor, from the least to the greatest, seconds.
STEP, LEAST, MOST = 1.05, LEAST_SLOW / SLOW, MOST_SLOW
#: A thread ends when it has had no batch for this long, seconds.
IDLE = 5.0


class Pool:
    """
    The lanes with a batch that may be sent take turns, a batch each. `concurrency` requests are in flight, each lane's
    part of them while others wait. A slow request does not count for lanes below their part, and a lane with no other
    ones does not lessen the parts of others, so a receiver that hangs delays nobody. In all, at most twice
    `concurrency` requests are in flight, and one more of each lane. Each thread that takes a batch makes sure that
    another one takes the next.

    What a batch waits for (`max_rate`, a sweep, the back-off before a quick retry) holds no thread: the batch goes back
    to its lane, and the lane leaves the round until the batch is due.
    """

    def __init__(self, name: str, concurrency: int, settler: Settler, timing: Timing) -> None:
        self._name = name
        self._concurrency = concurrency
        self._settler = settler
        self._clock: Callable[[], float] = timing.clock
        #: The lanes with a batch that may be sent, in the order of their turns. Those that wait for no other lane,
        #: because they stop or have requests of their own, come first.
        self._round: deque[Lane] = deque()
        #: A heap of the lanes that wait: when to look again, a running number, the lane.
        self._later: list[tuple[float, int, Lane]] = []
        self._numbers = itertools.count()
        #: The requests in flight of all lanes that share `concurrency`, the oldest first.
        self._in_flight: dict[Work, None] = {}
        #: Their lanes.
        self._busy: set[Lane] = set()
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._started = 0
        self._idle = 0
        #: Whether a thread was woken or started that has not looked yet: it wakes the next one itself.
        self._waking = False
        #: How long a request takes, seconds.
        self._median = LEAST
        #: When the next idle thread looks again.
        self._alarm = math.inf
        self._closed = False
        self._changed = threading.Condition(threading.Lock())
        self._no_thread = LogThrottle()

    def put(
        self, lane: Lane, entries: Sequence[OutboxEntry], *, in_order: bool = False, probe: bool = False
    ) -> Sequence[OutboxEntry]:
        """Queue these events of the lane; see `BatchQueue.put`."""
        if not entries:
            return ()
        with self._changed:
            held = lane.queue.put(entries, in_order=in_order, probe=probe)
            now = self._clock()
            self._place(lane, now)
            self._pass_on(now)
        return held

    def allow(self, concurrency: int) -> None:
        """From now on allow this many requests in flight."""
        self._concurrency = concurrency

    def tend(self) -> None:
        """Call this after a lane has stopped, and every second or so: if there was no thread, try again."""
        with self._changed:
            self._place_stopped()
            self._waking = False  # the thread may have died
            if self._round or self._later:
                self._pass_on(self._clock())

    def close(self) -> None:
        """Every lane has stopped. The threads end with their requests, when nothing is queued."""
        self.tend()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def moving(self, lane: Lane) -> list[bytes]:
        """The ids of the events of the lane in hand that this process will settle."""
        with self._changed:
            now = self._clock()
            slow_part, quick_part = self._parts(now)
            return lane.moving(slow_part if lane.slow(now, self._slow_after) else quick_part)

    @property
    def held_up(self) -> set[Lane]:
        """The lanes whose requests in flight are all slow, and those that wait for `max_rate` or a quick retry."""
        with self._changed:
            waiting = {lane for _, _, lane in self._later if not lane.in_round and lane.queue and not lane.works}
            return self._slow(self._clock()) | waiting

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads that have not ended."""
        with self._changed:
            return [thread for thread in self._threads if thread.is_alive()]

    def run(self) -> None:
        """The work of each thread."""
        work = Work()
        with progress.working(work.progress):
            taken = self._next(work)
            while taken is not None:
                lane, batch = taken
                cpu_policy.follow(batch=lane.limits.events > 1)
                sender = lane.sender
                pause = sender.wait(batch)
                sent = Sent() if pause else sender.send(batch)
                self._settler.add(lane, sent.settlements)
                taken = self._next(work, (batch, pause, sent))

    def _next(self, work: Work, last: tuple[Batch, float, Sent] | None = None) -> tuple[Lane, Batch] | None:
        """Hand back what was taken before, and take the next batch; wait for one. None: the thread ends."""
        with self._changed:
            now = self._clock()
            if last is None:
                self._waking = False
            else:
                self._done(work, now, *last)
            until = now + IDLE
            while True:
                lane, soonest = self._find(now)
                if lane is not None:
                    return self._take(work, lane, now)
                if self._closed or now >= until:
                    return None
                self._rest(now, soonest, until)
                now = self._clock()

    def _done(self, work: Work, now: float, batch: Batch, pause: float, sent: Sent) -> None:
        lane = work.lane
        if lane is None:
            return
        median = self._median * STEP if now - work.since > self._median else self._median / STEP
        if LEAST <= median <= MOST:
            self._median = median
        lane.works.remove(work)
        self._in_flight.pop(work, None)
        if not lane.works:
            self._busy.discard(lane)
        work.lane, work.entries = None, ()
        if pause:
            lane.queue.put_back(batch, pause)
        if sent.retry is not None:
            lane.queue.back_off(sent.retry, sent.pause)
        if sent.batches:
            lane.queue.put_halves(sent.batches)
        self._place(lane, now)

    def _take(self, work: Work, lane: Lane, now: float) -> tuple[Lane, Batch]:
        """Take a batch of the first lane of the round, which then is the last."""
        batch = lane.queue.take(now)
        self._round.popleft()
        lane.in_round = False
        work.lane, work.entries, work.since = lane, batch.entries, now
        work.progress.step()
        lane.works.append(work)
        if lane.requests is None:
            self._in_flight[work] = None
            self._busy.add(lane)
        self._place(lane, now)
        if self._round or self._later:
            self._pass_on(now)
        return lane, batch

    def _find(self, now: float) -> tuple[Lane | None, float]:
        """
        The lane whose turn it is, which is then the first of the round; None if no batch may be taken. And when to look
        again if nothing changes.
        """
        soonest = self._place_due(now)
        if self._round and (self._round[0].requests is not None or self._round[0].stop.is_set()):
            return self._round[0], now
        full = len(self._in_flight) >= self._concurrency
        if not self._round or (full and (free_at := self._free_at(now)) > now):
            return None, min(soonest, free_at) if self._round else soonest
        if not full and len(self._round) == 1:
            return self._round[0], now
        slow, (slow_part, quick_part) = self._slow_after, self._parts(now)
        for place, lane in enumerate(self._round):
            if len(lane.works) < (slow_part if lane.slow(now, slow) else quick_part):
                self._round.rotate(-place)
                return lane, now
        # Each has its part, and no other lane can use what is left.
        return (None, soonest) if full else (self._round[0], now)

    def _free_at(self, now: float) -> float:
        """When enough requests are slow for another one to begin; in the past if one may begin now."""
        slow, most = self._slow_after, self._concurrency
        for place, work in enumerate(self._in_flight):
            if now - work.since < slow:  # and so are all after it
                last = len(self._in_flight) - most
                return next(itertools.islice(self._in_flight, last, None)).since + slow if place <= last else -math.inf
        return -math.inf

    @property
    def _slow_after(self) -> float:
        """After how many seconds a request is slow."""
        return min(MOST_SLOW, max(LEAST_SLOW, SLOW * self._median))

    def _parts(self, now: float) -> tuple[int, int]:
        """
        How many requests are the part of a lane whose requests are all slow, and of any other one: of the lanes in the
        round, and those with requests in flight. When requests that hang hold twice `concurrency`, besides one of each
        lane, each lane's part is a single one.
        """
        slow = len(self._slow(now))
        if len(self._in_flight) - slow >= 2 * self._concurrency:
            return 1, 1
        lanes = len(self._round) + sum(not lane.in_round for lane in self._busy)
        quick = lanes - slow
        return -(-self._concurrency // max(1, lanes)), -(-self._concurrency // max(1, quick))

    def _slow(self, now: float) -> set[Lane]:
        slow = self._slow_after
        return {lane for lane in self._busy if lane.slow(now, slow)}

    def _pass_on(self, now: float) -> None:
        """Wake or start a thread if a batch may be taken now, or if none would look again in time."""
        if self._waking:
            return
        lane, soonest = self._find(now)
        if lane is None and (soonest >= self._alarm or soonest == math.inf):
            return
        if self._idle:
            self._changed.notify()
            self._waking = True
        else:
            self._waking = self._start()

    def _rest(self, now: float, soonest: float, until: float) -> None:
        """Wait for a change. One idle thread at a time looks again at `soonest`."""
        alarmed = soonest < self._alarm
        if alarmed:
            self._alarm = soonest
        self._idle += 1
        try:
            self._changed.wait(max(0.0, (min(soonest, until) if alarmed else until) - now))
        finally:
            self._idle -= 1
            self._waking = False
            if alarmed and self._alarm == soonest:
                self._alarm = math.inf

    def _start(self) -> bool:
        self._started += 1
        thread = threading.Thread(target=self.run, name=f"send-{self._name}-{self._started}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if self._no_thread():
                log.warning("no more threads send", extra={"threads": len(self._threads), "error": str(error)})
            return False
        self._threads.add(thread)
        return True

    def _place(self, lane: Lane, now: float) -> None:
        """The lane has changed: it belongs into the round, or waits, or has nothing queued."""
        own, requests = lane.requests is not None, len(lane.works)
        at = lane.queue.ready_at(now, requests)
        if lane.stop.is_set() and lane.queue:  # what is queued is released without a request
            at, own = now, True
        elif lane.requests is not None and requests >= lane.requests:
            at = math.inf
        if at <= now:
            if own or not lane.in_round:
                self._join_round(lane, first=own)
            return
        if lane.in_round:
            lane.in_round = False
            self._round.remove(lane)
        if at < lane.looked_at:
            lane.looked_at = at
            heapq.heappush(self._later, (at, next(self._numbers), lane))

    def _place_due(self, now: float) -> float:
        """Let the lanes whose wait is over take turns again. Returns when the next wait is over."""
        while self._later and self._later[0][0] <= now:
            at, _, lane = heapq.heappop(self._later)
            if at == lane.looked_at:  # otherwise another entry came earlier
                lane.looked_at = math.inf
                self._place(lane, now)
        return self._later[0][0] if self._later else math.inf

    def _place_stopped(self) -> None:
        for lane in {*self._round, *(lane for _, _, lane in self._later)}:
            if lane.stop.is_set():
                self._place(lane, self._clock())

    def _join_round(self, lane: Lane, *, first: bool) -> None:
        if lane.in_round:
            self._round.remove(lane)
        if first:
            self._round.appendleft(lane)
        else:
            self._round.append(lane)
        lane.in_round = True
