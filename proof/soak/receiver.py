"""Webhook receivers that last: they keep each event id once and counts, and of the requests nothing."""

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Listener:
    """Listens on a free port of loopback until it is closed, and answers each POST with a status and nothing else."""

    def __init__(self) -> None:
        self._server = _Server(("127.0.0.1", 0), self._handler())
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def answer(self, headers: Mapping[str, str], body: bytes) -> int:
        """The status for this request; 0: hang up without an answer. Called in a thread of its connection."""
        raise NotImplementedError

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(listener) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler below has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                # A shorter body: the sender died over it.
                status = listener.answer(dict(self.headers), body) if len(body) == length else 0
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler


class CountingReceiver(Listener):
    """Accepts each request, while the `with` block lasts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        self._requests = 0
        super().__init__()

    @property
    def requests(self) -> int:
        """How many came, repeated ones included."""
        with self._lock:
            return self._requests

    @property
    def distinct(self) -> int:
        """How many event ids came."""
        with self._lock:
            return len(self._ids)

    def answer(self, headers: Mapping[str, str], body: bytes) -> int:
        """Count it."""
        with self._lock:
            self._requests += 1
            self._ids.add(headers["webhook-id"])
        return 200

    def __enter__(self) -> "CountingReceiver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A sender that was killed is no error here."""
