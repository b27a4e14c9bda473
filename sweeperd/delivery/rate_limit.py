"""Keeps the requests of all processes to one endpoint below `max_rate`."""

import logging
import math
import threading

import redis
from prometheus_client import Counter

from sweeperd import progress
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import Outage
from sweeperd.store import Shard
from sweeperd.store.scripts import Call, Script

log = logging.getLogger(__name__)

#: After a pause the requests of this many seconds may come at once, one request at least.
BURST = 0.25
#: A process takes the tokens of this many seconds at once, or of a round trip if that takes longer.
AHEAD = 0.02
#: The shortest wait for a token, seconds: by then there may be several.
SHORTEST_WAIT = 0.005
#: Tokens that aren't used for this long, seconds, lapse.
LAPSE = 1.0


class RateLimit:
    """
    `max_rate` on one shard: how many requests a second the endpoint gets from all processes together. The bucket is in
    Redis, so all processes take tokens from the same bucket, by Redis's clock. Threads may share a limit.

    `per_second`: the shard's part of `max_rate`, because shards share no Redis. `waits` counts the requests that have
    to wait.
    """

    def __init__(
        self, shard: Shard, endpoint: str, per_second: float, waits: Counter, timing: Timing = DEFAULT_TIMING
    ) -> None:
        self.per_second = per_second
        #: How many requests a full bucket lets through at once.
        self.burst = max(1, math.floor(per_second * BURST))
        self._shard = shard
        self._endpoint = endpoint
        self._waits = waits
        self._recovery_pause = timing.recovery_pause
        self._clock = timing.clock
        self._script = Script("delivery/take_tokens")
        self._outage = Outage(log, "max_rate", {"shard": shard.name, "endpoint": endpoint})
        self._lock = threading.Lock()
        #: Why Redis gave no tokens when it was last asked.
        self.error: Exception | None = None
        self._tokens = 0
        #: Monotonic: when the tokens lapse, and when to ask for more.
        self._lapse_at = self._ask_at = 0.0
        self._round_trip = 0.0

    def take(self, *, first: bool = True) -> float:
        """
        Take a token, the right to send one request. Returns 0; or, if there is none, how long to wait before the next
        try, seconds. `first`: whether the request has not waited yet.
        """
        progress.allow(self._shard.patience)  # another sender may be asking Redis
        with self._lock:
            wait = self._try()
        if wait and first:
            self._waits.inc()
        return wait

    def _try(self) -> float:
        """Take a token; if there is none, return how long to wait before the next try, seconds."""
        now = self._clock()
        if now >= self._lapse_at:
            self._tokens = 0
        if not self._tokens:
            if now < self._ask_at:
                return self._ask_at - now
            wait = self._ask()
            self._ask_at = self._clock() + wait
            if not self._tokens:
                return wait
        self._tokens -= 1
        return 0.0

    def _ask(self) -> float:
        """Ask Redis for tokens. Returns when to ask again, in seconds from now. If Redis fails, send nothing."""
        wanted = max(1, min(self.burst, math.ceil(self.per_second * max(AHEAD, self._round_trip))))
        call = Call([self._shard.keys.pace], [self._endpoint, repr(1e6 / self.per_second), self.burst, wanted])
        began = self._clock()
        try:
            with self._shard.reaching():
                taken, micros = self._script.run(self._shard.client, call)
        except (RedisUnavailable, redis.RedisError) as error:
            self._outage.begin(error)
            self.error = error
            return self._recovery_pause
        self._outage.end()
        self.error = None
        self._round_trip = self._clock() - began
        self._tokens, self._lapse_at = int(taken), self._clock() + LAPSE
        return max(SHORTEST_WAIT, int(micros) / 1e6) if micros else 0.0
