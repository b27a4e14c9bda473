"""Serves the daemon's HTTP port."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from prometheus_client import make_wsgi_app

from sweeperd.config import HttpSettings
from sweeperd.metrics import Metrics
from sweeperd.web.bounded import Application, QuietHandler, bind
from sweeperd.web.hosts import AllowedHosts, is_local
from sweeperd.web.status_page import HtmlPage

log = logging.getLogger(__name__)

#: Whether all is well, and the text of the response.
Check = Callable[[], tuple[bool, str]]

#: How long all open status pages share one `/status.json`, seconds.
FRESH = 1.0
#: (page, query) -> document. Raises ValueError for a bad query, TimeoutError while another query takes too long.
Lookup = Callable[[str, Mapping[str, str]], dict[str, Any]]
#: Each page has a document at the same path with `.json`.
ENTRY_PAGES = ("search", "entry", "expired", "dead-letters", "quarantine")
#: The most characters and parameters of a query.
MAX_QUERY, MAX_PARAMETERS = 8_192, 20
#: Where the public keys for signatures are served.
JWKS_PATH = "/.well-known/jwks.json"

_HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]
_NOT_LOCAL = (
    "these pages are served to clients on this host only: use `kubectl port-forward` or an SSH tunnel to localhost, "
    "without a proxy, or set http.entries\n"
)
_Start = Callable[..., Any]


class WebServer:
    """
    Serves status page, metrics, health and entry pages in a thread. `report` returns `/status.json`, `jwks` the keys at
    JWKS_PATH, `lookup` the documents of ENTRY_PAGES. Raises OSError if the address is in use.
    """

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
        self.fresh = FRESH
        self._metrics_app = make_wsgi_app(metrics.registry)
        self._checks = {"/healthz": health, "/readyz": readiness}
        self._page = HtmlPage()
        self._entry_page = HtmlPage("entries.html", "entries.js")
        self.allow(http)
        self._report = report
        self._jwks = jwks
        self._lookup = lookup
        self._reported = b""
        self._reported_at = 0.0
        self._lock = threading.Lock()
        application: Application = self._serve
        self._server = bind(http.address or ("", 0), application, self.handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def allow(self, http: HttpSettings) -> None:
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
            body = _text(start_response, "500 Internal Server Error", "see the log\n")
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else body

    def _answer(self, environ: dict[str, Any], start_response: _Start) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if not self._hosts.serves(environ.get("HTTP_HOST")):
            hint = "use the IP address, or add this name to http.hosts\n"
            return _text(start_response, "421 Misdirected Request", hint)
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _text(start_response, "405 Method Not Allowed", "read-only\n", [("Allow", "GET, HEAD")])
        if path == "/":
            return _html(start_response, self._page)
        if path == "/status.json":
            return _send(start_response, "200 OK", "application/json", self._json())
        if path == JWKS_PATH:
            return _send(start_response, "200 OK", "application/jwk-set+json", json.dumps(self._jwks()).encode())
        if path == "/metrics":
            # prometheus_client's application does not support HEAD; `_serve` drops the body.
            metrics: Iterable[bytes] = self._metrics_app(environ | {"REQUEST_METHOD": "GET"}, start_response)
            return metrics
        if (page := path.removeprefix("/").removesuffix(".json")) in ENTRY_PAGES:
            return self._serve_entries(page, path, environ, start_response)
        if check := self._checks.get(path):
            well, text = check()
            return _text(start_response, "200 OK" if well else "503 Service Unavailable", text + "\n")
        return _text(start_response, "404 Not Found", "try /, /status.json, /search, /metrics, /healthz or /readyz\n")

    def _serve_entries(self, page: str, path: str, environ: dict[str, Any], start_response: _Start) -> Iterable[bytes]:
        if not (self._entries or is_local(environ)):
            return _text(start_response, "403 Forbidden", _NOT_LOCAL)
        if not path.endswith(".json"):
            return _html(start_response, self._entry_page)
        # Another site can make a browser send a query, though it cannot read the response: refuse it before any work.
        if environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("same-origin", "none"):
            return _text(start_response, "403 Forbidden", "cross-site request\n")
        query = environ.get("QUERY_STRING", "")
        if len(query) > MAX_QUERY:
            return _text(start_response, "414 URI Too Long", "the query is too long\n")
        try:
            found = parse_qsl(query, keep_blank_values=True, errors="surrogateescape", max_num_fields=MAX_PARAMETERS)
            document = self._lookup(page, dict(found))
        except ValueError as error:
            return _text(start_response, "400 Bad Request", f"{error}\n")
        except TimeoutError as error:
            return _text(start_response, "503 Service Unavailable", f"{error}\n", [("Retry-After", "5")])
        return _send(start_response, "200 OK", "application/json", json.dumps(document).encode())

    def _json(self) -> bytes:
        with self._lock:
            if time.monotonic() - self._reported_at >= self.fresh or not self._reported:
                self._reported, self._reported_at = json.dumps(self._report()).encode(), time.monotonic()
            return self._reported


def _html(start_response: _Start, page: HtmlPage) -> list[bytes]:
    return _send(start_response, "200 OK", "text/html; charset=utf-8", page.body, page.headers)


def _text(start_response: _Start, status: str, text: str, headers: Sequence[tuple[str, str]] = ()) -> list[bytes]:
    return _send(start_response, status, "text/plain; charset=utf-8", text.encode(), headers)


def _send(
    start_response: _Start, status: str, kind: str, body: bytes, headers: Sequence[tuple[str, str]] = ()
) -> list[bytes]:
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *_HEADERS, *headers])
    return [body]
