"""
Connections that end in time, and send headers and body in one piece.

urllib3 limits each single wait on a socket, so a receiver that sends a byte now and then holds a request for ever. Here
one deadline ends the whole exchange: to connect, to send, and to read the response.
"""

import contextlib
import errno
import functools
import http.client
import io
import math
import socket
import ssl
import threading
import time
from typing import Any

import urllib3.connection

#: How much a response may send before its headers are complete, bytes; interim responses count too.
HEAD_LIMIT = 64 * 1024
#: How long to wait for the alert of a receiver that has closed the connection, seconds. It has been sent before.
ALERT_WAIT = 0.1


class _Exchange(threading.local):
    """
    The exchange that the current thread is busy with. urllib3 chooses the connection by itself, so the deadline cannot
    be an argument.
    """

    #: On the monotonic clock, seconds.
    deadline = math.inf


_exchange = _Exchange()


def begin_exchange(seconds: float) -> None:
    """The exchange that this thread starts now must end within so many seconds."""
    _exchange.deadline = time.monotonic() + seconds


def _seconds_left(deadline: float) -> float:
    """Raises TimeoutError where nothing is left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _BoundedReader(io.RawIOBase):
    """
    Reads from a socket until the deadline of the exchange, and not longer than the time-out that the socket has at the
    start. While `head_left` is a number, so many bytes may still come.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = min(_exchange.deadline, time.monotonic() + (sock.gettimeout() or math.inf))
        self.head_left: int | None = HEAD_LIMIT

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What http.client asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_seconds_left(self._deadline))
        count: int | None = self._raw.readinto(buffer)
        if self.head_left is not None:
            self.head_left -= count or 0
            if self.head_left < 0:
                raise OSError(errno.EMSGSIZE, "the response's headers are too long")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class BoundedResponse(http.client.HTTPResponse):
    """A response that ends in time, without the interim responses (1xx) before it."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        self._reader = _BoundedReader(sock)
        super().__init__(self._reader, *args, **kwargs)  # type: ignore[arg-type]

    def begin(self) -> None:
        super().begin()  # skips 100 by itself
        while 102 <= self.status < 200:
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin()
        self._reader.head_left = None


class _Bounded:
    """A connection whose exchange ends in time."""

    response_class = BoundedResponse
    sock: Any
    timeout: Any

    def connect(self) -> None:
        self.timeout = min(self.timeout, _seconds_left(_exchange.deadline))
        super().connect()  # type: ignore[misc]

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        left = memoryview(data)
        try:
            while left:
                self.sock.settimeout(_seconds_left(_exchange.deadline))
                left = left[self.sock.send(left) :]
        except (ssl.SSLEOFError, ConnectionError):
            _raise_alert(self.sock)
            raise


def _raise_alert(sock: Any) -> None:
    """
    Raise what a TLS receiver said before it closed the connection: ssl.SSLError. A client certificate is verified after
    the client's handshake has ended, so the first request finds a connection that is closed already.
    """
    if isinstance(sock, ssl.SSLSocket):
        with contextlib.suppress(ssl.SSLEOFError, ConnectionError, TimeoutError):
            sock.settimeout(ALERT_WAIT)
            sock.recv(1)


class _OnePiece:
    """
    A connection that sends headers and body together: one system call, one packet, one wake-up of the receiver.
    requests has checked the headers, so http.client's second check is left out: it costs as much as sending them.
    """

    #: While a request is being built: its headers, and the other pieces that http.client sends.
    _head: list[str] | None = None
    _pieces: list[bytes]

    def request(self, *args: Any, **kwargs: Any) -> None:
        self._head, self._pieces = [], []
        try:
            super().request(*args, **kwargs)  # type: ignore[misc]
            head = "".join(self._head).encode("latin-1")
        finally:
            self._head = None
        # The first piece is the request line and the empty line that ends the headers: see works_in_one_piece.
        first, *body = self._pieces
        self.send(b"".join([first[:-2], head, first[-2:], *body]))

    def putheader(self, header: str, *values: Any) -> None:
        if self._head is None:
            super().putheader(header, *values)  # type: ignore[misc]
        else:
            for value in values:
                self._head.append(f"{header}: {value.decode() if isinstance(value, bytes) else value}\r\n")

    def send(self, data: Any) -> None:
        if self._head is None:
            super().send(data)  # type: ignore[misc]
        else:
            self._pieces.append(data)


@functools.cache
def bounded(kind: type) -> type:
    """This kind of connection (plain, TLS, through a SOCKS proxy), bounded in time, and in one piece where it works."""
    if issubclass(kind, _Bounded):
        return kind
    bases = (_OnePiece, _Bounded, kind) if works_in_one_piece(urllib3.connection.HTTPConnection) else (_Bounded, kind)
    return type(f"Bounded{kind.__name__}", bases, {})


@functools.cache
def works_in_one_piece(kind: type) -> bool:
    """Whether _OnePiece sends the same bytes as this kind. That rests on how http.client builds a request."""
    pieces = type(f"OnePiece{kind.__name__}", (_OnePiece, kind), {})
    return _sent_by(pieces) == _sent_by(kind)


def _sent_by(kind: type) -> bytes:
    connection, recorder = kind("localhost"), _Recorder()
    connection.sock = recorder
    connection.request("POST", "/path?query", body=b"body", headers={"Content-Length": "4", "X-Header": "value"})
    return bytes(recorder.sent)


class _Recorder:
    """In place of a socket."""

    def __init__(self) -> None:
        self.sent = bytearray()

    def settimeout(self, _seconds: float | None) -> None:
        """Nothing ever waits."""

    def sendall(self, data: bytes) -> None:
        self.sent += data
