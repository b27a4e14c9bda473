"""
Connections that end in time, and send headers and body in one piece.

urllib3 limits each single wait on a socket, so a receiver that sends a byte now and then holds a request for ever. Here
one deadline ends the whole exchange: to connect, to send, and to read the response.
"""

import contextlib
import functools
import math
import os
import socket
import ssl
import threading
import time
from typing import Any

import urllib3.connection

from sweeperd.delivery.response import BoundedResponse, limit_wait, seconds_left

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


class _Response(BoundedResponse):
    """The response to the exchange that the current thread is busy with."""

    deadline = staticmethod(lambda: _exchange.deadline)


class _Bounded:
    """A connection whose exchange ends in time."""

    response_class = _Response
    sock: Any
    timeout: Any

    def connect(self) -> None:
        self.timeout = min(self.timeout, seconds_left(_exchange.deadline))
        super().connect()  # type: ignore[misc]
        kind: Any = type(self.sock)
        self.sock.__class__ = _quiet(kind)

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:
            self.timeout = self.sock.gettimeout()  # urllib3 would set it; `send` does where it has to
        super().request(*args, **kwargs)  # type: ignore[misc]

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        left = memoryview(data)
        try:
            while left:
                left = left[_send_some(self.sock, left, seconds_left(_exchange.deadline)) :]
        except (ssl.SSLEOFError, ConnectionError):
            _raise_alert(self.sock)
            raise


def _send_some(sock: Any, data: memoryview, seconds: float) -> int:
    """Send some of the data within so many seconds. Returns how many bytes. Raises OSError."""
    if isinstance(sock, socket.socket) and not isinstance(sock, ssl.SSLSocket):
        # A socket with a time-out asks the kernel first whether there is room, and nearly always there is.
        with contextlib.suppress(BlockingIOError):
            return os.write(sock.fileno(), data)
    limit_wait(sock, seconds)
    sent: int = sock.send(data)
    return sent


class _Quiet:
    """
    A socket that sets its time-out only where that changes: urllib3 sets it twice in an exchange, and each time is a
    system call, during which another thread takes the interpreter.
    """

    __slots__ = ()

    def settimeout(self, seconds: float | None) -> None:
        if seconds != self.gettimeout():  # type: ignore[attr-defined]
            super().settimeout(seconds)  # type: ignore[misc]


@functools.cache
def _quiet(kind: type) -> type:
    """This kind of socket (plain, TLS, to a SOCKS proxy) as a quiet one."""
    return type(f"Quiet{kind.__name__}", (_Quiet, kind), {"__slots__": ()})


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
