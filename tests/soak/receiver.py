"""A webhook receiver that lasts: it keeps each event id once and a count, and of the requests nothing."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class CountingReceiver:
    """Listens on a free port of loopback while the `with` block lasts, and answers each request with 200."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        self._requests = 0
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

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

    def __enter__(self) -> "CountingReceiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler below has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                if len(self.rfile.read(length)) < length:
                    self.close_connection = True
                    return  # the sender died over it
                with receiver._lock:
                    receiver._requests += 1
                    receiver._ids.add(self.headers["webhook-id"])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A sender that was killed is no error here."""
