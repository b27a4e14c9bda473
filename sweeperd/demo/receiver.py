"""The demo's webhook receiver: accepts a webhook only if the `standardwebhooks` package verifies the signature."""

import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

#: The longest body read, bytes.
BODY_LIMIT = 64 * 1024


class Receiver:
    """Listens on a free port of loopback while the `with` block lasts. `heard` gets the id of each webhook."""

    def __init__(self, secret: str, heard: Callable[[str], None]) -> None:
        self._webhook = Webhook(secret)
        self._heard = heard
        self._lock = threading.Lock()
        #: Reservation -> verified webhooks of the reservation.
        self.verified: Counter[str] = Counter()
        #: Requests that did not verify.
        self.refused = 0
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, body: bytes, headers: dict[str, str]) -> int:
        """The status to answer with."""
        try:
            name: str = self._webhook.verify(body, headers)["data"]["reservation_id"]
        except (WebhookVerificationError, ValueError, KeyError, TypeError):
            with self._lock:
                self.refused += 1
            return 400
        with self._lock:
            self.verified[name] += 1
        self._heard(name)
        return 200

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler below has another self
        class WebhookHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length", 0)), BODY_LIMIT)
                self.send_response(receiver._take(self.rfile.read(length), dict(self.headers)))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing: the demo shows what matters."""

        return WebhookHandler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """If a connection breaks off, the sender tries again."""
