"""Receives the demo's webhooks, and verifies their signatures with the `standardwebhooks` package."""

import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

#: Bytes.
BODY_LIMIT = 64 * 1024


class Receiver:
    """Listens on a free loopback port during the `with` block, and calls `on_webhook` with each reservation's id."""

    def __init__(self, secret: str, on_webhook: Callable[[str], None]) -> None:
        self._webhook = Webhook(secret)
        self._on_webhook = on_webhook
        self._lock = threading.Lock()
        #: Reservation -> number of verified webhooks.
        self.verified: Counter[str] = Counter()
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
        try:
            name: str = self._webhook.verify(body, headers)["data"]["reservation_id"]
        except (WebhookVerificationError, ValueError, KeyError, TypeError):
            with self._lock:
                self.refused += 1
            return 400
        with self._lock:
            self.verified[name] += 1
        self._on_webhook(name)
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
                """The demo prints what matters."""

        return WebhookHandler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """The sender retries after a broken connection."""
