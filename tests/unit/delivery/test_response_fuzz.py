"""
Heads of responses that no library would write. What deliveries read of them is what `requests` reads, apart from the
differences that are listed here, each with its reason.

SWEEPERD_TEST_RESPONSE_HEADS sets how many heads are tried; the first ones are the same in each run.
"""

import http.client
import io
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import requests
import requests.adapters
import urllib3
import urllib3.connection
import urllib3.exceptions

from sweeperd.delivery.http import OWS, BoundedResponse, begin_exchange, bounded, judge
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
#: Stands for a body that ends in the middle. A delivery keeps what came, because the status is the result.
BROKEN_OFF = b"broken off"


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
    try:
        body = response.content
    except requests.RequestException:
        body = BROKEN_OFF
    return Read(response.status_code, _told(response.headers), None if wire.waited else body)


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
    "100 Continue",
    "102 Processing",
    "103 Early Hints",
    "101 Switching",
    "999 x",
    "99 x",
    "2000 x",
    "abc",
    "",
    "-1",
]


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


# ---- the differences

#: Each change that makes of a head what a correct sender would have written, and why deliveries do without it.
DIFFERENCES = {
    "interim": "requests takes 102 and 103 for the result; each interim response but 101 is skipped",
    "space": "requests counts white space after a value or a name to it, and so takes `chunked ` for an unknown coding",
    "no header": "requests ends the headers there, and misses a Content-Length that follows",
    "goes on": "requests keeps the line's end in a header that goes on in the next line",
    "carriage return": "requests ends the line at a carriage return alone; RFC 9112 has it replaced by a space",
    "codings": "requests knows `chunked` only as the first and only coding; RFC 9112 lets the last coding count",
    "no body": "requests waits for chunks after a 101, 204 or 304 that names them, though no body can follow",
    "lengths": "requests refuses lengths that differ and believes `+2`; neither tells where the body ends",
}


def correct(data: bytes, found: Counter[str]) -> bytes:
    """The response as a correct sender would have written it; `found` counts the differences."""
    while True:
        lines, rest, whole = _split(data)
        status = _status(lines[0])
        if status is None or not 100 <= status < 200 or status == 101:
            break
        found["interim"] += status != 100
        data = rest
    headers: list[tuple[str, str]] = []
    for line in lines[1:]:
        text = line.replace("\r", " ")
        found["carriage return"] += text != line
        name, colon, value = text.partition(":")
        if text[:1] in (" ", "\t"):
            found["goes on"] += 1
            if headers:
                name, value = headers.pop()
                headers.append((name, f"{value} {text.strip(OWS)}".strip(OWS)))
        elif not colon or not re.fullmatch("[!-9;-~]+", name.rstrip(OWS)):
            found["no header"] += 1
        else:
            found["space"] += name != name.rstrip(OWS) or value != value.rstrip(OWS)
            headers.append((name.rstrip(OWS), value.strip(OWS)))
    codings = [value for name, value in headers if name.lower() == "transfer-encoding"]
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    rest_of = [(name, value) for name, value in headers if name.lower() not in ("transfer-encoding", "content-length")]
    framing = _framing(status, codings, lengths, found)
    head = "\r\n".join([lines[0], *(f"{name}: {value}" for name, value in framing + rest_of)]).encode("latin-1")
    return head + (b"\r\n\r\n" + rest if whole else b"\r\n")


def _framing(status: int | None, codings: list[str], lengths: list[str], found: Counter[str]) -> list[tuple[str, str]]:
    coding = ",".join(codings).rpartition(",")[2].strip(OWS).lower()
    if coding == "chunked" and status in (101, 204, 304):
        found["no body"] += 1
        return []
    if coding == "chunked":
        found["codings"] += codings[0].lower() != "chunked"
        return [("Transfer-Encoding", "chunked")]
    found["codings"] += bool(codings) and codings[0].lower() == "chunked"
    each = {length.strip(OWS) for line in lengths for length in line.split(",")}
    if len(each) == 1 and re.fullmatch("[0-9]+", min(each)):
        found["lengths"] += len(lengths) > 1 or "," in lengths[0]
        return [("Content-Length", min(each))]
    found["lengths"] += bool(each)
    return []


def _status(line: str) -> int | None:
    try:
        return int(line.split(None, 2)[1])
    except (IndexError, ValueError):
        return None


def _split(data: bytes) -> tuple[list[str], bytes, bool]:
    """The lines of the head, what follows the head, and whether the head is complete."""
    lines: list[str] = []
    while data:
        line, end, data = data.partition(b"\n")
        if end and line in (b"", b"\r") and lines:
            return lines, data, True
        lines.append(line.decode("latin-1").removesuffix("\r") if end else line.decode("latin-1"))
    return lines or [""], b"", False


def test_what_is_read_of_a_head_is_what_requests_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    # requests refuses more than 100 headers; a receiver behind some proxies has more.
    monkeypatch.setattr(http.client, "_MAXHEADERS", 1000)
    found: Counter[str] = Counter()
    answers: Counter[int | None] = Counter()
    for seed in range(HEADS):
        data = head(random.Random(seed))
        ours, theirs = read_later(data), read_by_requests(correct(data, found))
        if theirs.body == BROKEN_OFF:
            theirs = theirs._replace(body=ours.body)
        assert ours == theirs, f"seed {seed}: {data!r}"
        assert read_first(data) == ours, f"seed {seed}: {data!r}"
        answers[ours.status] += 1
    assert {name for name, count in found.items() if count} == set(DIFFERENCES), "the list is complete and not stale"
    assert answers[None] < HEADS / 3 < answers[200], "most heads can be read"
