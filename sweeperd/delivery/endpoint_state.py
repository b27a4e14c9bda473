"""
What all replicas must know of an endpoint: that it is paused, by a 410 or by an operator, or that it asked for quiet. A
process that delivers looks here every few seconds, so what an operator writes is obeyed within as many.
"""

import threading

import pydantic
import redis

from sweeperd.delivery.circuit_breaker import CircuitBreaker
from sweeperd.store.errors import is_full, is_server_trouble
from sweeperd.store.process import process_name
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: How long after its time a probe may be known to have failed, ms: what was told of the circuit holds for so long.
PROBE_PATIENCE_MS = 60_000


class EndpointState(pydantic.BaseModel):
    """Times are ms on Redis's clock."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    #: Since when nothing is sent until an operator resumes it, and why.
    paused_at: int | None = None
    reason: str = ""
    #: Until when nothing is sent, because the receiver said so.
    muted_until: int = 0

    @property
    def paused(self) -> bool:
        """Nothing is sent until an operator resumes the endpoint; its events wait."""
        return self.paused_at is not None


class EndpointStateStore:
    """
    `sweeperd:endpoints`: what replicas tell each other, and what an operator tells all of them. An endpoint that is not
    on it is open; to resume one is to take it off.
    """

    def __init__(self, shard: Shard) -> None:
        self._mute = Script("delivery/mute")
        self._client = shard.client
        self._key = shard.keys.endpoints
        self._clock = shard.clock

    def read(self, endpoint: str) -> EndpointState:
        """Raises redis.RedisError."""
        entry = self._client.hget(self._key, endpoint)
        if not isinstance(entry, bytes):
            return EndpointState()
        return self._parsed(entry)

    def pause(self, endpoint: str, reason: str) -> EndpointState:
        """
        Stop sending to an endpoint, on all replicas, until it is resumed. A full Redis takes no note of it: the process
        that was told knows, the others will be told themselves. Raises redis.RedisError.
        """
        state = EndpointState(paused_at=self._clock.now_ms(), reason=reason)
        try:
            self._client.hset(self._key, endpoint, state.model_dump_json())
        except redis.ResponseError as error:
            if not is_full(error):
                raise
        return state

    def mute(self, endpoint: str, seconds: float) -> EndpointState:
        """
        Send nothing for so long, on all replicas; one that is paused stays so. Returns what holds now. A full Redis
        takes no note of it, as with `pause`. Raises redis.RedisError.
        """
        state = EndpointState(muted_until=self._clock.now_ms() + int(seconds * 1000))
        try:
            note = self._mute.run(self._client, Call([self._key], [endpoint, state.model_dump_json()]))
        except redis.ResponseError as error:
            if not is_full(error):
                raise
            return state
        return self._parsed(note)

    def resume(self, endpoint: str) -> bool:
        """Send again, on all replicas. False where it was neither paused nor quiet. Raises redis.RedisError."""
        return bool(self._client.hdel(self._key, endpoint))

    def _parsed(self, note: bytes) -> EndpointState:
        try:
            return EndpointState.model_validate_json(note)
        except ValueError:
            # Somebody wrote here by hand. To send to a receiver that must be left alone is worse than to wait.
            return EndpointState(paused_at=0, reason=f"{self._key.decode()} holds what cannot be read")


class CircuitState(pydantic.BaseModel):
    """A circuit as the process whose it is told of it. Times are ms on Redis's clock."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    #: When its next probe is due; 0: it is closed.
    probe_at: int = 0
    #: How many hand-overs have failed in a row, and why the last one did.
    failures: int = 0
    reason: str = ""
    #: Host and process id.
    by: str = ""

    def open(self, now_ms: int) -> bool:
        """Whether it is open now. What was told by a process that has died since is not believed for ever."""
        return self.probe_at > 0 and now_ms < self.probe_at + PROBE_PATIENCE_MS


class CircuitStateStore:
    """
    `sweeperd:circuits`: what operators may know of circuits. Each process has circuits of its own and goes by nothing
    that stands here. It is told of when one opens, when a probe fails and when one closes.
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

    def tell(self, endpoint: str, circuit: CircuitBreaker, reason: str = "") -> None:
        """Where Redis refuses it (full, no rights), nothing but this is missing. Raises redis.RedisError."""
        state = CircuitState()
        if circuit.open:
            probe_at = self._clock.now_ms() + int(circuit.wait * 1000)
            state = CircuitState(probe_at=probe_at, failures=circuit.failures, reason=reason, by=process_name())
        try:
            self._client.hset(self._key, endpoint, state.model_dump_json())
        except redis.ResponseError as error:
            if is_server_trouble(error):
                raise


class EndpointStateCache:
    """
    What this process knows of one endpoint. Its reader looks at the board while its senders are told things by the
    receiver: what they are told is newer than what is being read at that moment.
    """

    def __init__(self, board: EndpointStateStore, endpoint: str) -> None:
        self.state = EndpointState()
        self._board = board
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._times_told = 0

    def look(self) -> None:
        """Take what the board says now. Raises redis.RedisError."""
        before = self._times_told
        state = self._board.read(self._endpoint)
        with self._lock:
            if self._times_told == before:
                self.state = state

    def pause(self, reason: str) -> None:
        """As the board's; known here at once. Raises redis.RedisError."""
        self._take(self._board.pause(self._endpoint, reason))

    def mute(self, seconds: float) -> None:
        """As the board's; known here at once. Raises redis.RedisError."""
        self._take(self._board.mute(self._endpoint, seconds))

    def _take(self, state: EndpointState) -> None:
        with self._lock:
            self._times_told += 1
            self.state = state
