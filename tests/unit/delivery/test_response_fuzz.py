"""
Heads of responses that no library would write. Both readers of deliveries read the same of them; and of a plain head
what `requests` reads. test_response.py and test_connection.py have those that `requests` reads otherwise.

SWEEPERD_TEST_RESPONSE_HEADS sets how many heads are tried; the first ones are the same in each run.
"""

import http.client
import io
import os
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import requests
import requests.adapters
import urllib3
import urllib3.connection
import urllib3.exceptions

from sweeperd.delivery.http import BoundedResponse, begin_exchange, bounded, judge
from sweeperd.delivery.webhook import _read_some

HEADS = int(os.environ.get("SWEEPERD_TEST_RESPONSE_HEADS", "1000"))


class Wire(io.RawIOBase):
    """Instead of a socket: these bytes, and then nothing, as from a receiver that keeps its connection open."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        #: A reader wants more, so a delivery would wait until its time is over.
        self.waited = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if count := self._data.readinto(buffer):
            return count
        self.waited = True
        raise TimeoutError

    recv_into = readinto

    def makefile(self, _mode: str, buffering: int = -1) -> Any:
        return io.BufferedReader(self) if buffering else self

    def gettimeout(self) -> float:
        return 5.0

    def settimeout(self, _seconds: float) -> None:
        """Nothing waits."""

    def sendall(self, data: bytes) -> None:
        """The request does not matter."""

    def send(self, data: bytes) -> int:
        return len(data)

    def close(self) -> None:
        """The test reads `waited` later."""


class Read(NamedTuple):
    """What a reader makes of a response."""

    #: None: nothing that could be read.
    status: int | None
    headers: dict[str, str]
    #: None: the reader waits for more.
    body: bytes | None


NOTHING = Read(None, {}, None)


def response_over(kind: Callable[..., Any], wire: Wire) -> Any:
    connection = kind("receiver.example", timeout=5.0)
    connection.sock = wire
    connection.request("POST", "/", b"body", preload_content=False)
    return connection.getresponse()


def read_by_requests(data: bytes) -> Read:
    wire = Wire(data)
    request = requests.Request("POST", "http://receiver.example/").prepare()
    try:
        raw = response_over(urllib3.connection.HTTPConnection, wire)
        response: Any = requests.adapters.HTTPAdapter().build_response(request, raw)
    except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError):
        return NOTHING
    return Read(response.status_code, _told(response.headers), None if wire.waited else response.content)


def read_first(data: bytes) -> Read:
    """As the first response over a connection is read: by urllib3, with the reader of deliveries."""
    wire = Wire(data)
    begin_exchange(5.0)
    try:
        response = response_over(bounded(urllib3.connection.HTTPConnection), wire)
    except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError):
        return NOTHING
    return _read(response, response.headers, wire)


def read_later(data: bytes) -> Read:
    """As a later response over the same connection is read: by the reader of deliveries alone."""
    wire = Wire(data)
    response: Any = BoundedResponse(wire, method="POST")  # type: ignore[arg-type]
    try:
        response.begin()
    except (OSError, http.client.HTTPException):
        return NOTHING
    response.release_conn = lambda: None
    return _read(response, urllib3.HTTPHeaderDict(response.headers.items()), wire)


def _read(response: Any, headers: Any, wire: Wire) -> Read:
    judged = judge(response.status, response.headers, 1_700_000_000_000, 0.0, str)
    assert judged.retry_after is None or 0 <= judged.retry_after < 1e9
    body = _read_some(response)
    return Read(response.status, _told(headers), None if wire.waited else body)


def _told(headers: Any) -> dict[str, str]:
    """The headers, apart from those that say where the body ends."""
    names = {name.lower() for name in headers} - {"content-length", "transfer-encoding"}
    return {name: headers[name] for name in names}


# ---- the heads

CASES = ["Content-Length", "content-length", "CONTENT-LENGTH"]
LENGTHS = ["0", "2", "4", "2, 2", "2,4", "+2", "-2", "2_0", "many", "", "00002", "2.0", "0x2", "9" * 30, "\xb2", "2;2"]
CODINGS = ["chunked", "Chunked", "gzip, chunked", "chunked, gzip", "identity", "chunked;a=b", "xchunked", '"chunked"']
DATES = ["Sun, 09 Sep 2001 01:46:40 GMT", "Sunday, 09-Sep-01 01:46:40 GMT", "Sun Sep  9 01:46:40 2001"]
BODIES = [
    b"",
    b"ok",
    b"2\r\nok\r\n0\r\n\r\n",
    b"2;a=b\r\nok\r\n0\r\nX: y\r\n\r\n",
    b"\r\n",
    b"ok\r\n\r\nHTTP/1.1 500 no\r\n\r\n",
]
STATUSES = [
    *["200 OK"] * 8,
    "204",
    "204 No Content",
    "304 Not Modified",
    "500 Oops",
    "503  two  words ",
    "302 Found",
    "429 ",
]
ODD_STATUSES = [
    "100 Continue", "102 Processing", "103 Early Hints", "101 Switching", "999 x", "99 x", "2000 x", "abc", "", "-1",
]  # fmt: skip


def _date(draw: random.Random) -> str:
    """With a number that is far out, or in one that is far too long."""
    date = draw.choice(DATES)
    digits = [*re.finditer(r"\d+", date)]
    one = draw.choice(digits)
    return date[: one.start()] + draw.choice(["0", "99", "-1", "9" * 25, "9" * 400, "1e400", ""]) + date[one.end() :]


def _header(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.35:
        name, value = draw.choice(CASES), draw.choice(LENGTHS[: draw.choice([3, len(LENGTHS)])])
    elif kind < 0.5:
        name, value = "Transfer-Encoding", draw.choice(CODINGS[: draw.choice([1, len(CODINGS)])])
    elif kind < 0.6:
        name, value = "Connection", draw.choice(["close", "keep-alive", "Close, TE", ""])
    elif kind < 0.75:
        name, value = "Retry-After", draw.choice([_date(draw), *DATES, "7", "9" * 400, "-1", "1.5", "soon", "\xb2"])
    elif kind < 0.8:
        name, value = "Date", draw.choice([_date(draw), *DATES])
    else:
        name, value = (
            draw.choice(["X-Odd", "X-Odd", "x-two"]),
            draw.choice(["a", "a: b", "caf\xe9", "a\tb", "", "x" * 300]),
        )
    space = draw.choice
    before, after, end = (space(["", "", "", " ", "\t", "  "]) for _ in range(3))
    return f"{name}{before if draw.random() < 0.1 else ''}:{after}{value}{end if draw.random() < 0.3 else ''}"


def head(draw: random.Random) -> bytes:
    """A response: its head, and something of a body."""
    version = draw.choice(
        ["HTTP/1.1"] * 12 + ["HTTP/1.0", "HTTP/1.0", "HTTP/1.9", "HTTP/2", "http/1.1", "HTTP/0.9", "HTTP/0.9:", ""]
    )
    status = draw.choice(ODD_STATUSES if draw.random() < 0.1 else STATUSES)
    lines = [f"{version} {status}", *(_header(draw) for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 5])))]
    if draw.random() < 0.15:
        odd = [
            " goes on",
            "\tgoes on",
            "no header",
            ":no name",
            "X-\xe9: a",
            "From me",
            "a b: c",
            " : ",
            "X:a\rX-b: c",
            "\0: a",
        ]
        lines.insert(draw.randint(1, len(lines)), draw.choice(odd))
    if draw.random() < 0.01:
        lines += [f"X-{number}: a" for number in range(draw.choice([90, 101, 900, 1100]))]
    end = draw.choice(["\r\n"] * 9 + ["\n"])
    data = end.join([*lines, "", ""]).encode("latin-1") + draw.choice(BODIES)
    if draw.random() < 0.1:  # a byte more, less, or another one
        at = draw.randrange(len(data))
        data = (
            data[:at]
            + draw.choice([b"", b"\r", b"\n", b" ", b"\0", b":", bytes([draw.randrange(256)])])
            + data[at + draw.randint(0, 1) :]
        )
    interim = b"HTTP/1.1 100 Continue\r\nX-Interim: a\r\n\r\n"
    return interim * draw.choice([0] * 9 + [1, 2]) + data


def plain(draw: random.Random) -> bytes:
    """A response as a correct sender writes it."""
    body = draw.choice([b"", b"ok"])
    ends = [("Content-Length", str(len(body)))]
    if draw.random() < 0.3:
        body = draw.choice([b"2\r\nok\r\n0\r\n\r\n", b"2;a=b\r\nok\r\n0\r\nX: y\r\n\r\n"])
        ends = [("Transfer-Encoding", draw.choice(["chunked", "Chunked"]))]
    headers = [
        ("Connection", draw.choice(["close", "keep-alive"])),
        ("Date", DATES[0]),
        ("Retry-After", draw.choice([_date(draw).strip(), "7"])),
    ]
    headers += [("X-Odd", "a: b"), ("X-Odd", "caf\xe9"), ("x-two", "x" * 300), ("X-Empty", "")]
    chosen = draw.sample(headers, draw.randint(0, len(headers))) + ends
    draw.shuffle(chosen)
    status = draw.choice(["HTTP/1.1 200 OK", "HTTP/1.0 200", "HTTP/1.1 500 Oops", "HTTP/1.1 302 Found"])
    lines = [status, *(f"{name}:{draw.choice(['', ' '])}{value}" for name, value in chosen)]
    interim = b"HTTP/1.1 100 Continue\r\nX-Interim: a\r\n\r\n"
    return interim * draw.choice([0, 0, 1, 2]) + "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def test_both_readers_read_the_same_and_of_a_plain_head_what_requests_reads() -> None:
    readable = 0
    for seed in range(HEADS):
        draw = random.Random(seed)
        odd, correct = head(draw), plain(draw)
        read = read_later(odd)
        readable += read.status is not None
        assert read_first(odd) == read, f"seed {seed}: {odd!r}"
        assert read_by_requests(correct) == read_first(correct) == read_later(correct) != NOTHING, (
            f"seed {seed}: {correct!r}"
        )
    assert readable > HEADS / 2, "most heads can be read"
