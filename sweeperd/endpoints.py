"""What all replicas must know of an endpoint: that it is paused, or that it asked for quiet."""

import threading

import pydantic
import redis

from sweeperd.shard import Shard, is_full


class EndpointState(pydantic.BaseModel):
    """Times are ms on Redis's clock."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    #: Since when nothing is sent until an operator resumes it, and why.
    paused_at: int | None = None
    reason: str = ""
    #: Until when nothing is sent, because the receiver said so.
    quiet_until: int = 0

    @property
    def paused(self) -> bool:
        """Nothing is sent until an operator resumes the endpoint; its events wait."""
        return self.paused_at is not None


class EndpointBoard:
    """`sweeperd:endpoints`. An endpoint that is not on it is open; to resume one is to take it off."""

    def __init__(self, shard: Shard) -> None:
        self._client = shard.client
        self._key = shard.keys.endpoints
        self._clock = shard.clock

    def read(self, endpoint: str) -> EndpointState:
        """Raises redis.RedisError."""
        entry = self._client.hget(self._key, endpoint)
        if not isinstance(entry, bytes):
            return EndpointState()
        try:
            return EndpointState.model_validate_json(entry)
        except ValueError:
            # Somebody wrote here by hand. To send to a receiver that must be left alone is worse than to wait.
            return EndpointState(paused_at=0, reason=f"{self._key.decode()} holds what cannot be read")

    def pause(self, endpoint: str, reason: str) -> EndpointState:
        """Stop sending to an endpoint, on all replicas. Raises redis.RedisError."""
        return self._write(endpoint, EndpointState(paused_at=self._clock.now_ms(), reason=reason))

    def quiet(self, endpoint: str, seconds: float) -> EndpointState:
        """Send nothing for so long, on all replicas. Raises redis.RedisError."""
        return self._write(endpoint, EndpointState(quiet_until=self._clock.now_ms() + int(seconds * 1000)))

    def _write(self, endpoint: str, state: EndpointState) -> EndpointState:
        try:
            self._client.hset(self._key, endpoint, state.model_dump_json())
        except redis.ResponseError as error:
            if not is_full(error):
                raise
            # A full Redis takes no note of it. The process that was told knows, the others will be told themselves.
        return state


class EndpointWatch:
    """
    What this process knows of one endpoint. Its reader looks at the board while its senders are told things by the
    receiver: what they are told is newer than what is being read at that moment.
    """

    def __init__(self, board: EndpointBoard, endpoint: str) -> None:
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

    def quiet(self, seconds: float) -> None:
        """As the board's; known here at once. Raises redis.RedisError."""
        self._take(self._board.quiet(self._endpoint, seconds))

    def _take(self, state: EndpointState) -> None:
        with self._lock:
            self._times_told += 1
            self.state = state
