"""
Responses that end in time, whose headers are split here.

http.client has the headers read by the parser of e-mails, which takes as long as the rest of a short response.
"""

import errno
import http.client
import io
import math
import socket
import time
from collections.abc import Callable
from typing import Any

#: How much a response may send before its headers are complete, bytes; interim responses count too.
HEAD_LIMIT = 64 * 1024
#: The most digits of a Content-Length. Python reads no number of more.
LONGEST_LENGTH = 4300
#: How much longer than its limit a wait may take, as a share of the limit, so that a time-out is seldom set anew: that
#: is a system call, during which another thread takes the interpreter.
TOLERANCE = 0.05


def limit_wait(sock: Any, seconds: float) -> None:
    """The next wait on this socket may take so long, but for TOLERANCE, and at least half of it."""
    limit = sock.gettimeout()
    if limit is None or not seconds / 2 <= limit <= seconds * (1 + TOLERANCE):
        sock.settimeout(seconds)


class BoundedReader(io.RawIOBase):
    """
    Reads from a socket until this deadline (monotonic), and not longer than the time-out that the socket has at the
    start. While `head_left` is a number, so many bytes may still come.
    """

    def __init__(self, sock: Any, deadline: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = min(deadline, time.monotonic() + (sock.gettimeout() or math.inf))
        self.head_left: int | None = HEAD_LIMIT
        #: The error's text if more comes.
        self.too_long = f"the response's headers are above {HEAD_LIMIT // 1024} KB"

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What http.client asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        limit_wait(self._sock, seconds_left(self._deadline))
        count: int | None = self._raw.readinto(buffer)
        if self.head_left is not None:
            self.head_left -= count or 0
            if self.head_left < 0:
                raise OSError(errno.EMSGSIZE, self.too_long)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def seconds_left(deadline: float) -> float:
    """Until this deadline (monotonic). Raises TimeoutError where nothing is left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class BoundedResponse(http.client.HTTPResponse):
    """A response that ends in time, without the interim responses (1xx) before it. `deadline`: monotonic."""

    deadline: Callable[[], float] = staticmethod(lambda: math.inf)
    _method: str

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        self._reader = BoundedReader(sock, self.deadline())
        super().__init__(self._reader, *args, **kwargs)  # type: ignore[arg-type]

    def begin(self) -> None:
        """Read up to the end of the headers. Raises http.client.HTTPException, OSError."""
        version, status, reason = self._read_status()  # type: ignore[attr-defined]
        headers = read_headers(self.fp)
        while 100 <= status < 200 and status != 101:
            self._reader.too_long = (
                f"more than {HEAD_LIMIT // 1024} KB of interim responses (1xx) came before the response"
            )
            version, status, reason = self._read_status()  # type: ignore[attr-defined]
            headers = read_headers(self.fp)
        self._reader.head_left = None
        if not version.startswith(("HTTP/1.", "HTTP/0.9")):
            raise http.client.UnknownProtocol(version)
        self.version = 10 if version in ("HTTP/1.0", "HTTP/0.9") else 11
        self.code = self.status = status
        self.reason = reason.strip()
        self.headers = self.msg = headers
        self.chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        if self.chunked:
            self.chunk_left = None
        self.length = self._body_length(headers)
        if self.length == 0 and not self.chunked:
            self._close_conn()  # type: ignore[attr-defined]  # nothing is left to be read
        self.will_close = self._check_close() or not (self.chunked or self.length is not None)  # type: ignore[attr-defined]

    def _body_length(self, headers: http.client.HTTPMessage) -> int | None:
        """In bytes; None: the chunks say it, or the end of the connection. Raises OSError."""
        if self.status in (204, 304) or self._method == "HEAD":
            return 0
        length = headers.get("content-length", "")
        if self.chunked or not length.isascii() or not length.isdigit():
            return None
        if len(length) > LONGEST_LENGTH:
            raise OSError(errno.EMSGSIZE, f"the response's Content-Length has {len(length)} digits")
        return int(length)


def read_headers(lines: Any) -> http.client.HTTPMessage:
    """Read header lines up to the empty one. A line that is no header is passed over. Raises OSError."""
    found: list[tuple[str, str]] = []
    while (line := lines.readline()) not in (b"\r\n", b"\n", b""):
        text = line.decode("latin-1").rstrip("\r\n")
        name, colon, value = text.partition(":")
        if text[:1] in (" ", "\t") and found:  # the last header goes on
            name, before = found.pop()
            found.append((name, f"{before} {text.strip()}"))
        elif colon and name == name.strip():
            found.append((name, value.lstrip()))
    message = http.client.HTTPMessage()
    for name, value in found:
        message.set_raw(name, value)
    return message
