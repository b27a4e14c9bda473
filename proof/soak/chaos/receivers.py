"""The receivers of a chaos soak: each behaves in its own way, and counts what it has accepted."""

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from proof.soak.receiver import Listener

#: How a receiver treats a request: it accepts it, refuses it, or leaves it without an answer.
ACCEPT, REFUSE, HANG = 200, 503, 0
#: How long a request hangs, seconds: longer than the sender's time-out.
HANG_SECONDS = 3.0
#: The share of requests that the failing receiver refuses.
FAILING = 1 / 3
#: The hanging receiver hangs for the first part of each span, seconds.
HANGS_FOR, HANGS_EVERY = 8.0, 20.0

#: Gets seconds since the receivers' start, and returns ACCEPT, REFUSE or HANG.
Behaviour = Callable[[float], int]


def accepts(_at: float) -> int:
    """Accepts everything."""
    return ACCEPT


def failing(seed: int) -> Behaviour:
    """Refuses a third of all requests."""
    random, lock = Random(f"failing {seed}"), threading.Lock()

    def behave(_at: float) -> int:
        with lock:
            return REFUSE if random.random() < FAILING else ACCEPT

    return behave


def hanging(at: float) -> int:
    """Hangs for a while, accepts for a while."""
    return HANG if at % HANGS_EVERY < HANGS_FOR else ACCEPT


@dataclass
class Received:
    """What one endpoint's receivers have got."""

    requests: int = 0
    refused: int = 0
    hung: int = 0
    #: Requests with more than one event.
    batches: int = 0


class Inbox:
    """What all receivers of one endpoint have accepted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Received()
        #: Shard and place in its stream are not known here, so events go by id.
        self._accepted: Counter[str] = Counter()
        self._reservations: dict[str, set[str]] = defaultdict(set)

    def take(self, events: list[dict[str, Any]], answer: int) -> None:
        """A request has come, and was treated like this."""
        with self._lock:
            self._counts.requests += 1
            self._counts.refused += answer == REFUSE
            self._counts.hung += answer == HANG
            self._counts.batches += len(events) > 1
            if answer == ACCEPT:
                for event in events:
                    self._accepted[event["event_id"]] += 1
                    self._reservations[event["data"]["reservation_id"]].add(event["event_id"])

    @property
    def counts(self) -> Received:
        with self._lock:
            return Received(**vars(self._counts))

    @property
    def distinct(self) -> int:
        """How many events were accepted."""
        with self._lock:
            return len(self._accepted)

    @property
    def repeated(self) -> int:
        """How many events were accepted once more, each time counted."""
        with self._lock:
            return self._accepted.total() - len(self._accepted)

    def reservations(self) -> dict[str, set[str]]:
        """Reservation id -> the ids of its events."""
        with self._lock:
            return dict(self._reservations)


class Receiver(Listener):
    """One receiver of an endpoint; all of them share its inbox."""

    def __init__(self, inbox: Inbox, behave: Behaviour, began: float) -> None:
        """`began`: the start of the soak, seconds on the monotonic clock."""
        self.inbox = inbox
        self.requests = 0
        self._behave = behave
        self._began = began
        self._closing = threading.Event()
        super().__init__()

    def recover(self) -> None:
        """Accept everything from now on."""
        self._behave = accepts

    def answer(self, headers: Mapping[str, str], body: bytes) -> int:
        """Count it, and treat it as this receiver does."""
        sent = json.loads(body)
        status = self._behave(time.monotonic() - self._began)
        self.requests += 1
        self.inbox.take(sent if isinstance(sent, list) else [sent], status)
        if status == HANG:
            self._closing.wait(HANG_SECONDS)
        return status

    def close(self) -> None:
        """End; requests that hang are let go."""
        self._closing.set()
        super().close()
