"""Finds the pending events that are to be taken again, in bounded steps."""

from sweeperd.delivery.in_flight import InFlight
from sweeperd.delivery.outbox import PAGE, PARKED, TAKE_OVER_AFTER, Outbox, Pending
from sweeperd.delivery.redelivery import Redelivery

#: How many pages one step reads at most. A page takes the server a fraction of a millisecond.
PAGES_PER_STEP = 8


class DueScan:
    """
    Walks over the pending events of one endpoint again and again. Each step goes on where the last one stopped, so that
    a million parked events cost no more at a time than a few pages.
    """

    def __init__(self, endpoint: str, outbox: Outbox, redelivery: Redelivery, in_flight: InFlight) -> None:
        self._endpoint = endpoint
        self._outbox = outbox
        self._redelivery = redelivery
        self._in_flight = in_flight
        #: The last event that was passed; None before the first.
        self._after: bytes | None = None

    @property
    def at_start(self) -> bool:
        """Whether the last step came to the end, and the next one begins anew."""
        return self._after is None

    def step(self, count: int) -> list[Pending]:
        """The next due events, `count` at most: parked with their wait over, or in the hands of a dead process."""
        due: list[Pending] = []
        for _ in range(PAGES_PER_STEP):
            page = self._outbox.pending(self._endpoint, self._after)
            for pending in page:
                if len(due) == count:
                    return due
                self._after = pending.id
                if self._due(pending):
                    due.append(pending)
            if len(page) < PAGE:
                self._after = None
                break
        return due

    def _due(self, pending: Pending) -> bool:
        if pending.owner != PARKED:
            return pending.idle_ms >= TAKE_OVER_AFTER * 1000 and pending.id not in self._in_flight
        return pending.idle_ms >= self._redelivery.wait_ms(pending.deliveries)
