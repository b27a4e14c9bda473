"""`max_rate` of an endpoint: how many requests a second it gets from all processes together."""

import logging
import math
import threading
import time

import redis
from prometheus_client import Counter

from sweeperd.context import USUAL, Timing
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import Outage
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: After a pause so many seconds' worth of requests may come at once, one request at least.
BURST = 0.25
#: A process takes the tokens of so many seconds at once, or of one round trip where that is longer.
AHEAD = 0.02
#: The shortest wait for a token, seconds: by then there may be several.
SHORTEST_WAIT = 0.005
#: Tokens that were not used for so long are given up, seconds.
LAPSE = 1.0


class RateLimit:
    """
    The bucket of one endpoint on one shard. It is in Redis, so all processes take their tokens from the same one, by
    Redis's clock. Threads may share it. `waits` counts the requests that had to wait.

    Each shard has a Redis of its own, so each has its part of `max_rate`: `per_second`.
    """

    def __init__(self, shard: Shard, endpoint: str, per_second: float, waits: Counter, timing: Timing = USUAL) -> None:
        self.per_second = per_second
        #: How many requests a full bucket lets through at once.
        self.burst = max(1, math.floor(per_second * BURST))
        self._shard = shard
        self._endpoint = endpoint
        self._waits = waits
        self._recovery_pause = timing.recovery_pause
        self._script = Script("delivery/take_tokens")
        self._outage = Outage(log, "max_rate", {"shard": shard.name, "endpoint": endpoint})
        self._lock = threading.Lock()
        self._tokens = 0
        #: Monotonic: when the tokens lapse, and when it is time to ask for more.
        self._lapse_at = self._ask_at = 0.0
        self._round_trip = 0.0

    def take(self, stop: threading.Event) -> bool:
        """Wait for the right to send one request. False: the stop came first."""
        waited = False
        while not stop.is_set():
            with self._lock:
                wait = self._try()
            if not wait:
                return True
            if not waited:
                self._waits.inc()
                waited = True
            stop.wait(wait)
        return False

    def _try(self) -> float:
        """Take one token; else how long to wait before the next try, seconds."""
        now = time.monotonic()
        if now >= self._lapse_at:
            self._tokens = 0
        if not self._tokens:
            if now < self._ask_at:
                return self._ask_at - now
            wait = self._ask()
            if not self._tokens:
                self._ask_at = time.monotonic() + wait
                return wait
        self._tokens -= 1
        return 0.0

    def _ask(self) -> float:
        """Ask Redis for tokens. Without any: how long to wait, seconds. Where Redis fails nothing is sent."""
        wanted = max(1, min(self.burst, math.ceil(self.per_second * max(AHEAD, self._round_trip))))
        call = Call([self._shard.keys.pace], [self._endpoint, repr(1e6 / self.per_second), self.burst, wanted])
        began = time.monotonic()
        try:
            with self._shard.reaching():
                taken, micros = self._script.run(self._shard.client, call)
        except (RedisUnavailable, redis.RedisError) as error:
            self._outage.begin(error)
            return self._recovery_pause
        self._outage.end()
        self._round_trip = time.monotonic() - began
        self._tokens, self._lapse_at = int(taken), time.monotonic() + LAPSE
        return max(SHORTEST_WAIT, int(micros) / 1e6)
