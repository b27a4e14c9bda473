"""One deadline for the whole exchange, and interim responses."""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, ClassVar, cast

import pytest
import requests
import urllib3
import urllib3.connection

from sweeperd.delivery import http
from sweeperd.delivery.http import HEAD_LIMIT, OLDEST, Result, bounded
from tests.support.deliveries import MESSAGE, Sender
from tests.support.raw_server import listening, raw_server
from tests.support.receiver import Answer, Receiver
from tests.unit.delivery.test_sender import OK

pytestmark = pytest.mark.usefixtures("bare_environment")

QUICK: dict[str, object] = {"timeout": "300ms", "connect_timeout": "300ms"}
#: Well above the deadline of QUICK, and well below what a drip takes. Seconds.
SOON = 15.0
INTERIM = "more than 64 KB or 1,000 lines of interim responses (1xx) came before the response"
LONG_HEAD = "the response's headers are above 64 KB or 1,000 lines"
NO_BODY = b"Content-Length: 0\r\n\r\n"


@contextmanager
def dripping(pieces: Callable[[], Iterable[bytes]], pause: float, *, reads: bool = True) -> Iterator[str]:
    """A server that answers each request with these pieces, with a pause after each. Yields its URL."""

    def serve(connection: socket.socket) -> None:
        if reads:
            connection.recv(65536)
        for piece in pieces():
            connection.sendall(piece)
            time.sleep(pause)

    with listening(serve) as url:
        yield url


HEAD = OK + b"".join(b"X-Header-%d: value\r\n" % number for number in range(50))


@pytest.mark.parametrize(
    ("pieces", "pause"),
    [
        (lambda: (bytes([byte]) for byte in HEAD), 0.2),
        (lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"), 0.2),
        (lambda: itertools.repeat(b"HTTP/1.1 103 Early Hints\r\n\r\n"), 0.2),
        (lambda: itertools.repeat(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"), 0),
        (lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"), 0),
        (lambda: [OK, *itertools.repeat(b"X: " + b"y" * 1000 + b"\r\n", 99)], 0.2),
    ],
    ids=["a head byte by byte", "100 again and again", "103 again and again", "103 endless", "100 endless", "headers"],
)
def test_a_response_without_end_has_failed(pieces: Callable[[], Iterable[bytes]], pause: float) -> None:
    with dripping(pieces, pause) as url:
        sender = Sender(url, QUICK)
        result = sender.once()
    assert (result.result, result.status) == (Result.FAILED, None)
    assert result.reason in ("no answer in time", LONG_HEAD, INTERIM)
    assert result.seconds < SOON
    assert sender.verdicts == [result], "it is counted"


def test_interim_responses_without_end_are_cut_off_before_the_deadline() -> None:
    """They would keep a core busy until then."""
    with dripping(lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 100), 0) as url:
        result = Sender(url, {"timeout": "30s", "connect_timeout": "30s"}).once()
    assert (result.result, result.reason) == (Result.FAILED, INTERIM)
    assert result.seconds < 25


@pytest.mark.parametrize("status", [200, 500])
def test_a_body_without_end_ends_at_the_deadline(status: int) -> None:
    """The status is known, so it is the result. The body takes forty seconds: without the deadline, the test fails."""
    head = b"HTTP/1.1 %d Status\r\nContent-Length: 200\r\n\r\n" % status
    with dripping(lambda: [head, *itertools.repeat(b"x", 200)], 0.2) as url:
        result = Sender(url, QUICK).once()
    assert result.status == status
    assert result.seconds < SOON


def test_a_receiver_that_does_not_read_has_failed() -> None:
    large = MESSAGE._replace(body=b"[" + b"1," * 20_000_000 + b"1]")
    with dripping(lambda: itertools.repeat(b"", 200), 0.1, reads=False) as url:
        result = Sender(url, QUICK).deliver(large, attempts=1)
    assert (result.result, result.reason) == (Result.FAILED, "the request was not sent in time")
    assert result.seconds < SOON


def test_a_handshake_without_end_has_failed() -> None:
    """The first bytes of a TLS record, and then one byte after the other."""
    record = b"\x16\x03\x03\x20\x00\x02\x00\x1f\xfc" + b"\x00" * 8000
    with dripping(lambda: (bytes([byte]) for byte in record), 0.2) as url:
        result = Sender(url.replace("http:", "https:"), QUICK).once()
    assert (result.result, result.status) == (Result.FAILED, None)
    assert result.seconds < SOON


def test_a_proxy_that_drips_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with dripping(lambda: (bytes([byte]) for byte in HEAD), 0.2) as url:
        monkeypatch.setenv("https_proxy", url.removesuffix("/hook"))
        result = Sender("https://receiver.example/hook", QUICK).once()
    assert (result.result, result.status) == (Result.FAILED, None)
    assert result.seconds < SOON


def test_the_next_request_has_its_own_time() -> None:
    with raw_server(OK + NO_BODY) as (url, connections):
        sender = Sender(url, QUICK)
        for _ in range(3):
            assert sender.once().delivered
            time.sleep(0.35)
        assert len(connections) == 1
        sender.webhook.close()


#: The time to connect is much shorter than the time for the whole exchange.
PATIENT: dict[str, object] = {"timeout": "20s", "connect_timeout": "200ms"}


def test_an_answer_may_take_longer_than_the_connecting() -> None:
    with Receiver(lambda *_: Answer(delay=0.4)) as receiver:
        sender = Sender(receiver.url, PATIENT)
        assert [sender.once().delivered for _ in range(2)] == [True, True]
        sender.webhook.close()


def test_sending_may_take_longer_than_the_connecting() -> None:
    """The receiver is busy for a while, and then reads an event that is larger than the kernel keeps for it."""
    large = MESSAGE._replace(body=b"[" + b"1," * 10_000_000 + b"1]")
    got = [0]

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            time.sleep(0.4)
            while got[0] < len(large.body):
                got[0] += len(connection.recv(1 << 20))
            connection.sendall(OK + NO_BODY)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        sender = Sender(f"http://127.0.0.1:{listener.getsockname()[1]}/hook", PATIENT)
        assert sender.deliver(large, attempts=1).delivered
        thread.join(20)
        sender.webhook.close()


# ---- interim responses


@pytest.mark.parametrize(
    "interim",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\nContent-Length: 7\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nConnection: close\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.1 102 Processing\r\n\r\n",
    ],
    ids=["100", "102", "103", "several"],
)
@pytest.mark.parametrize("final", [b"200 OK", b"503 Service Unavailable"])
def test_interim_responses_are_skipped(interim: bytes, final: bytes) -> None:
    with raw_server(interim + b"HTTP/1.1 " + final + b"\r\nContent-Length: 2\r\n\r\nok") as (url, connections):
        sender = Sender(url)
        for _ in range(3):
            exchange = sender.webhook.send_once(sender.request())
            assert exchange.outcome.status == int(final[:3])
            assert exchange.response_body == b"ok"
            assert "Link" not in exchange.response_headers
        assert len(connections) == 1
        sender.webhook.close()


def test_101_is_no_interim_response() -> None:
    """The protocol that follows it was never asked for, and is not HTTP."""
    with raw_server(b"HTTP/1.1 101 Switching Protocols\r\n\r\n") as (url, connections):
        sender = Sender(url)
        results = [sender.once() for _ in range(2)]
        assert [(result.result, result.status) for result in results] == [(Result.FAILED, 101)] * 2
        assert len(connections) == 2


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 0 \r\n\r\n",
        b"Content-Length : 2\t\r\n\r\nok",
        b"Content-Length: 2, 2\r\n\r\nok",
        b"Transfer-Encoding: chunked \r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"no header\r\nContent-Length: 2\r\n\r\nok",
    ],
)
def test_a_body_whose_end_is_told_in_an_odd_way_is_not_waited_for(rest: bytes) -> None:
    with raw_server(OK + rest) as (url, connections):
        sender = Sender(url, {"timeout": "20s"})
        results = [sender.once() for _ in range(3)]
        sender.webhook.close()
    assert all(result.delivered for result in results)
    assert len(connections) == 1, "so its end was seen"


@pytest.mark.parametrize(
    "head",
    [
        OK + b"X-No-Length: 1\r\n\r\n",
        OK + b"Content-Length: 2, 4\r\n\r\nok",
        OK + b"Content-Length: 200\r\n\r\nok",
        b"HTTP/1.1 500 no\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
    ],
    ids=["no length", "two lengths", "too short", "no last chunk"],
)
def test_a_body_that_does_not_end_is_waited_for_briefly(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is the result, and a sender has better to do."""
    monkeypatch.setattr(http, "BODY_WAIT", 0.2)
    with raw_server(head) as (url, _):
        result = Sender(url, {"timeout": "60s"}).once()
    assert result.status == int(head[9:12])
    assert result.seconds < 30


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (OK + b"X:\r\n" * 16_000 + NO_BODY, None),
        (OK + b"X: one\r\n" + b" two\r\n" * 10_000 + NO_BODY, None),
        (b"HTTP/1.1 100 \r\n\r\n" * 3000 + OK + NO_BODY, None),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 70_000, 200),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + (b"1;" + b"x" * 60_000 + b"\r\na\r\n") * 200, 200),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 200_000, 200),
    ],
    ids=["headers", "a header that goes on", "interim", "chunks of a byte", "chunk extensions", "trailers"],
)
def test_a_response_takes_little_cpu_time(answer: bytes, status: int | None) -> None:
    """The receiver chooses how much it answers, and the CPU time is taken from all other endpoints."""
    with raw_server(answer) as (url, _):
        sender = Sender(url, {"timeout": "20s"})
        results, took = set(), list[float]()
        for _ in range(5):
            began = time.thread_time()
            results.add(sender.once().status)
            took.append(time.thread_time() - began)
    assert results == {status}
    assert min(took) < 0.025, "the least of them: on a busy machine the same work takes longer"


def test_large_headers_that_end_are_fine() -> None:
    with raw_server(OK + b"X-Large: " + b"x" * (HEAD_LIMIT - 10_000) + b"\r\n" + NO_BODY) as (url, _):
        assert Sender(url).once().delivered


# ---- kinds of connections


class OwnKind(urllib3.connection.HTTPConnection):
    """A kind of connection that no other test has bounded."""


def test_a_connection_is_bounded_once() -> None:
    own: type = OwnKind
    kind = bounded(own)
    assert kind is not own
    assert own in kind.__mro__
    assert bounded(kind) is kind


def test_a_proxy_of_another_package_has_the_time_that_is_left() -> None:
    """PySocks makes its connections by itself, and goes by the time-out."""
    limits: list[float] = []

    class ThroughSocks(urllib3.connection.HTTPConnection):
        _socks_options: ClassVar[dict[str, str]] = {}

        def _new_conn(self) -> socket.socket:
            limits.append(cast(float, self.timeout))
            raise TimeoutError

    http.begin_exchange(0.5)
    with pytest.raises(TimeoutError):
        bounded(ThroughSocks)("receiver.example", timeout=20.0).connect()
    assert [0 < limit <= 0.5 for limit in limits] == [True]


def test_a_connection_is_not_used_for_ever() -> None:
    """A receiver whose name moves to another address gets no events at the old one for long."""
    with raw_server(OK + NO_BODY) as (url, connections):
        sender = Sender(url)
        for age in (0.0, OLDEST - SOON, OLDEST):
            assert sender.once().delivered
            transport: Any = sender.webhook._transport
            (kept,) = transport._idle
            kept.opened_at -= age
        assert len(connections) == 1
        assert sender.once().delivered
        assert len(connections) == 2
        sender.webhook.close()


def test_connections_that_are_not_used_again_do_not_stay_open() -> None:
    """A burst leaves some, and their receiver closes them or the endpoint rests."""
    ended = threading.Semaphore(0)

    def serve(connection: socket.socket) -> None:
        while connection.recv(65536):
            connection.sendall(OK + NO_BODY)
        ended.release()

    with listening(serve) as url:
        webhook = Sender(url).webhook
        webhook._transport = transport = http.Transport(Sender(url).endpoint, {}, 3, SOON, SOON)
        responses = [transport.send(transport.request({}, b"")) for _ in range(5)]
        for response in responses:
            response.release_conn()
        assert all(ended.acquire(timeout=SOON) for _ in range(2)), "more than are used at once"
        webhook.tidy()
        assert len(transport._idle) == 3
        for kept in transport._idle[:2]:
            kept.opened_at -= OLDEST
        webhook.tidy()
        assert all(ended.acquire(timeout=SOON) for _ in range(2))
        assert len(transport._idle) == 1
        transport.close()


def test_a_small_request_does_not_wait_for_an_acknowledgement() -> None:
    with Receiver() as receiver:
        transport = http.Transport(Sender(receiver.url).endpoint, {}, 1, SOON, SOON)
        with closing(transport.connect()) as connection:
            assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def whole_request(connection: socket.socket) -> bytes:
    """Head and JSON body, which may come in pieces; empty at the end."""
    data = b""
    while not data.endswith(b"}") and (piece := connection.recv(65536)):
        data += piece
    return data


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [("", {}), ("/other/%C3%A9?a=b%20c", {"headers": {"X-Own": "two words"}}), ("", {"secrets": ["s" * 24, "t" * 24]})],
    ids=["plain", "a query", "two secrets"],
)
def test_each_request_has_the_bytes_that_requests_would_send(path: str, endpoint: dict[str, Any]) -> None:
    """Over a kept connection, only what is made anew for each attempt differs."""
    came: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        while data := whole_request(connection):
            came.append(data)
            connection.sendall(OK + NO_BODY)

    with listening(serve) as url:
        whole = url.replace("http://", "http://user:pass@") + path
        sender = Sender(whole, **endpoint)
        assert all(sender.once().delivered for _ in range(3))
        head, _, body = came[0].partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[2:])
        requests.post(whole, data=body, headers=headers, timeout=SOON)
        assert came.pop() == came[0]
    anew = (b"traceparent", b"webhook-signature", b"webhook-timestamp")
    first, *others = [[line for line in one.split(b"\r\n") if not line.startswith(anew)] for one in came]
    assert others == [first, first]
    assert sum(line.lower().startswith(b"host:") for line in first) == 1


def test_the_path_is_sent_as_the_url_names_it() -> None:
    """A receiver that signs or routes by the path sees all slashes."""
    lines: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        lines.append(whole_request(connection).split(b"\r\n")[0])
        connection.sendall(OK + NO_BODY)

    with listening(serve) as url:
        assert Sender(url.replace("/hook", "//hook//a?b=//c")).once().delivered
    assert lines == [b"POST //hook//a?b=//c HTTP/1.1"]


class Contended(list[Any]):
    """The connections that no request uses, with other threads that act at the worst moments."""

    def __init__(self, transport: Any) -> None:
        super().__init__(transport._idle)
        self._transport = transport

    def __bool__(self) -> bool:
        some = bool(super().__len__())
        self.clear()  # a request took the last one
        return some

    def __len__(self) -> int:
        self._transport.close()
        return super().__len__()


def test_a_transport_may_be_closed_while_threads_use_it() -> None:
    with Receiver() as receiver:
        sender = Sender(receiver.url)
        assert sender.once().delivered
        transport: Any = sender.webhook._transport
        (connection,) = transport._idle
        transport._idle = Contended(transport)
        transport.close()
        assert connection.sock is None
        transport._closed = False
        assert sender.once().delivered
        still_open = list.__len__(transport._idle)  # `len` would close them
        assert not still_open, "a response that ends meanwhile leaves no open connection"


@pytest.mark.parametrize("before", [[], [OK + NO_BODY]], ids=["new", "kept"])
def test_a_receiver_may_answer_before_it_has_read_all_and_close(before: list[bytes]) -> None:
    large = MESSAGE._replace(body=b"[" + b"1," * 10_000_000 + b"1]")

    def serve(connection: socket.socket) -> None:
        for answer in before:
            whole_request(connection)
            connection.sendall(answer)
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\n\r\n")
        connection.close()

    with listening(serve) as url:
        sender = Sender(url)
        assert all(sender.once().delivered for _ in before)
        assert sender.deliver(large, attempts=1).reason == "HTTP 413"


@pytest.mark.parametrize(
    "odd",
    [
        b"Content-Length: 300000\r\n\r\n" + b"HTTP/1.1 500 no\r\n" * 15_000,
        b"Transfer-Encoding: chunked\r\n\r\nno number\r\n",
    ],
    ids=["more of the body than is read", "a chunk without a size"],
)
def test_a_connection_with_more_to_say_is_not_used_again(odd: bytes) -> None:
    """What comes next would be taken for the next response."""
    with raw_server(OK + NO_BODY, OK + odd, OK + NO_BODY) as (url, connections):
        sender = Sender(url)
        assert [sender.once().reason for _ in range(4)] == ["HTTP 200"] * 4
        assert len(connections) == 2


@pytest.mark.parametrize(
    "answer",
    [b"no HTTP\r\n\r\n", b"", OK + b"X: " + b"y" * 70_000, OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"],
    ids=["no HTTP", "nothing", "a long header", "a long number"],
)
def test_a_fault_over_a_kept_connection_is_named_alike(answer: bytes) -> None:
    """It is counted too, and the next request finds a new connection."""

    def serve(connection: socket.socket) -> None:
        for each in answers:
            whole_request(connection)
            connection.sendall(each)
            if each == answer:
                connection.close()

    reasons = []
    for answers in ([answer], [OK + NO_BODY, answer]):
        with listening(serve) as url:
            sender = Sender(url)
            results = [sender.once() for _ in answers]
            reasons.append((results[-1].result, results[-1].reason))
            assert sender.verdicts == results
    assert reasons[0] == reasons[1]
    assert reasons[0][0] is Result.FAILED


def test_a_kept_connection_waits_as_long_as_a_new_one() -> None:
    """The time-out of the response, also if the time-out of the connection is much shorter or longer."""

    def serve(connection: socket.socket) -> None:
        whole_request(connection)
        connection.sendall(OK + NO_BODY)
        while connection.recv(65536):
            pass

    for connecting in ("20s", "100ms"):
        with listening(serve) as url:
            sender = Sender(url, {"timeout": "300ms", "connect_timeout": connecting})
            assert sender.once().delivered
            result = sender.once()
        assert (result.result, result.reason) == (Result.FAILED, "no answer in time")
        assert 0.25 < result.seconds < SOON
