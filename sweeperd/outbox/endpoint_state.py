"""Stores whether an endpoint is paused or muted, for all replicas."""

from typing import Self, cast

from sweeperd.document import Note
from sweeperd.outbox.announcements import Announcements
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode


class EndpointState(Note):
    """Whether an endpoint is paused (by a 410 or an operator) or muted (by `Retry-After`). Times: ms, Redis's clock."""

    #: When and why the endpoint was paused. Nothing is sent until an operator resumes it.
    paused_at: int | None = None
    reason: str = ""
    #: When the mute ends.
    muted_until: int = 0
    #: The length of the mute, ms; 0 if unknown. If the clock is set back, the mute lasts this long from then on.
    mute_ms: int = 0

    @classmethod
    def mute(cls, now_ms: int, seconds: float) -> Self:
        """A mute for this many seconds from `now_ms` on."""
        mute_ms = int(seconds * 1000)
        return cls(muted_until=now_ms + mute_ms, mute_ms=mute_ms)

    @property
    def paused(self) -> bool:
        """Whether events wait until an operator resumes the endpoint."""
        return self.paused_at is not None

    def resting(self, now_ms: int) -> bool:
        return self.paused or self.muted_until > now_ms


class EndpointStateStore:
    """`sweeperd:endpoints`: the state of each endpoint that is paused or muted."""

    def __init__(self, shard: Shard, announcements: Announcements | None = None) -> None:
        self._set_state = Script("delivery/set_state")
        self._client = shard.client
        self._key = shard.keys.endpoints
        self._events = shard.keys.events
        self._announcements = announcements or Announcements(shard.clock)
        self._clock = shard.clock

    def read(self, endpoint: str) -> EndpointState:
        return self.parse(cast(bytes | None, self._client.hget(self._key, endpoint)))

    def read_all(self) -> dict[str, EndpointState]:
        """The states of all endpoints that are paused or muted, with one command. Raises redis.RedisError."""
        fields = cast(dict[bytes, bytes], self._client.hgetall(self._key))
        return {decode(endpoint): self.parse(entry) for endpoint, entry in fields.items()}

    def write(self, endpoint: str, state: EndpointState) -> EndpointState:
        """Write a state, even at maxmemory; set_state.lua says which one wins. Returns the state that holds now."""
        event = self._announcements.disabled(endpoint, state.reason) if state.paused else []
        call = Call([self._key, self._events], [endpoint, state.model_dump_json(), *event])
        return self.parse(self._set_state.run(self._client, call))

    def pause(self, endpoint: str, reason: str) -> EndpointState:
        """Stop sending on all replicas until `resume`. Raises redis.RedisError."""
        return self.write(endpoint, EndpointState(paused_at=self._clock.now_ms(), reason=reason))

    def mute(self, endpoint: str, seconds: float) -> EndpointState:
        """Stop sending on all replicas for this many seconds. Raises redis.RedisError."""
        return self.write(endpoint, EndpointState.mute(self._clock.now_ms(), seconds))

    def resume(self, endpoint: str) -> bool:
        """Send again on all replicas. False if the endpoint was neither paused nor muted. Raises redis.RedisError."""
        return bool(self._client.hdel(self._key, endpoint))

    def parse(self, entry: bytes | None) -> EndpointState:
        """The state by its entry; without an entry the endpoint is neither paused nor muted."""
        if entry is None:
            return EndpointState()
        # An unreadable entry counts as paused, because the receiver may be.
        return EndpointState.parse(entry) or EndpointState(
            paused_at=0, reason=f"the entry in {self._key.decode()} cannot be read"
        )
