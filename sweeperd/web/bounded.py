"""Bounds the connections and threads of the HTTP server, so that no client can exhaust it."""

import contextlib
import errno
import io
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

log = logging.getLogger(__name__)

#: The most open connections. One more closes the oldest, so that slow clients cannot keep out a probe or a scrape.
CONNECTIONS = 32
#: The most threads; more than CONNECTIONS, because a thread ends a moment after its connection.
THREADS = 2 * CONNECTIONS
#: The read timeout of a client, seconds.
SILENCE = 10.0
#: Errors of `accept` without a free file descriptor, and the pause before the next try, seconds. The connection stays
#: in the queue, so the thread would spin without a pause.
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FILES_WAIT = 0.2
#: The errors of a system without IPv6.
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT)
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class BoundedServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves each connection in a thread, up to THREADS; a connection above the limit is closed."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type["QuietHandler"]) -> None:
        """Listens on `::` for both families. Raises OSError."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        #: Oldest first.
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.RLock()
        self._out_of_files = False
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """As HTTPServer, without the reverse DNS lookup of the address."""
        if self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """The next connection. Raises OSError."""
        try:
            request = super().get_request()
        except OSError as error:
            if error.errno in _NO_FILES:
                if not self._out_of_files:
                    log.warning("HTTP requests wait: %s; raise the limit of open files", error.strerror)
                self._out_of_files = True
                time.sleep(_FILES_WAIT)
            raise
        if self._out_of_files:
            log.info("HTTP requests are served again")
        self._out_of_files = False
        return request

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= THREADS:
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
        """Clients may disconnect at any time."""
        log.debug("a connection ended early", exc_info=True)


def bind(address: tuple[str, int], serve: Application, handler: type["QuietHandler"]) -> WSGIServer:
    """Bind a server to this address, or without a host to every address. Raises OSError."""
    host, port = address
    try:
        server = BoundedServer((host or "::", port), handler)
    except OSError as error:
        if host or error.errno not in _NO_IPV6:
            raise
        server = BoundedServer(("0.0.0.0", port), handler)  # noqa: S104
    server.set_app(serve)
    return server


class QuietHandler(WSGIRequestHandler):
    """Serves one connection without a log line, because probes come every few seconds."""

    timeout = SILENCE

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def get_stderr(self) -> Any:
        """The application logs its own errors; the rest is about clients that disconnected."""
        return io.StringIO()
