"""An HTTP server whose number of connections, and of threads, is bounded."""

import contextlib
import io
import logging
import socket
import socketserver
import threading
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

log = logging.getLogger(__name__)

#: How many connections are open at a time. One more, and the oldest is cut off: a client that is slow on purpose keeps
#: no probe and no scrape out.
CONNECTIONS = 32
#: How many threads may serve at a time: more than CONNECTIONS, since one that was cut off takes a moment to end.
THREADS = 2 * CONNECTIONS
#: How long a client may be silent, seconds.
SILENCE = 10.0


class BoundedServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves each connection in a thread of its own, at most THREADS of them; a connection above that is closed."""

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
        """A client that went away, or was cut off, is no error."""
        log.debug("a connection ended early", exc_info=True)


class BoundedServer6(BoundedServer):
    """The same on an IPv6 address."""

    address_family = socket.AF_INET6


class QuietHandler(WSGIRequestHandler):
    """Serves one connection and writes no log line: a probe every few seconds is not worth one."""

    timeout = SILENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def get_stderr(self) -> Any:
        """A fault in an answer is logged by the application; all else is a client that went away."""
        return io.StringIO()
