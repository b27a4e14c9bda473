"""What is read of a response is what http.client reads; test_response_fuzz.py has the odd responses."""

import http.client
import io
import math
import socket
import time
from typing import Any

import pytest

from sweeperd.delivery.http import (
    HEAD_LIMIT,
    HEAD_LINES,
    TOLERANCE,
    BoundedReader,
    BoundedResponse,
    limit_wait,
    seconds_left,
)

HEADERS = [
    b"Content-Length: 4\r\n",
    b"content-length:4\r\n",
    b"Content-Length: 0\r\nConnection: close\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: Chunked\r\nContent-Length: 4\r\n",
    b"Connection: Keep-Alive\r\nKeep-Alive: timeout=5\r\nX-Odd:\r\nX-Two: a: b\r\nContent-Length: 4\r\n",
    b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Latin: caf\xe9\r\nContent-Length: 4\r\n",
    b"X-Spaces: \t a\r\nContent-Length: 4\r\n",
    b"X-Cache-Status: 7\r\nContent-Length: 4\r\n",
    b"Transfer-Encoding: chunked\r\nX-RateLimit-Reset: 60\r\n",
    b"Content-Length: 4\n",
    b"",
]
BODY = b"4\r\nbody\r\n0\r\n\r\n"


class Wire:
    """In place of a socket: these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BufferedReader(io.BytesIO(data))
        self.recv_into = self._data.readinto

    def makefile(self, *_: Any, **__: Any) -> io.BufferedIOBase:
        return self._data

    def gettimeout(self) -> float:
        return 5.0

    def settimeout(self, _seconds: float) -> None:
        """Nothing waits."""


def read(kind: type[http.client.HTTPResponse], data: bytes) -> dict[str, Any]:
    response = kind(Wire(data), method="POST")  # type: ignore[arg-type]
    response.begin()
    names = ("version", "status", "code", "reason", "chunked", "chunk_left", "length", "will_close")
    return {name: getattr(response, name) for name in names} | {
        "headers": response.headers.items(),
        "body": response.read(),
    }


@pytest.mark.parametrize("headers", HEADERS)
@pytest.mark.parametrize("line", [b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 204", b"HTTP/1.1 404 Not  Found "])
def test_a_response(line: bytes, headers: bytes) -> None:
    if b"204" in line and b"hunked" in headers:
        pytest.skip("http.client waits for chunks that cannot come")
    data = line + b"\r\n" + headers + b"\r\n" + BODY
    assert read(BoundedResponse, data) == read(http.client.HTTPResponse, data)


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\nX-Interim: 1\r\n\r\n"])
def test_an_interim_response_is_skipped(interim: bytes) -> None:
    data = interim * 2 + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"
    assert read(BoundedResponse, data) == read(http.client.HTTPResponse, data)


@pytest.mark.parametrize("data", [b"", b"nonsense\r\n\r\n", b"HTTP/3 200 OK\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n"])
def test_no_response(data: bytes) -> None:
    for kind in (BoundedResponse, http.client.HTTPResponse):
        with pytest.raises(http.client.HTTPException):
            read(kind, data)


def test_headers_that_http_client_reads_otherwise() -> None:
    """RFC 9112 has a carriage return alone, and the end of a line that goes on, replaced by a space."""
    data = b"HTTP/1.1 200 OK\r\nX-Long: one\r\n two\r\nX-Cr: a\rb: c\r\nno header\r\nContent-Length: 0\r\n\r\n"
    headers = [("X-Long", "one two"), ("X-Cr", "a b: c"), ("Content-Length", "0")]
    assert read(BoundedResponse, data)["headers"] == headers


def test_no_chunks_are_waited_for_where_no_body_can_follow() -> None:
    data = b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert read(BoundedResponse, data)["body"] == b""


def test_a_time_out_is_set_only_where_it_is_too_long_or_far_too_short() -> None:
    with socket.socket() as sock:
        for before, wanted, after in [
            (None, 3.0, 3.0),
            (3.0, 3.0 / (1 + TOLERANCE / 2), 3.0),
            (3.0, 2.0, 2.0),
            (3.0, 5.0, 3.0),
            (3.0, 10.0, 10.0),
        ]:
            sock.settimeout(before)
            limit_wait(sock, wanted)
            assert sock.gettimeout() == after


@pytest.mark.parametrize("too_many", [0, 1])
def test_headers_have_a_greatest_length(too_many: int) -> None:
    start, end = b"HTTP/1.1 200 OK\r\nX-Long: ", b"\r\nContent-Length: 0\r\n\r\n"
    data = start + b"x" * (HEAD_LIMIT - len(start + end) + too_many) + end
    response = BoundedResponse(Wire(data), method="POST")  # type: ignore[arg-type]
    if too_many:
        with pytest.raises(OSError, match="headers are above 64 KB"):
            response.begin()
    else:
        response.begin()
        assert response.status == 200


@pytest.mark.parametrize("too_many", [0, 1])
def test_headers_have_a_greatest_number(too_many: int) -> None:
    """And no more lines are waited for."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        theirs.sendall(b"HTTP/1.1 200 OK\r\n" + b"X:\r\n" * (HEAD_LINES - 1))
        theirs.sendall(b"X:\r\nX:\r\n" if too_many else b"\r\n")
        response = BoundedResponse(ours, method="POST")
        if too_many:
            with pytest.raises(OSError, match="headers are above 64 KB or 1,000 lines"):
                response.begin()
        else:
            response.begin()
            assert response.status == 200


@pytest.mark.parametrize("length", [b"2, 4", b"2\r\nContent-Length: 4", b"+2", b"\xb2", b"many", b""])
def test_what_is_no_length_is_none(length: bytes) -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\nbody"
    response = BoundedResponse(Wire(data), method="POST")  # type: ignore[arg-type]
    response.begin()
    assert (response.length, response.will_close) == (None, True)
    assert "Content-Length" not in response.headers


@pytest.mark.parametrize(
    ("headers", "closed"), [(b"Content-Length: 0", True), (b"Content-Length: 4", False), (b"X-Length: 0", False)]
)
def test_a_response_without_a_body_is_closed_once_its_headers_are_read(headers: bytes, closed: bool) -> None:
    """So its connection can take the next request, whether anybody reads the body or not."""
    data = b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n\r\n"
    response = BoundedResponse(Wire(data), method="POST")  # type: ignore[arg-type]
    response.begin()
    assert response.isclosed() == closed


@pytest.mark.parametrize("limit", [None, 3.0])
def test_a_wait_is_no_longer_than_the_sockets_own_time_out(limit: float | None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(limit)
        reader = BoundedReader(ours, time.monotonic() + 100)
        theirs.sendall(b"x")
        assert reader.readinto(bytearray(10)) == 1
        allowed = ours.gettimeout()
        assert allowed is not None
        assert 0 < allowed <= (limit or 100)
        reader.close()


def test_a_reader_that_is_closed_lets_go_of_its_socket() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        reader = BoundedReader(ours, math.inf)
        ours.close()  # Python closes the descriptor only with the last file object that was made from the socket
        reader.close()
        assert reader.closed
        theirs.setblocking(False)
        assert theirs.recv(1) == b"", "the other side sees the end"


def test_a_deadline_is_over_at_its_very_moment() -> None:
    """A wait of 0 seconds would not be a short one: it makes a socket non-blocking."""
    assert seconds_left(100.5, lambda: 100.0) == 0.5
    with pytest.raises(TimeoutError):
        seconds_left(100.0, lambda: 100.0)
