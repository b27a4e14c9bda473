"""Publishes the circuit and the rate of this process for operators, and closes it where an operator asks for it."""

import time

from sweeperd.delivery.circuit_breaker import CircuitBreaker
from sweeperd.delivery.delivery_rate import DeliveryRate
from sweeperd.delivery.endpoint_state import NOTE_EVERY, CircuitStateStore
from sweeperd.store.shard import Shard


class CircuitPublisher:
    """The circuit of one endpoint in this process. Threads may share it. Its methods raise redis.RedisError."""

    def __init__(self, shard: Shard, endpoint: str, process: str, circuit: CircuitBreaker) -> None:
        self._store = CircuitStateStore(shard)
        self._endpoint = endpoint
        self._process = process
        self._circuit = circuit
        self._publish_at = 0.0
        self._published = False
        self._rate = DeliveryRate()
        self._sampled = 0
        #: The last time that was read at which an operator closed the circuit; "": nothing was read yet.
        self._closed_at: bytes | str | None = ""

    def publish(self) -> None:
        """Write the circuit as it is now."""
        self._published = True
        self._publish_at = time.monotonic() + NOTE_EVERY
        self._store.write(self._endpoint, self._process, self._circuit, self._rate)

    def publish_when_due(self, delivered: int) -> None:
        """
        Write it where the last time was NOTE_EVERY seconds ago: operators see that this process lives. `delivered`: how
        many events it has delivered so far; where it is more than at the last call, it is written at once.
        """
        now = time.monotonic()
        self._rate.add(now, delivered)
        changed, self._sampled = delivered != self._sampled, delivered
        if changed or now >= self._publish_at:
            self.publish()

    def operator_closes(self) -> bool:
        """Whether an operator has closed the circuit since the last call; then it is closed here as well."""
        closed_at, before = self._store.closed_at(self._endpoint), self._closed_at
        self._closed_at = closed_at
        if before in ("", closed_at):
            return False
        if self._circuit.close():
            self.publish()
        return True

    def remove(self) -> None:
        """This process has ended."""
        if self._published:
            self._store.remove(self._endpoint, self._process)
