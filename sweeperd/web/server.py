"""The HTTP port: the page, metrics and health, read-only."""

import contextlib
import io
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from sweeperd.metrics import Metrics
from sweeperd.web.status_page import StatusPage

log = logging.getLogger(__name__)

#: Whether all is well, and what is to be told of it.
Check = Callable[[], tuple[bool, str]]

#: How many connections are open at a time. One more, and the one that has been open for longest is cut off: who is slow
#: on purpose keeps no probe and no scrape out.
CONNECTIONS = 32
#: How long a client may be silent, seconds.
SILENCE = 10.0
#: For so long an answer serves all who look at the page, seconds.
FRESH = 1.0

_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]
_Start = Callable[..., Any]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(self, *arguments: Any) -> None:
        #: The open connections, the oldest first.
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.RLock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= 2 * CONNECTIONS:
                # Those that were cut off have not ended yet.
                self.shutdown_request(request)
                return
            for connection in list(self._open)[: max(0, len(self._open) - CONNECTIONS + 1)]:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
            super().shutdown_request(request)

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """A client that went away, or was cut off, is no error."""
        log.debug("a connection ended early", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = SILENCE

    def log_message(self, format: str, *args: Any) -> None:
        """A probe every few seconds is not worth a line."""

    def get_stderr(self) -> Any:
        """What goes wrong in an answer is logged where it is made; the rest is a client that went away."""
        return io.StringIO()


class WebServer:
    """
    The page, `/status.json`, `/metrics`, `/healthz` and `/readyz` on one address. `report` gives what the page shows.
    Raises OSError where the address is taken.
    """

    def __init__(
        self,
        address: tuple[str, int],
        metrics: Metrics,
        health: Check,
        readiness: Check,
        report: Callable[[], dict[str, Any]],
    ) -> None:
        host, port = address
        self._metrics_app = make_wsgi_app(metrics.registry)
        self._checks = {"/healthz": health, "/readyz": readiness}
        self._document = StatusPage()
        self._report = report
        self._reported = b""
        self._reported_at = 0.0
        self._lock = threading.Lock()
        server_class = _Server6 if ":" in host else _Server
        self._server = make_server(host, port, self._serve, server_class=server_class, handler_class=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.server_port

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Serve, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(timeout=5)
        self._server.server_close()

    def _serve(self, environ: dict[str, Any], start_response: _Start) -> Iterable[bytes]:
        try:
            body = self._answer(environ, start_response)
        except Exception:
            log.exception("a request failed", extra={"path": environ.get("PATH_INFO", "")})
            body = _text(start_response, "500 Internal Server Error", "the log says why\n")
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else body

    def _answer(self, environ: dict[str, Any], start_response: _Start) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _text(start_response, "405 Method Not Allowed", "read-only\n", [("Allow", "GET, HEAD")])
        if path == "/":
            page = self._document
            return _send(start_response, "200 OK", "text/html; charset=utf-8", page.body, page.headers)
        if path == "/status.json":
            return _send(start_response, "200 OK", "application/json", self._json())
        if path == "/metrics":
            metrics: Iterable[bytes] = self._metrics_app(environ, start_response)
            return metrics
        if check := self._checks.get(path):
            well, text = check()
            return _text(start_response, "200 OK" if well else "503 Service Unavailable", text + "\n")
        return _text(start_response, "404 Not Found", "there is /, /status.json, /metrics, /healthz and /readyz\n")

    def _json(self) -> bytes:
        """Made once for all who look at the same moment."""
        with self._lock:
            if time.monotonic() - self._reported_at >= FRESH or not self._reported:
                self._reported, self._reported_at = json.dumps(self._report()).encode(), time.monotonic()
            return self._reported


def _text(start_response: _Start, status: str, text: str, headers: Sequence[tuple[str, str]] = ()) -> list[bytes]:
    return _send(start_response, status, "text/plain; charset=utf-8", text.encode(), headers)


def _send(
    start_response: _Start, status: str, kind: str, body: bytes, headers: Sequence[tuple[str, str]] = ()
) -> list[bytes]:
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *_HEADERS, *headers])
    return [body]
