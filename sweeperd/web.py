"""The HTTP port: metrics and health, read-only."""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from sweeperd.metrics import Metrics

#: Whether all is well, and what is to be told of it.
Check = Callable[[], tuple[bool, str]]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """A probe every few seconds is not worth a line."""


class Web:
    """`/metrics`, `/healthz` and `/readyz` on one address. Raises OSError where the address is taken."""

    def __init__(self, address: tuple[str, int], metrics: Metrics, health: Check, readiness: Check) -> None:
        host, port = address
        self._metrics_app = make_wsgi_app(metrics.registry)
        self._checks = {"/healthz": health, "/readyz": readiness}
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

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", "read-only\n", [("Allow", "GET, HEAD")])
        if path == "/metrics":
            metrics: Iterable[bytes] = self._metrics_app(environ, start_response)
            return metrics
        if check := self._checks.get(path):
            well, text = check()
            return _answer(start_response, "200 OK" if well else "503 Service Unavailable", text + "\n")
        return _answer(start_response, "404 Not Found", "there is /metrics, /healthz and /readyz\n")


def _answer(
    start_response: Callable[..., Any], status: str, text: str, headers: Iterable[tuple[str, str]] = ()
) -> list[bytes]:
    body = text.encode()
    start_response(
        status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *headers]
    )
    return [body]
