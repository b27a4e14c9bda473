"""
What all replicas must know of an endpoint: that it is paused, by a 410 or by an operator, or muted by `Retry-After`.
Each delivering process reads it every few seconds, so it obeys an operator within as many.
"""

import threading

import pydantic
import redis

from sweeperd.delivery.circuit_breaker import CircuitBreaker
from sweeperd.store.errors import is_server_trouble
from sweeperd.store.process import process_name
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: How long a circuit's note counts as open after the time of its probe, ms: its process may have died.
PROBE_PATIENCE_MS = 60_000


class EndpointState(pydantic.BaseModel):
    """Times are ms on Redis's clock. Fields that a later version adds are ignored."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    #: Since when nothing is sent until an operator resumes it, and why.
    paused_at: int | None = None
    reason: str = ""
    #: Until when nothing is sent, because the receiver asked for it.
    muted_until: int = 0

    @property
    def paused(self) -> bool:
        """Nothing is sent until an operator resumes the endpoint; its events wait."""
        return self.paused_at is not None

    def resting(self, now_ms: int) -> bool:
        """Whether nothing is sent now: it is paused or muted."""
        return self.paused or self.muted_until > now_ms


class EndpointStateStore:
    """`sweeperd:endpoints`: the state of each endpoint for all replicas. No entry: it is neither paused nor muted."""

    def __init__(self, shard: Shard) -> None:
        self._set_state = Script("delivery/set_state")
        self._client = shard.client
        self._key = shard.keys.endpoints
        self._clock = shard.clock

    def read(self, endpoint: str) -> EndpointState:
        """Raises redis.RedisError."""
        entry = self._client.hget(self._key, endpoint)
        if not isinstance(entry, bytes):
            return EndpointState()
        return self._parse(entry)

    def write(self, endpoint: str, state: EndpointState) -> EndpointState:
        """
        Write a state for all replicas, at maxmemory too. A mute leaves an endpoint that is paused as it is. Returns the
        state that holds now. Raises redis.RedisError.
        """
        return self._parse(self._set_state.run(self._client, Call([self._key], [endpoint, state.model_dump_json()])))

    def pause(self, endpoint: str, reason: str) -> EndpointState:
        """Stop sending to an endpoint, on all replicas, until it is resumed. Raises redis.RedisError."""
        return self.write(endpoint, EndpointState(paused_at=self._clock.now_ms(), reason=reason))

    def mute(self, endpoint: str, seconds: float) -> EndpointState:
        """Send nothing for so many seconds, on all replicas. Raises redis.RedisError."""
        return self.write(endpoint, EndpointState(muted_until=self._clock.now_ms() + int(seconds * 1000)))

    def resume(self, endpoint: str) -> bool:
        """Send again, on all replicas. False where it was neither paused nor muted. Raises redis.RedisError."""
        return bool(self._client.hdel(self._key, endpoint))

    def _parse(self, entry: bytes) -> EndpointState:
        try:
            return EndpointState.model_validate_json(entry)
        except ValueError:
            # Written by hand, and wrongly. To send to a receiver that must be left alone is worse than to wait.
            return EndpointState(paused_at=0, reason=f"the entry in {self._key.decode()} cannot be read")


class EndpointStateCache:
    """
    The state of one endpoint in this process. The reader refreshes it from Redis; a sender pauses or mutes it by the
    response of the receiver, which holds here at once, and is kept until Redis has taken it.
    """

    def __init__(self, shard: Shard, endpoint: str) -> None:
        self.state = EndpointState()
        self._store = EndpointStateStore(shard)
        self._clock = shard.clock
        self._endpoint = endpoint
        self._lock = threading.Lock()
        #: A state that Redis has not taken yet.
        self._unsaved: EndpointState | None = None
        #: How often a sender has changed the state: a read that began before the change is out of date.
        self._changes = 0

    @property
    def resting(self) -> bool:
        """Whether nothing may be sent now."""
        return self.state.resting(self._clock.now_ms())

    def refresh(self) -> None:
        """Save what is not saved yet, then take the state that Redis has. Raises redis.RedisError."""
        self.save()
        changes = self._changes
        state = self._store.read(self._endpoint)
        with self._lock:
            if self._changes == changes and self._unsaved is None:
                self.state = state

    def pause(self, reason: str) -> None:
        """Send nothing until an operator resumes the endpoint. `save` has to follow."""
        self._change(EndpointState(paused_at=self._clock.now_ms(), reason=reason))

    def mute(self, seconds: float) -> None:
        """Send nothing for so many seconds. `save` has to follow."""
        self._change(EndpointState(muted_until=self._clock.now_ms() + int(seconds * 1000)))

    def save(self) -> None:
        """Write the last change to Redis, or keep it for the next time where Redis refuses it. Raises RedisError."""
        unsaved = self._unsaved
        if unsaved is None:
            return
        try:
            state = self._store.write(self._endpoint, unsaved)
        except redis.ResponseError as error:
            if is_server_trouble(error):
                raise
            return
        with self._lock:
            if self._unsaved is unsaved:
                self._unsaved, self.state = None, state

    def _change(self, state: EndpointState) -> None:
        with self._lock:
            self._changes += 1
            self.state = self._unsaved = state


class CircuitState(pydantic.BaseModel):
    """A circuit, as its process has published it. Times are ms on Redis's clock."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    #: When its next probe is due; 0: it is closed.
    probe_at: int = 0
    #: How many deliveries have failed in a row, and why the last one did.
    failures: int = 0
    reason: str = ""
    #: Host and process id.
    by: str = ""

    def open(self, now_ms: int) -> bool:
        """Whether it is open now. A note that is not renewed after its probe is of a process that has died."""
        return self.probe_at > 0 and now_ms < self.probe_at + PROBE_PATIENCE_MS


class CircuitStateStore:
    """
    `sweeperd:circuits`: the circuits, for operators. Each process has circuits of its own and obeys no entry of this
    hash. It writes one when a circuit opens, when a probe fails and when a circuit closes.
    """

    def __init__(self, shard: Shard) -> None:
        self._client = shard.client
        self._key = shard.keys.circuits
        self._clock = shard.clock

    def read(self, endpoint: str) -> CircuitState:
        """Raises redis.RedisError."""
        entry = self._client.hget(self._key, endpoint)
        try:
            return CircuitState.model_validate_json(entry) if isinstance(entry, bytes) else CircuitState()
        except ValueError:
            return CircuitState()

    def write(self, endpoint: str, circuit: CircuitBreaker) -> None:
        """Where Redis refuses it (full, no rights), only operators miss it. Raises redis.RedisError."""
        state = CircuitState()
        if circuit.open:
            probe_at = self._clock.now_ms() + int(circuit.wait * 1000)
            state = CircuitState(probe_at=probe_at, failures=circuit.failures, reason=circuit.reason, by=process_name())
        try:
            self._client.hset(self._key, endpoint, state.model_dump_json())
        except redis.ResponseError as error:
            if is_server_trouble(error):
                raise
