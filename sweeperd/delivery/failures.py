"""Announces to other endpoints when deliveries to an endpoint fail, and when they work again."""

import logging

from sweeperd.config import RELAY
from sweeperd.delivery.lane import Lane
from sweeperd.outbox import Announcements, CircuitState, CircuitStateStore, GroupBacklog

log = logging.getLogger(__name__)

#: The age of an undelivered event from which on the endpoint fails, seconds.
FAILING_AFTER = 300.0


class FailureWatch:
    """
    Judges each endpoint on one shard by what all processes have published: the endpoint fails while an event waits
    and the circuit of every delivering process is open, or while the oldest undelivered event is older than
    FAILING_AFTER. Of all processes one announces each transition. Call `look` first: what another process announces
    after it, wins.
    """

    def __init__(self, circuits: CircuitStateStore, announcements: Announcements) -> None:
        self._circuits = circuits
        self._announcements = announcements
        self._seen: dict[str, CircuitState] = {}
        self._announced: dict[str, str] = {}

    def look(self) -> None:
        """Read the circuits, and what was announced. Raises redis.RedisError."""
        self._seen, self._announced = self._circuits.read_announced()

    def judge(self, lane: Lane, backlog: GroupBacklog, now_ms: int) -> None:
        """Announce a transition of this endpoint. `backlog`: read after `look`. Raises redis.RedisError."""
        if lane.endpoint == RELAY.name or lane.state.resting:
            return
        circuit, before = self._seen.get(lane.endpoint, CircuitState()), self._announced.get(lane.endpoint, "")
        # What was added before a new group counts from when the group was made, as for `max_age`.
        age = min(backlog.oldest_seconds, (now_ms - (lane.redelivery.counts_from_ms or 0)) / 1000)
        word, _, since = before.partition(" ")
        was_failing = word == "failing"
        # If nothing waits, another process may have delivered everything, and this circuit had nothing to try since.
        stuck = 0 < circuit.processes == circuit.open_on and (backlog.events > 0 or was_failing)
        failing = stuck or age > FAILING_AFTER
        if failing == was_failing:
            return
        data = {"failure": circuit.reason, "pending": backlog.events, "oldest_pending_seconds": round(age, 3)}
        if not failing:
            data["failing_seconds"] = max(0, now_ms - int(since)) / 1000 if since.isdigit() else 0
        event = self._announcements.turned(lane.endpoint, data, failing=failing)
        if self._circuits.announce(lane.endpoint, before, event, failing=failing):
            to = "failing" if failing else "recovered"
            lane.metrics.webhooks.transitions.labels(lane.endpoint, to).inc()
            if failing:
                log.warning("deliveries fail", extra=lane.log_fields | data)
            else:
                log.info("deliveries work again", extra=lane.log_fields | data)
