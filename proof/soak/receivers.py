"""Receives webhooks: each receiver behaves in its own way, and counts what it has accepted."""

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

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


class Receiver:
    """One receiver of an endpoint, on a free port of loopback. All receivers of an endpoint share its inbox."""

    def __init__(self, inbox: Inbox, behave: Behaviour, began: float) -> None:
        """`began`: the start of the soak, seconds on the monotonic clock."""
        self.inbox = inbox
        self.requests = 0
        self._behave = behave
        self._began = began
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def recover(self) -> None:
        """Accept everything from now on."""
        self._behave = accepts

    def answer(self, body: bytes) -> int:
        """Count the request. Returns its status; HANG: hang up without an answer."""
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
        self._server.shutdown()
        self._server.server_close()

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler below has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                # The body is shorter if the sender has died meanwhile.
                status = receiver.answer(body) if len(body) == length else 0
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A killed sender is not an error here."""
