"""Chooses the event that is sent as the probe of an open circuit."""

from sweeperd.delivery.outbox import PAGE, Outbox, OutboxEntry, Pending


class ProbeChooser:
    """
    Rotates the probes of one endpoint, so that an event which the receiver cannot take does not keep the circuit open:
    events that were never sent come first, then the one with the fewest deliveries within a page. Each choice takes
    the next page of parked events. The same event is not chosen twice in a row where there is another.
    """

    def __init__(self, endpoint: str, outbox: Outbox) -> None:
        self._endpoint = endpoint
        self._outbox = outbox
        self._after: bytes | None = None
        self._last: bytes | None = None

    def take(self) -> list[OutboxEntry]:
        """Take the next probe: one event, or none where nothing waits. Raises redis.RedisError."""
        chosen = self._choose()
        entries: list[OutboxEntry] = []
        if chosen is None or chosen.deliveries or chosen.id == self._last:
            entries = self._outbox.read(self._endpoint, 1)
        if chosen is not None and not entries:
            entries = self._outbox.claim(self._endpoint, [chosen], 0)
        self._last = entries[0].id if entries else None
        return entries

    def _choose(self) -> Pending | None:
        page = self._outbox.parked(self._endpoint, self._after)
        if not page and self._after is not None:
            page = self._outbox.parked(self._endpoint)
        self._after = page[-1].id if len(page) == PAGE else None
        return min(page, key=lambda pending: (pending.id == self._last, pending.deliveries), default=None)
