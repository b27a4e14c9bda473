"""The HTTP server: metrics, health, readiness, the status page and the pages about entries, for known hosts."""

import contextlib
import errno
import io
import ipaddress
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from sweeperd.config import HttpSettings
from sweeperd.metrics import Metrics
from sweeperd.web.status_page import StatusPage

log = logging.getLogger(__name__)

#: The most open connections. If there is one more, the oldest is cut off: a deliberately slow client keeps no probe and
#: no scrape out.
CONNECTIONS = 32
#: The most threads that serve: more than CONNECTIONS, since a thread takes a moment to end when it is cut off.
THREADS = 2 * CONNECTIONS
#: How long a client may be silent, seconds.
SILENCE = 10.0
#: The errors of `accept` if no file is left for a connection, and how long the server then waits, seconds: the
#: connection stays in the queue, so without a wait the thread would spin.
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FILES_WAIT = 0.2


#: Returns True if all is well, and the text of the answer.
Check = Callable[[], tuple[bool, str]]

#: How long one `/status.json` document is reused for every open status page, seconds.
FRESH = 1.0
#: The document of a page about entries, by the name of the page and the parts of the question. Raises ValueError for a
#: question without a meaning, TimeoutError if another question takes too long.
Lookup = Callable[[str, Mapping[str, str]], dict[str, Any]]
#: The pages about entries. Each has a document of the same name with `.json`.
ENTRY_PAGES = ("search", "entry", "expired", "dead-letters", "quarantine")
#: The longest question, characters, and how many parts a question has at most.
LONGEST, PARTS = 8_192, 20
#: The path of the public keys of asymmetric signatures.
JWKS_PATH = "/.well-known/jwks.json"

_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]
#: Headers that a proxy adds. With such a header the client is no loopback client; no header makes a client one.
_PROXIED = ("HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_REAL_IP", "HTTP_X_CLIENT_IP", "HTTP_TRUE_CLIENT_IP")
_ELSEWHERE = (
    "these pages answer to clients on this host only, as by `kubectl port-forward` or an SSH tunnel, at localhost and "
    "not through a proxy; or set http.entries\n"
)
_Start = Callable[..., Any]
_Application = Callable[[dict[str, Any], _Start], Iterable[bytes]]
#: The errors of a system without IPv6.
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT)


class AllowedHosts:
    """
    `localhost`, every IP address, and the configured `names` (compared without case and without a final dot). A name
    without dots also stands for the Service of this name in any namespace of Kubernetes: NAME.NAMESPACE.svc and
    NAME.NAMESPACE.svc.cluster.local. NAME.NAMESPACE is not served, because it may be a public domain.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_canonical(name) for name in names}

    def serves(self, header: str | None) -> bool:
        """Whether a request with this `Host` header is answered. None: no header, so the client is no browser."""
        if header is None:
            return True
        host = _host(header)
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            return True
        service, _, place = host.partition(".")
        namespace, _, domain = place.partition(".")
        is_service = bool(namespace) and domain in ("svc", "svc.cluster.local")
        return host == "localhost" or host in self._names or (is_service and service in self._names)


def is_local(environ: Mapping[str, Any]) -> bool:
    """
    Whether a request comes from a loopback address, is sent to `localhost` or a loopback address (no header: the client
    is no browser), and has no sign of a proxy.
    """
    if any(name in _PROXIED or name.startswith(("HTTP_X_FORWARDED", "HTTP_X_ENVOY")) for name in environ):
        return False
    header = environ.get("HTTP_HOST")
    host = "localhost" if header is None else _host(header)
    return _is_loopback(environ.get("REMOTE_ADDR", "")) and (host == "localhost" or _is_loopback(host))


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    return found.is_loopback


def _host(header: str) -> str:
    """The host of a `Host` header, without the port."""
    name = header.strip()
    return _canonical(name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0])


def _canonical(host: str) -> str:
    return host.lower().removesuffix(".")


class BoundedServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves each connection in a separate thread, at most THREADS of them; a connection above the limit is closed."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(self, *arguments: Any) -> None:
        #: The open connections, the oldest first.
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.RLock()
        #: Whether the last connection was not accepted.
        self._waits = False
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """As HTTPServer does, but without asking a name server for the name of the address."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """The next connection. Raises OSError."""
        try:
            request = super().get_request()
        except OSError as error:
            if error.errno in _NO_FILES:
                if not self._waits:
                    log.warning("HTTP requests wait: %s; raise the limit of open files", error.strerror)
                self._waits = True
                time.sleep(_FILES_WAIT)
            raise
        if self._waits:
            log.info("HTTP requests are served again")
        self._waits = False
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
        """A client that went away, or was cut off, is no error."""
        log.debug("a connection ended early", exc_info=True)


class BoundedServer6(BoundedServer):
    """A `BoundedServer` on an IPv6 address."""

    address_family = socket.AF_INET6


class EveryAddress(BoundedServer6):
    """A `BoundedServer` on every address of both families."""

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _bound(address: tuple[str, int], serve: _Application, handler: type["QuietHandler"]) -> WSGIServer:
    """A server on this address; without a host on every address there is. Raises OSError."""
    host, port = address
    if host:
        server_class = BoundedServer6 if ":" in host else BoundedServer
        return make_server(host, port, serve, server_class=server_class, handler_class=handler)
    try:
        return make_server("::", port, serve, server_class=EveryAddress, handler_class=handler)
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
        return make_server("0.0.0.0", port, serve, server_class=BoundedServer, handler_class=handler)  # noqa: S104


class QuietHandler(WSGIRequestHandler):
    """Serves one connection and writes no log line: probes every few seconds are not worth a line."""

    timeout = SILENCE

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def get_stderr(self) -> Any:
        """A fault in an answer is logged by the application; all other text means: the client went away."""
        return io.StringIO()


class WebServer:
    """
    The status page, `/status.json`, the pages about entries, `/metrics`, `/healthz`, `/readyz` and the public keys.
    `report` gives the document of `/status.json`, `jwks` the document of JWKS_PATH, `lookup` the documents of
    ENTRY_PAGES. `http` names the address, which must be there, and who is served. Raises OSError if the address is
    taken.
    """

    #: Serves a connection.
    handler: type[QuietHandler] = QuietHandler

    def __init__(
        self,
        http: HttpSettings,
        metrics: Metrics,
        health: Check,
        readiness: Check,
        report: Callable[[], dict[str, Any]],
        jwks: Callable[[], dict[str, Any]] = lambda: {"keys": []},
        lookup: Lookup = lambda _page, _asked: {},
    ) -> None:
        #: How long one `/status.json` document is reused for every open status page, seconds.
        self.fresh = FRESH
        self._metrics_app = make_wsgi_app(metrics.registry)
        self._checks = {"/healthz": health, "/readyz": readiness}
        self._page = StatusPage()
        self._entry_page = StatusPage("entries.html", "entries.js")
        self.allow(http)
        self._report = report
        self._jwks = jwks
        self._lookup = lookup
        self._reported = b""
        self._reported_at = 0.0
        self._lock = threading.Lock()
        self._server = _bound(http.address or ("", 0), self._serve, self.handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def allow(self, http: HttpSettings) -> None:
        """From now on serve whom these settings name."""
        self._hosts = AllowedHosts(http.hosts)
        self._entries = http.entries

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
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
        if not self._hosts.serves(environ.get("HTTP_HOST")):
            return _text(start_response, "421 Misdirected Request", "ask by address, or add this name to http.hosts\n")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _text(start_response, "405 Method Not Allowed", "read-only\n", [("Allow", "GET, HEAD")])
        if path == "/":
            page = self._page
            return _send(start_response, "200 OK", "text/html; charset=utf-8", page.body, page.headers)
        if path == "/status.json":
            return _send(start_response, "200 OK", "application/json", self._json())
        if path == JWKS_PATH:
            return _send(start_response, "200 OK", "application/jwk-set+json", json.dumps(self._jwks()).encode())
        if path == "/metrics":
            # prometheus_client's application knows no HEAD; the body is dropped in `_serve`.
            metrics: Iterable[bytes] = self._metrics_app(environ | {"REQUEST_METHOD": "GET"}, start_response)
            return metrics
        if (page := path.removeprefix("/").removesuffix(".json")) in ENTRY_PAGES:
            return self._about_entries(page, path, environ, start_response)
        if check := self._checks.get(path):
            well, text = check()
            return _text(start_response, "200 OK" if well else "503 Service Unavailable", text + "\n")
        return _text(
            start_response, "404 Not Found", "there is /, /status.json, /search, /metrics, /healthz and /readyz\n"
        )

    def _about_entries(self, page: str, path: str, environ: dict[str, Any], start_response: _Start) -> Iterable[bytes]:
        if not (self._entries or is_local(environ)):
            return _text(start_response, "403 Forbidden", _ELSEWHERE)
        if not path.endswith(".json"):
            shown = self._entry_page
            return _send(start_response, "200 OK", "text/html; charset=utf-8", shown.body, shown.headers)
        # Another site can make a browser ask, and cannot read the answer. Such a question must cost nothing.
        if environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("same-origin", "none"):
            return _text(start_response, "403 Forbidden", "asked by another site\n")
        question = environ.get("QUERY_STRING", "")
        if len(question) > LONGEST:
            return _text(start_response, "414 URI Too Long", "the question is too long\n")
        try:
            parts = parse_qsl(question, keep_blank_values=True, errors="surrogateescape", max_num_fields=PARTS)
            document = self._lookup(page, dict(parts))
        except ValueError as error:
            return _text(start_response, "400 Bad Request", f"{error}\n")
        except TimeoutError as error:
            return _text(start_response, "503 Service Unavailable", f"{error}\n", [("Retry-After", "5")])
        return _send(start_response, "200 OK", "application/json", json.dumps(document).encode())

    def _json(self) -> bytes:
        """The document of the last `fresh` seconds: many open pages cost one report."""
        with self._lock:
            if time.monotonic() - self._reported_at >= self.fresh or not self._reported:
                self._reported, self._reported_at = json.dumps(self._report()).encode(), time.monotonic()
            return self._reported


def _text(start_response: _Start, status: str, text: str, headers: Sequence[tuple[str, str]] = ()) -> list[bytes]:
    return _send(start_response, status, "text/plain; charset=utf-8", text.encode(), headers)


def _send(
    start_response: _Start, status: str, kind: str, body: bytes, headers: Sequence[tuple[str, str]] = ()
) -> list[bytes]:
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *_HEADERS, *headers])
    return [body]
