"""Sends HTTP requests to one receiver, each within a deadline, and interprets the response or its absence."""

import contextlib
import email.utils
import errno
import functools
import http.client
import importlib.util
import io
import math
import os
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import requests
import requests.adapters
import requests.utils
import urllib3
import urllib3.connection
import urllib3.exceptions
import urllib3.util.ssl_

from sweeperd.config import EndpointSettings
from sweeperd.config.certificates import load_pair
from sweeperd.delivery.connect import OutOfTime, open_socket

#: By OpenSSL's number for the result of a verification.
_VERIFY_REASONS = {
    9: "the receiver's certificate is not valid yet",
    10: "the receiver's certificate has expired",
    **dict.fromkeys((18, 19, 20, 21), "the receiver's certificate is not signed by a CA that is trusted here"),
    **dict.fromkeys((62, 64), "the receiver's certificate is for another host name"),
}
#: By a piece of OpenSSL's name for the error.
_REASONS = {
    "ALERT_CERTIFICATE_REQUIRED": "the receiver demands a client certificate",
    "ALERT_UNKNOWN_CA": "the receiver does not trust the CA of the client certificate",
    "ALERT_CERTIFICATE_EXPIRED": "the receiver says that the client certificate has expired",
    "ALERT_BAD_CERTIFICATE": "the receiver refuses the client certificate",
    "ALERT_CERTIFICATE_REVOKED": "the receiver says that the client certificate is revoked",
    "ALERT_CERTIFICATE_UNKNOWN": "the receiver refuses the client certificate",
    "ALERT_UNSUPPORTED_CERTIFICATE": "the receiver refuses the client certificate",
    "ALERT_HANDSHAKE_FAILURE": "the receiver ends the handshake; it may demand a client certificate",
    "WRONG_VERSION_NUMBER": "the receiver speaks no TLS on this port",
    "HTTP_REQUEST": "the receiver speaks no TLS on this port",
}
#: 4xx about the endpoint, not about an event: rights, a wrong route, rights at a proxy, a time-out, gone, too many
#: requests.
_OF_THE_ENDPOINT = frozenset({401, 403, 404, 405, 407, 408, 410, 429})
#: The schemes of proxies that need another package.
_SOCKS = ("socks4", "socks4a", "socks5", "socks5h")
#: How much of the words of a proxy is masked, characters: a status line may have 64 KB.
PROXY_WORDS = 1024
#: http.client begins with these words, before the status, if a proxy refuses to connect.
_NO_TUNNEL = "Tunnel connection failed:"
#: How much of a response may come before the headers are complete, bytes and lines; interim responses count too.
HEAD_LIMIT, HEAD_LINES = 64 * 1024, 1000
#: How much of a response may come after the headers, bytes; sizes of chunks and headers after the last one count too.
BODY_LIMIT = 128 * 1024
#: How long the body may take after the headers, seconds: the result is known by then, and a sender waits.
BODY_WAIT = 1.0
#: The most digits of a Content-Length: Python reads no longer number.
LONGEST_LENGTH = 4300
#: The longest wait that a `Retry-After` asks for, seconds, and the longest text that is read as a date.
LONGEST_WAIT, LONGEST_DATE = 999_999_999.0, 100
#: What ends the headers: an empty line, or the end of the connection.
_END = (b"\r\n", b"\n", b"")
#: White space that may stand around a header's value.
OWS = " \t"
#: How much longer than the limit a wait may take, as a share of the limit, to set time-outs seldom: each is a system
#: call, and during a system call another thread takes the interpreter.
TOLERANCE = 0.05
#: How long a connection is used, seconds: its receiver's name may mean another address by then.
OLDEST = 60.0
#: Matches visible ASCII. If all header values match, as nearly always, requests would refuse none of them; to have
#: requests check each value takes 6 % of the time of a request.
_visible = re.compile("[!-~]*").fullmatch


def trusted_path() -> str:
    """File or directory of the CAs that are trusted if an endpoint names no `ca`."""
    named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    return named or requests.utils.DEFAULT_CA_BUNDLE_PATH


def tls_context(endpoint: EndpointSettings) -> ssl.SSLContext:
    """
    The context of all connections to this endpoint, so files are read once. Raises OSError, ssl.SSLError if a file
    cannot be loaded any more.
    """
    context = urllib3.util.ssl_.create_urllib3_context()
    trusted = endpoint.ca.path if endpoint.ca else Path(trusted_path())
    if trusted.is_dir():
        context.load_verify_locations(capath=trusted)
    else:
        context.load_verify_locations(cafile=trusted)
    if endpoint.client_cert is not None:
        load_pair(context, endpoint.client_cert, endpoint.client_key)
    return context


def tls_reason(error: ssl.SSLError) -> str:
    """Why a handshake failed, or why the receiver ended the connection, without the name of a file."""
    if isinstance(error, ssl.SSLEOFError):
        reason = "the receiver closed the connection"
    elif isinstance(error, ssl.SSLCertVerificationError):
        reason = _VERIFY_REASONS.get(error.verify_code, error.verify_message)
    else:
        name = error.reason or type(error).__name__
        reason = next((words for piece, words in _REASONS.items() if piece in name), name)
    return f"TLS: {reason}"


class UnusableProxy(requests.exceptions.InvalidProxyURL):
    """The proxy cannot be used. The text names the variable of the environment, and nothing of the proxy's URL."""


class Result(StrEnum):
    """How a request is counted."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of one request, or of the last of several attempts."""

    result: Result
    #: The status, or why there was no response. Never a URL, because a URL may hold a password.
    reason: str
    status: int | None = None
    #: The wait asked for by `Retry-After`, seconds.
    retry_after: float | None = None
    #: From the start of the request to the end of the response.
    seconds: float = 0.0
    #: The end of the request, ms on Redis's clock.
    at_ms: int = field(default=0, compare=False)
    #: Masks the kept part of the response's body. To mask each answer would let a receiver set the cost of the others.
    mask_answer: Callable[[], str] = field(default=lambda: "", compare=False, repr=False)
    #: The results of the earlier attempts.
    earlier: tuple["DeliveryResult", ...] = field(default=(), compare=False, repr=False)

    @property
    def answer(self) -> str:
        """The kept part of the response's body, without secrets. Each call masks it again."""
        return self.mask_answer()

    @property
    def delivered(self) -> bool:
        """The receiver has accepted the request."""
        return self.result is Result.DELIVERED

    @property
    def gone(self) -> bool:
        """The receiver is gone for good and wants no more requests."""
        return self.status == 410

    @property
    def content_refused(self) -> bool:
        """The receiver refuses the content of the request; a smaller batch may be accepted."""
        return self.status in (400, 413, 422)

    @property
    def refused(self) -> bool:
        """The response is about the events, not about the endpoint; so is any unknown 4xx."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in _OF_THE_ENDPOINT


def judge(
    status: int, headers: Mapping[str, str], now_ms: int, seconds: float, mask_answer: Callable[[], str]
) -> DeliveryResult:
    """The result of a response. `now_ms`: Redis's clock, for a `Retry-After` date if the response has no `Date`."""
    if 200 <= status < 300:
        return DeliveryResult(Result.DELIVERED, f"HTTP {status}", status, None, seconds, now_ms, mask_answer)
    result = Result.REJECTED if 300 <= status < 500 else Result.FAILED
    retry_after = _retry_after(headers, now_ms)
    return DeliveryResult(result, f"HTTP {status}", status, retry_after, seconds, now_ms, mask_answer)


def failed(error: BaseException, seconds: float, now_ms: int, mask: Callable[[str], str]) -> DeliveryResult:
    """The result of a request without a response. `mask` hides the secrets in the words of a proxy."""
    return DeliveryResult(Result.FAILED, _reason(error, mask), seconds=seconds, at_ms=now_ms)


def _retry_after(headers: Mapping[str, str], now_ms: int) -> float | None:
    """`Retry-After` in seconds: a number, or a date minus the response's own `Date` (RFC 9110, 10.2.3)."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    until = _http_date(text)
    if until is None:
        return None
    sent = _http_date(headers.get("Date", ""))
    return min(max(0.0, until - (now_ms / 1000 if sent is None else sent)), LONGEST_WAIT)


def _http_date(text: str) -> float | None:
    """Seconds since the epoch; None if the text isn't a date."""
    try:
        parsed = email.utils.parsedate_tz(text) if len(text) <= LONGEST_DATE else None
        return None if parsed is None else float(email.utils.mktime_tz(parsed))
    except (ValueError, OverflowError):
        return None


def _reason(error: BaseException, mask: Callable[[str], str]) -> str:
    """Why there was no response, without URL and credentials."""
    if isinstance(error, UnusableProxy):
        return str(error)
    if isinstance(error, requests.exceptions.InvalidSchema | requests.exceptions.InvalidURL):
        return "the URL cannot be used"
    proxy = "the proxy: " if isinstance(error, requests.exceptions.ProxyError) else ""
    return proxy + _innermost_reason(error, mask)


def _innermost_reason(error: BaseException, mask: Callable[[str], str]) -> str:
    chain = [*_chain(error)]
    for inner in chain:
        if isinstance(inner, OutOfTime):  # urllib3 wraps it in errors that count below
            return str(inner)
    for inner in chain:
        match inner:
            case ssl.SSLError():
                return tls_reason(inner)
            case socket.gaierror() | urllib3.exceptions.NameResolutionError() | urllib3.exceptions.LocationParseError():
                return "the host's name cannot be resolved"
            case urllib3.exceptions.NewConnectionError():
                continue  # urllib3 counts this error as a time-out; the inner error has the reason
            case urllib3.exceptions.ConnectTimeoutError() | requests.ConnectTimeout():
                return "no connection in time"
            case urllib3.exceptions.ReadTimeoutError() | requests.ReadTimeout() | TimeoutError():
                return "no answer in time"
            case OSError(strerror=str(words)) if words:
                return words
            case OSError(args=(str(words),)) if words.startswith(_NO_TUNNEL):
                return f"it answers{mask(words.removeprefix(_NO_TUNNEL)[:PROXY_WORDS])[:80]}"
    return "the connection broke" if isinstance(error, requests.ConnectionError) else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and the inner errors: requests and urllib3 keep them as reason, as first argument, or as cause."""
    current: BaseException | None = error
    while current is not None:
        yield current
        inner = getattr(current, "reason", None) or (current.args[0] if current.args else None)
        current = inner if isinstance(inner, BaseException) else current.__cause__ or current.__context__


def limit_wait(sock: Any, seconds: float) -> None:
    """Limit the next wait on this socket to these seconds, up to TOLERANCE more and down to half of them."""
    limit = sock.gettimeout()
    if limit is None or not seconds / 2 <= limit <= seconds * (1 + TOLERANCE):
        sock.settimeout(seconds)


class BoundedReader(io.RawIOBase):
    """
    Reads the head of a response from a socket, and after `begin_body` the body: until this deadline (monotonic), and
    not longer than the time-out of the socket at the start.
    """

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock = sock
        self._deadline = min(deadline, time.monotonic() + (sock.gettimeout() or math.inf))
        #: How many bytes may still come, and the text of the error if more come.
        self._left = HEAD_LIMIT
        self.too_long = f"the response's headers are above {HEAD_LIMIT // 1024} KB or {HEAD_LINES:,} lines"

    def begin_body(self) -> None:
        """The head is complete."""
        self._left = BODY_LIMIT
        self._deadline = min(self._deadline, time.monotonic() + BODY_WAIT)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """For http.client, instead of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        limit_wait(self._sock, seconds_left(self._deadline))
        count: int = self._sock.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise OSError(errno.EMSGSIZE, self.too_long)
        return count


def seconds_left(deadline: float, clock: Callable[[], float] = time.monotonic) -> float:
    """Seconds until this deadline by this clock. Raises TimeoutError if nothing is left."""
    left = deadline - clock()
    if left <= 0:
        raise TimeoutError
    return left


class BoundedResponse(http.client.HTTPResponse):
    """A response that ends in time, without interim responses (1xx). `deadline`: monotonic."""

    deadline: Callable[[], float] = staticmethod(lambda: math.inf)
    _method: str

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        self._reader = BoundedReader(sock, self.deadline())
        self._lines_left = HEAD_LINES
        super().__init__(self._reader, *args, **kwargs)  # type: ignore[arg-type]

    def begin(self) -> None:
        """Read up to the end of the headers. Raises http.client.HTTPException, OSError."""
        while True:
            version, status, reason = self._read_status()  # type: ignore[attr-defined]
            headers = read_headers(self._head_lines())
            if not 100 <= status < 200 or status == 101:
                break
            self._reader.too_long = (
                f"more than {HEAD_LIMIT // 1024} KB or {HEAD_LINES:,} lines of interim responses (1xx) came before the "
                "response"
            )
        self._reader.begin_body()
        if not version.startswith("HTTP/1.") and version != "HTTP/0.9":
            raise http.client.UnknownProtocol(version)
        self.version = 10 if version in ("HTTP/1.0", "HTTP/0.9") else 11
        self.code = self.status = status
        self.reason = reason.strip()
        self.headers = self.msg = headers
        codings, lengths = _framing(headers)
        coding = ",".join(codings).rpartition(",")[2]
        bodiless = status in (101, 204, 304) or self._method == "HEAD"
        self.chunked = not bodiless and coding.strip(OWS).lower() == "chunked"
        if self.chunked:
            self.chunk_left = None
        length = _length(lengths) if lengths else None
        if lengths and length is None:
            # No body of that length comes, and urllib3 would refuse the response or read in another way.
            del headers["Content-Length"]
        self.length = 0 if bodiless else None if self.chunked else length
        if self.length == 0 and not self.chunked:
            self._close_conn()  # type: ignore[attr-defined]  # nothing is left to be read
        ends = self.chunked or self.length is not None
        # After a 101 the connection speaks another protocol.
        self.will_close = self._check_close() or not ends or status == 101  # type: ignore[attr-defined]

    def _head_lines(self) -> list[bytes]:
        """The lines up to an empty line. Raises OSError."""
        lines, read, left = list[bytes](), self.fp.readline, self._lines_left
        while (line := read()) not in _END and left > len(lines):
            lines.append(line)
        self._lines_left = left - len(lines) - 1
        if self._lines_left < 0:
            raise OSError(errno.EMSGSIZE, self._reader.too_long)
        return lines


def _framing(headers: http.client.HTTPMessage) -> tuple[list[str], list[str]]:
    """The values of Transfer-Encoding and of Content-Length. `get_all` for each would take three times as long."""
    codings, lengths = list[str](), list[str]()
    for name, value in headers.raw_items():
        size = len(name)
        if size == 14 and name.lower() == "content-length":
            lengths.append(value)
        elif size == 17 and name.lower() == "transfer-encoding":
            codings.append(value)
    return codings, lengths


def _length(lengths: list[str]) -> int | None:
    """The length that all these values name; None if they differ or are no numbers. Raises OSError."""
    each = {length.strip(OWS) for line in lengths for length in line.split(",")}
    length = each.pop()
    if each or not length.isascii() or not length.isdigit():
        return None
    if len(length) > LONGEST_LENGTH:
        raise OSError(errno.EMSGSIZE, f"the response's Content-Length has {len(length)} digits")
    return int(length)


def read_headers(lines: Iterable[bytes]) -> http.client.HTTPMessage:
    """Skips lines that aren't headers, and white space around names and values."""
    message = http.client.HTTPMessage()
    found: list[tuple[str, str]] = []
    for line in lines:
        text = line.decode("latin-1").rstrip("\r\n")
        if "\r" in text:
            text = text.replace("\r", " ")
        name, colon, value = text.partition(":")
        value = value.strip(OWS)
        if colon and name and _visible(name):  # as nearly always
            found.append((name, value))
        elif text[:1] in (" ", "\t"):  # the last header goes on
            if found:
                name, before = found.pop()
                found.append((name, f"{before} {text.strip(OWS)}".strip(OWS)))
        elif colon and (name := name.rstrip(OWS)) and _visible(name):
            found.append((name, value))
    for name, value in found:
        message.set_raw(name, value)
    return message


class _Exchange(threading.local):
    """
    The exchange of the current thread. http.client makes the response of a proxy by itself, so the deadline cannot be
    an argument.
    """

    #: On the monotonic clock, seconds.
    deadline = math.inf


_exchange = _Exchange()


def begin_exchange(seconds: float) -> None:
    """Give the next exchange of this thread this many seconds."""
    _exchange.deadline = time.monotonic() + seconds


class _Response(BoundedResponse):
    """The response in the exchange of the current thread."""

    deadline = staticmethod(lambda: _exchange.deadline)


class _PooledResponse(_Response):
    """
    The response over a connection of a transport. `release_conn` gives the connection back, or closes a connection that
    has more to say.
    """

    def __init__(self, connection: Any, give_back: Callable[[Any], None]) -> None:
        self._connection, self._give_back, self._whole = connection, give_back, True
        super().__init__(connection.sock, method="POST")

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """Nothing is left to be read."""
        return self.fp is None

    def read1(self, n: int = -1) -> bytes:
        """Read a piece of the body. An error ends the body, and what comes after it is not the next response."""
        try:
            return super().read1(n)
        except BaseException:
            self.will_close = True
            raise

    def close(self) -> None:
        """Close the response. If the body was not read to the end, nothing else can come over the connection."""
        self._whole = self.length == 0 or self.isclosed()
        super().close()

    def release_conn(self) -> None:
        """Call this once, when the response is closed."""
        if self.will_close or not self._whole:
            self._connection.close()
        self._give_back(self._connection)


class _Target(http.client.HTTPConnection):
    """Renders the request line, `Host` and these headers, as http.client would send them over this connection."""

    def __init__(self, connection: Any, path: str, headers: Mapping[str, str]) -> None:
        super().__init__(connection._tunnel_host or connection.host, connection._tunnel_port or connection.port)
        self.default_port = connection.default_port
        self.lines = b""
        self.putrequest("POST", path, skip_accept_encoding=True)
        for header in headers.items():
            self.putheader(*header)
        self.endheaders()

    def send(self, data: Any) -> None:
        self.lines += data[:-2]  # without the empty line


class _Bounded:
    """
    A connection whose exchange ends in time. If a receiver sends a byte now and then, http.client waits for ever.
    """

    response_class = _Response
    sock: Any
    timeout: Any
    port: int
    socket_options: Any
    _dns_host: str
    #: Monotonic.
    opened_at = -math.inf
    _connect_by = math.inf
    #: To ask whether the receiver has closed the open connection, or sent what no request asked for. TLS decrypts a
    #: record at a time, so a part of it may have left the socket.
    _unread: Any
    _decrypted: Callable[[], int] = int

    def connect(self) -> None:
        now = time.monotonic()
        self._connect_by = min(_exchange.deadline, now + self.timeout)
        self.timeout = max(0.001, self._connect_by - now)
        try:
            super().connect()  # type: ignore[misc]
        except OutOfTime:
            raise
        except TimeoutError as error:
            raise OutOfTime("TLS: no handshake in time") from error
        self.opened_at = time.monotonic()
        self._unread = select.poll()
        self._unread.register(self.sock, select.POLLIN)
        self._decrypted = getattr(self.sock, "pending", int)

    def _new_conn(self) -> socket.socket:
        if hasattr(self, "_socks_options"):  # PySocks connects
            return super()._new_conn()  # type: ignore[misc, no-any-return]
        try:
            return open_socket(self._dns_host.strip("[]"), self.port, self.socket_options or (), self._connect_by)
        except UnicodeError as error:
            raise urllib3.exceptions.LocationParseError("the host's name") from error

    def _tunnel(self) -> None:
        deadline, _exchange.deadline = _exchange.deadline, self._connect_by
        try:
            super()._tunnel()  # type: ignore[misc]
        except TimeoutError as error:
            raise OutOfTime("the proxy: no answer in time") from error
        finally:
            _exchange.deadline = deadline
        self.sock.settimeout(seconds_left(self._connect_by))  # for the handshake with the receiver
        if isinstance(self.sock, ssl.SSLSocket):  # TLS within the TLS of the proxy: urllib3 waits for each piece anew
            for name in ("recv", "send"):
                setattr(self.sock, name, functools.partial(_in_time, self.sock, getattr(self.sock, name)))

    @property
    def is_connected(self) -> bool:
        """Whether to use the connection again."""
        open_ = self.sock is not None and time.monotonic() - self.opened_at < OLDEST
        return open_ and not self._unread.poll(0) and not self._decrypted()

    def send(self, data: Any) -> None:
        left = memoryview(data)
        try:
            while left:
                limit_wait(self.sock, seconds_left(_exchange.deadline))
                left = left[self.sock.send(left) :]
        except TimeoutError as error:
            raise OutOfTime("the request was not sent in time") from error
        except (ssl.SSLEOFError, ConnectionError):
            # A receiver may answer before it has read all, and close. With TLS the answer may be an alert: a client
            # certificate is verified after the client's handshake has ended. Both are read as the response.
            pass


def _in_time(sock: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    limit_wait(sock, seconds_left(_exchange.deadline))
    return call(*arguments)


@functools.cache
def bounded(kind: type) -> type:
    """This kind of connection (plain, TLS, through a SOCKS proxy), but bounded in time."""
    return kind if issubclass(kind, _Bounded) else type(f"Bounded{kind.__name__}", (_Bounded, kind), {})


@dataclass(slots=True)
class Request:
    """One request of a transport: all headers but `Host`."""

    headers: dict[str, str]
    body: bytes


class Transport:
    """
    POSTs to one endpoint over connections that stay open. `fixed`: the headers of each request. Threads may share a
    transport. Everything that is the same for each request is computed once.

    requests prepares what all requests have in common, and urllib3 makes the connections. To send, both would take more
    than half of the time of a request, and decide again what is decided already.

    A transport follows no redirect, keeps no cookie and reads no netrc. If the endpoint names no proxy or CAs, the
    environment at the start names them.

    `connect_timeout` limits resolving, connecting and the TLS handshake together, `read_timeout` the response, and both
    together the whole exchange, seconds.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        fixed: Mapping[str, str],
        connections: int,
        connect_timeout: float,
        read_timeout: float,
    ) -> None:
        self._endpoint, self._fixed, self._connections = endpoint, fixed, connections
        self._url = endpoint.url.get_secret_value()
        self._connect_timeout, self._read_timeout = connect_timeout, read_timeout
        self._time_limit = connect_timeout + read_timeout
        #: Makes connections.
        self._pool: Any = None
        #: The open connections that no request uses.
        self._idle: list[Any] = []
        self._closed = False
        self._pattern: requests.PreparedRequest | None = None
        self._headers: dict[str, str] = {}
        self._first_lines = b""

    def request(self, headers: dict[str, str], body: bytes) -> Request:
        """
        A request with these headers and the fixed headers. If URL or headers cannot be sent, raises
        requests.RequestException, ValueError.
        """
        if not self._headers:
            self._prepare()
        if not _visible("".join(headers.values())):
            for header in headers.items():
                requests.utils.check_header_validity(header)
        # A plain dict is faster than requests' dict that ignores case, and a request adds only new names.
        return Request(self._headers | headers | {"Content-Length": str(len(body))}, body)

    def _prepare(self) -> requests.PreparedRequest:
        """What requests would send, with user and password of the URL, but without cookies."""
        if self._pattern is None:
            pattern = requests.PreparedRequest()
            pattern.prepare_url(self._url, None)
            headers = requests.utils.default_headers()
            headers.update(self._fixed)
            pattern.prepare_headers(headers)
            url = urlsplit(self._url)
            if url.username or url.password:  # requests sends nothing of a user without a colon
                pattern.prepare_auth((unquote(url.username or ""), unquote(url.password or "")))
            self._headers, self._pattern = dict(pattern.headers), pattern
        return self._pattern

    def send(self, request: Request) -> Any:
        """
        Send a request and wait for the headers of the response. The caller reads the body, closes the response and
        releases the connection. Raises requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError.
        """
        begin_exchange(self._time_limit)
        connection, response = self._take(), None
        try:
            if connection.sock is None:
                self._open(connection)
            if not self._first_lines:
                self._first_lines = self._render(connection)
            lines = "".join([f"{name}: {value}\r\n" for name, value in request.headers.items()])
            connection.send(b"".join([self._first_lines, lines.encode("latin-1"), b"\r\n", request.body]))
            if connection.sock.gettimeout() != self._read_timeout:
                connection.sock.settimeout(self._read_timeout)
            begun = _PooledResponse(connection, self._give_back)
            begun.begin()
            response = begun
        except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError) as error:
            at_proxy = connection.proxy and (
                isinstance(error, ConnectionError) or not connection.has_connected_to_proxy
            )
            raise (requests.exceptions.ProxyError if at_proxy else requests.ConnectionError)(error) from error
        finally:
            if response is None:
                connection.close()
        return response

    def _take(self) -> Any:
        """A connection that no other request uses. If it is not open, its `sock` is None."""
        try:
            connection = self._idle.pop()
        except IndexError:
            if self._pool is None:
                self._pool = self._new_pool()
            return self._pool._new_conn()
        if not connection.is_connected:
            connection.close()
        return connection

    def _give_back(self, connection: Any) -> None:
        if len(self._idle) >= self._connections:
            connection.close()
        elif connection.sock is not None:
            self._idle.append(connection)
            if self._closed:  # asked last, so `close` finds the connection or is called again
                self.close()

    def _new_pool(self) -> Any:
        proxy, pattern, options = self.proxy, self._prepare(), dict[str, Any]()
        url = pattern.url or ""
        if url.startswith("https:"):
            options = {"ssl_context": tls_context(self._endpoint), "cert_reqs": "CERT_REQUIRED"}
        if proxy is None:
            pool: Any = urllib3.connection_from_url(url, **options)
        else:
            adapter = requests.adapters.HTTPAdapter()
            host, of_the_proxy = adapter.build_connection_pool_key_attributes(pattern, trusted_path())
            pool = adapter.proxy_manager_for(proxy.url).connection_from_host(
                **host, pool_kwargs=options or of_the_proxy
            )
        pool.ConnectionCls = bounded(pool.ConnectionCls)
        return pool

    def _open(self, connection: Any) -> None:
        connection.timeout = self._connect_timeout
        if self._pool.proxy is not None and self._url.lower().startswith("https:"):
            self._pool._prepare_proxy(connection)  # connects, and asks for a tunnel
        else:
            connection.connect()

    def _render(self, connection: Any) -> bytes:
        """The first lines of each request. A proxy that forwards gets the whole URL, and headers of its own."""
        pattern = self._prepare()
        if self._pool.proxy is not None and not connection._tunnel_host:
            return _Target(connection, requests.utils.urldefragauth(pattern.url or ""), self._pool.proxy_headers).lines
        return _Target(connection, pattern.path_url, {}).lines

    @property
    def proxy(self) -> urllib3.util.Url | None:
        """The proxy of each request: of the endpoint, or of the environment. Raises UnusableProxy."""
        named = self._endpoint.proxy
        return _parsed_proxy(named.get_secret_value() if named else _environment_proxy(self._url))

    def connect(self) -> Any:
        """An open connection, made as for a request, but nothing is sent. Raises as `send`; the caller closes it."""
        begin_exchange(self._time_limit)
        connection = self._take()
        try:
            self._open(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def tidy(self) -> None:
        """Close the idle connections that are too old, or that the receiver has closed. Call this every few seconds."""
        with contextlib.suppress(IndexError):
            for _ in range(len(self._idle)):
                connection = self._idle.pop(0)
                if not connection.is_connected:
                    connection.close()
                self._give_back(connection)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(IndexError):  # other threads may take the last one
            while True:
                self._idle.pop().close()


def _environment_proxy(url: str) -> str | None:
    """The proxy that the environment names for this URL. To have requests look for one takes much longer."""
    if "_proxy\n" not in "\n".join([*os.environ, ""]).lower():
        return None
    return requests.utils.select_proxy(url, requests.utils.get_environ_proxies(url, None))


def _parsed_proxy(proxy: str | None) -> urllib3.util.Url | None:
    """Raises UnusableProxy: requests would not tell a proxy's URL from the endpoint's."""
    if not proxy:
        return None
    variables = (name for name, value in os.environ.items() if value == proxy and name.lower().endswith("_proxy"))
    where = next((f"the proxy in ${name}" for name in variables), "the proxy")
    try:
        parsed = urllib3.util.parse_url(proxy if "://" in proxy else f"http://{proxy}")
    except urllib3.exceptions.LocationParseError:
        raise UnusableProxy(f"{where} cannot be used: it is not a URL with a host") from None
    if not parsed.host:
        raise UnusableProxy(f"{where} cannot be used: it is not a URL with a host")
    if parsed.scheme not in ("http", "https", *_SOCKS):
        raise UnusableProxy(f"{where} cannot be used: it must begin with http://, https:// or socks5://")
    if parsed.scheme in _SOCKS and importlib.util.find_spec("socks") is None:
        raise UnusableProxy(f"{where} cannot be used: it needs the package PySocks")
    return parsed
