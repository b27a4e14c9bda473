"""A webhook receiver for the tests: a real HTTP server that records every request and gives a test's answers."""

import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def event_id(self) -> str:
        return self.headers.get("webhook-id") or self.headers["X-Cycles-Event-Id"]

    @property
    def event(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


@dataclass(frozen=True)
class Answer:
    """What to answer: after `delay` seconds, status and headers; then `body`, for ever where `endless`."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay: float = 0.0
    endless: bool = False
    #: Close the connection without a word.
    hang_up: bool = False


Behaviour = Callable[[Request, int], Answer]


class Receiver:
    """
    Listens on a free port of loopback while the `with` block lasts. `behaviour` gets the request and how many came for
    that event before, and says what to answer; it can be exchanged at any time, as `tls` can: the server's side of TLS.
    """

    def __init__(
        self, behaviour: Behaviour = lambda *_: Answer(), tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        """`host`: its name for senders; if the name is not that of loopback, the receiver listens on all addresses."""
        self.behaviour = behaviour
        self.tls = tls
        self._host = host
        self._requests: list[Request] = []
        self._seen: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._server = _Server((host if host == "127.0.0.1" else "", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        place = f"http://{self._host}" if self.tls is None else "https://localhost"
        return f"{place}:{self._server.server_port}/hook"

    @property
    def requests(self) -> list[Request]:
        with self._changed:
            return list(self._requests)

    @property
    def distinct(self) -> int:
        """How many events came at least once."""
        with self._changed:
            return len(self._seen)

    @property
    def seen(self) -> Counter[str]:
        """How many times each event came, those of requests that were cleared included."""
        with self._changed:
            return Counter(self._seen)

    @property
    def event_ids(self) -> set[str]:
        return {request.event_id for request in self.requests}

    def wait_for(self, condition: Callable[[list[Request]], bool], limit: float = 20.0) -> list[Request]:
        """Wait until the requests so far satisfy the condition; fails after `limit` seconds."""
        with self._changed:
            reached = self._changed.wait_for(lambda: condition(self._requests), limit)
            assert reached, f"after {limit} s there are {len(self._requests)} requests and the condition does not hold"
            return list(self._requests)

    def clear(self) -> None:
        with self._changed:
            self._requests.clear()

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler below has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                if receiver.tls is not None:
                    self.request = receiver.tls.wrap_socket(self.request, server_side=True)
                super().setup()

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:
                    self.close_connection = True
                    return  # the sender died over it
                request = Request(self.path, dict(self.headers), body, time.monotonic())
                with receiver._changed:
                    before = receiver._seen[request.event_id]
                    receiver._seen[request.event_id] += 1
                    receiver._requests.append(request)
                    receiver._changed.notify_all()
                answer = receiver.behaviour(request, before)
                receiver._closing.wait(answer.delay)
                if answer.hang_up:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.endless:
                    self.end_headers()
                    self.close_connection = True
                    try:
                        while not receiver._closing.is_set():
                            self.wfile.write(b"x" * 1024)
                            receiver._closing.wait(0.01)
                    except OSError:
                        return
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A sender that was killed is no error here."""


class EventCounter:
    """A behaviour that accepts everything, and counts how often each event came, alone or in a batch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.reservations: set[bytes] = set()

    def __call__(self, request: Request, _: int) -> Answer:
        body = json.loads(request.body)
        events = body if isinstance(body, list) else [body]
        with self._lock:
            self.counts.update(event["event_id"] for event in events)
            self.reservations.update(event["data"]["reservation_id"].encode() for event in events)
        return Answer()

    @property
    def doubled(self) -> int:
        """How many events came again."""
        return self.counts.total() - len(self.counts)
