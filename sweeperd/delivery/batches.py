"""What is sent in one request."""

import queue
from dataclasses import dataclass

from sweeperd.delivery.outbox import OutboxEntry


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one request."""

    entries: tuple[OutboxEntry, ...]
    #: Whether its result closes an open circuit. A probe is sent once, without quick retries.
    probe: bool = False


#: From the reader to the sending threads; None ends one of them.
BatchQueue = queue.SimpleQueue[Batch | None]
