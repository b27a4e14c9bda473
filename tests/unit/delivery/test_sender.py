"""One event to one endpoint: what is sent, what is made of the answer, and when it is sent again."""

import base64
import gc
import json
import re
import socket
import threading
from pathlib import Path

import pytest
import standardwebhooks

from sweeperd import __version__, tracing
from sweeperd.delivery.http import Result
from sweeperd.delivery.webhook import KEPT, RESPONSE_LIMIT
from sweeperd.outbox import Message
from sweeperd.progress import Progress, working
from sweeperd.store import Clock
from tests.support.deliveries import BODY, MESSAGE, TRACE, Sender
from tests.support.harness import eventually
from tests.support.raw_server import listening, raw_server
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import free_port

pytestmark = pytest.mark.usefixtures("bare_environment")

WHSEC = "whsec_" + base64.b64encode(bytes(range(200, 232))).decode()


# ---- what is sent


def test_the_request() -> None:
    with Receiver() as receiver:
        sender = Sender(receiver.url, headers={"X-Team": "ops"})
        sender.clock.set(1_700_000_000_500)
        verdict = sender.once()
    (request,) = receiver.requests
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert request.body == BODY
    assert (
        headers.items()
        >= {
            "content-type": "application/json",
            "user-agent": f"sweeperd/{__version__}",
            "webhook-id": "evt_1",
            "webhook-timestamp": "1700000000",
            "x-cycles-event-id": "evt_1",
            "x-cycles-event-type": "reservation.expired",
            "x-cycles-trace-id": TRACE,
            "x-team": "ops",
        }.items()
    )
    assert not [name for name in headers if "signature" in name], "there is no secret to sign with"
    assert (verdict.result, verdict.status, verdict.reason) == (Result.DELIVERED, 200, "HTTP 200")


def test_each_attempt_is_a_span_of_its_own_and_signed_anew() -> None:
    with Receiver(lambda _, before: Answer(500 if before < 2 else 200)) as receiver:
        Sender(receiver.url, secrets=[WHSEC]).deliver()
    spans = [re.fullmatch(f"00-{TRACE}-([0-9a-f]{{16}})-01", r.headers["traceparent"]) for r in receiver.requests]
    assert len({span[1] for span in spans if span}) == 3
    for request in receiver.requests:
        standardwebhooks.Webhook(WHSEC).verify(request.body, request.headers)


def test_a_hand_over_is_a_span_that_says_why_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.proto")
    from tests.support.collector import Collector  # noqa: PLC0415  it needs that package

    with Receiver(lambda _, before: Answer(200 if before else 500)) as receiver, Collector() as collector:
        for name, value in collector.variables.items():
            monkeypatch.setenv(name, value)
        with tracing.tracing(collector.variables):
            sender = Sender(receiver.url)
            for _ in range(2):
                sender.once()
            sender.webhook.send_once(sender.request())
    assert [span.error for span in collector.spans("deliver")] == ["HTTP 500", "", ""]


def test_a_request_is_progress_as_long_as_it_may_last() -> None:
    now, silent = 0.0, list[float]()
    progress = Progress(lambda: now)

    def behaviour(*_: object) -> Answer:
        nonlocal now
        now += 5.0
        silent.append(progress.silent_for)
        now += 2.0
        silent.append(progress.silent_for)
        return Answer()

    with Receiver(behaviour) as receiver, working(progress):
        Sender(receiver.url, {"connect_timeout": "2s", "timeout": "4s"}).once()
        now += 3.0
        silent.append(progress.silent_for)
    assert silent == [0.0, 1.0, 3.0]


def test_an_event_without_a_trace_has_no_traceparent() -> None:
    """One with an empty trace id is malformed, and a receiver may refuse the whole request."""
    with Receiver() as receiver:
        sender = Sender(receiver.url)
        sender.deliver(Message("evt_1", "reservation.expired", "", b"{}"))
    (request,) = receiver.requests
    assert "traceparent" not in request.headers
    assert "X-Cycles-Trace-Id" not in request.headers


def test_netrc_does_not_overwrite_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with Receiver() as receiver:
        Sender(receiver.url, headers={"Authorization": "Bearer ours"}).once()
        Sender(receiver.url).once()
    given, none = receiver.requests
    assert given.headers["Authorization"] == "Bearer ours"
    assert "Authorization" not in none.headers


@pytest.mark.parametrize(
    ("part", "sent"), [("user:p%40ss", b"user:p@ss"), ("user:", b"user:"), ("user", b"user:"), (":pass", b":pass")]
)
def test_user_and_password_of_the_url(part: str, sent: bytes) -> None:
    with Receiver() as receiver:
        Sender(receiver.url.replace("//", f"//{part}@")).once()
    (request,) = receiver.requests
    assert request.headers["Authorization"] == "Basic " + base64.b64encode(sent).decode()
    assert request.path == "/hook"
    assert "@" not in request.headers["Host"]


def test_cookies_are_not_sent_back() -> None:
    with Receiver(lambda *_: Answer(headers={"Set-Cookie": "session=1; Path=/"})) as receiver:
        sender = Sender(receiver.url)
        for _ in range(2):
            assert sender.once().delivered
    assert not [request for request in receiver.requests if "Cookie" in request.headers]


def test_what_a_receiver_gets_is_one_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = Sender(f"http://127.0.0.1:{listener.getsockname()[1]}/hook")
        thread = threading.Thread(target=sender.once, daemon=True)
        thread.start()
        connection, _ = listener.accept()
        with connection:
            got = b""
            while not got.endswith(BODY):
                got += connection.recv(65536)
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            thread.join(5)
    head, _, body = got.partition(b"\r\n\r\n")
    assert body == BODY
    assert head.startswith(b"POST /hook HTTP/1.1\r\nHost: 127.0.0.1:")
    assert sender.verdicts[0].delivered


@pytest.mark.parametrize("trace", ["a\r\nX-Other: 1", "a\n b", "\nb", " a", "\u20ac"])
def test_what_cannot_stand_in_a_header_is_not_sent(trace: str) -> None:
    """It would end the header, and what follows it would be one of its own."""
    with Receiver() as receiver:
        sender = Sender(receiver.url)
        verdict = sender.deliver(Message("evt_1", "reservation.expired", trace, b"{}"), attempts=1)
        assert (verdict.result, verdict.status) == (Result.FAILED, None)
        assert sender.once().delivered, "the connection is none the worse for it"
    assert [request.headers["X-Cycles-Trace-Id"] for request in receiver.requests] == [TRACE]


def test_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:p%40ss@").removesuffix("/hook"))
        sender = Sender("http://receiver.example/hook?to=us", headers={"X-Team": "ops"})
        assert all(sender.once().delivered for _ in range(2))
    for request in proxy.requests:
        assert request.path == "http://receiver.example/hook?to=us"
        assert request.headers["Host"] == "receiver.example"
        assert request.headers["Proxy-Authorization"] == "Basic " + base64.b64encode(b"user:p@ss").decode()
        assert request.headers["X-Team"] == "ops"
        assert request.body == BODY


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        OK + b"Content-Length: 0\r\n\r\n",
        OK + b"Content-Length: 5\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
        OK + b"Content-Length: 30000\r\n\r\n" + b"x" * 30000,
        b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops",
    ],
    ids=["204", "empty", "body", "chunked", "gzip", "large", "500"],
)
def test_connections_are_used_again(answer: bytes) -> None:
    with raw_server(answer) as (url, connections):
        sender = Sender(url)
        for _ in range(5):
            assert sender.once().status in (200, 204, 500)
        assert len(connections) == 1
        sender.webhook.close()


def test_a_connection_that_the_receiver_will_close_is_not_used_again() -> None:
    kept, last = OK + b"Content-Length: 0\r\n\r\n", OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n"
    with raw_server(kept, last, kept) as (url, connections):
        sender = Sender(url)
        for _ in range(4):
            assert sender.once().delivered
        assert len(connections) == 2
        sender.webhook.close()


def test_a_connection_that_the_receiver_closed_meanwhile_is_no_failure() -> None:
    with raw_server(OK + b"Content-Length: 0\r\n\r\n") as (url, connections):
        sender = Sender(url)
        assert sender.once().delivered
        connections[0].shutdown(socket.SHUT_RDWR)
        assert sender.once().delivered
        assert len(connections) == 2
        sender.webhook.close()


def test_close_closes_the_connections_at_once() -> None:
    """Not when the garbage collector comes by: a receiver would keep the connections of each reload until then."""
    gc.disable()
    try:
        with raw_server(OK + b"Content-Length: 0\r\n\r\n") as (url, connections):
            sender = Sender(url)
            assert sender.once().delivered
            sender.webhook.close()
            eventually(lambda: connections[0].fileno() == -1)  # the server closes what the sender has closed
    finally:
        gc.enable()


def test_close_before_the_first_request() -> None:
    Sender("http://127.0.0.1:1/").webhook.close()


# ---- verdicts


@pytest.mark.parametrize(
    ("status", "result"),
    [
        *((status, Result.DELIVERED) for status in (200, 201, 202, 204, 226, 299)),
        *((status, Result.REJECTED) for status in (300, 301, 302, 303, 304, 307, 308)),
        *((status, Result.REJECTED) for status in (400, 401, 404, 408, 410, 422, 429, 499)),
        *((status, Result.FAILED) for status in (500, 501, 502, 503, 504, 599)),
    ],
)
def test_status(status: int, result: Result) -> None:
    with Receiver(lambda *_: Answer(status)) as receiver:
        verdict = Sender(receiver.url).once()
    assert (verdict.result, verdict.status, verdict.reason) == (result, status, f"HTTP {status}")
    assert verdict.delivered is (result is Result.DELIVERED)
    assert verdict.gone is (status == 410)
    assert verdict.retry_after is None
    assert 0 < verdict.seconds < 60


@pytest.mark.parametrize("location", ["/other", "http://127.0.0.1:1/", "http://", "nonsense://x", "//[", ""])
def test_redirects_are_not_followed(location: str) -> None:
    with Receiver(lambda *_: Answer(307, {"Location": location})) as receiver:
        verdict = Sender(receiver.url).once()
    assert (verdict.result, verdict.status) == (Result.REJECTED, 307)
    assert len(receiver.requests) == 1


def test_refused() -> None:
    verdict = Sender(f"http://127.0.0.1:{free_port()}/").once()
    assert (verdict.result, verdict.status, verdict.reason) == (Result.FAILED, None, "Connection refused")


def test_hang() -> None:
    with Receiver(lambda *_: Answer(delay=30)) as receiver:
        verdict = Sender(receiver.url, timeout="100ms").once()
    assert (verdict.result, verdict.status, verdict.reason) == (Result.FAILED, None, "no answer in time")
    assert 0.1 <= verdict.seconds < 30, "the answer is not waited for"


def test_hang_up() -> None:
    with Receiver(lambda *_: Answer(hang_up=True)) as receiver:
        verdict = Sender(receiver.url).once()
    assert (verdict.result, verdict.status) == (Result.FAILED, None)
    assert verdict.reason == "the connection broke"


def test_an_answer_that_is_no_http() -> None:
    with raw_server(b"220 mail.example.com ready\r\n") as (url, _):
        verdict = Sender(url).once()
    assert (verdict.result, verdict.status) == (Result.FAILED, None)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (OK + b"X-Long: " + b"x" * 70_000 + b"\r\n\r\n", "the response's headers are above 64 KB or 1,000 lines"),
        (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", "the response's Content-Length has 5000 digits"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\n" * 3000 + OK + b"Content-Length: 0\r\n\r\n",
            "more than 64 KB or 1,000 lines of interim responses (1xx) came before the response",
        ),
    ],
    ids=["headers", "length", "interim"],
)
def test_a_success_that_cannot_be_read_says_why(answer: bytes, reason: str) -> None:
    with raw_server(answer) as (url, _):
        verdict = Sender(url).once()
    assert (verdict.result, verdict.status, verdict.reason) == (Result.FAILED, None, reason)


@pytest.mark.parametrize(("status", "result"), [(200, Result.DELIVERED), (500, Result.FAILED)])
def test_a_receiver_that_dies_after_its_status_line(status: int, result: Result) -> None:
    """The status line is the answer: a 200 is delivered, and the rest of the answer is not needed."""

    def serve(connection: socket.socket) -> None:
        request = b""
        while not request.endswith(BODY):
            request += connection.recv(65536)
        connection.sendall(b"HTTP/1.1 %d OK\r\nContent-Le" % status)

    with listening(serve) as url:
        verdict = Sender(url).once()
    assert (verdict.result, verdict.status) == (result, status)


def test_no_such_host() -> None:
    verdict = Sender("http://nosuchhost.invalid/hook").once()
    assert (verdict.result, verdict.reason) == (Result.FAILED, "the host's name cannot be resolved")


def test_no_tls() -> None:
    with Receiver() as receiver:
        verdict = Sender(receiver.url.replace("http:", "https:")).once()
    assert verdict.result is Result.FAILED
    assert verdict.reason.startswith("TLS: ")


@pytest.mark.parametrize("status", [200, 302, 404, 500])
def test_an_endless_body_is_not_read_to_its_end(status: int) -> None:
    headers = {"Location": "/elsewhere"} if status == 302 else {}
    with Receiver(lambda *_: Answer(status, headers, endless=True)) as receiver:
        sender = Sender(receiver.url, {"timeout": "200ms", "connect_timeout": "200ms"})
        done = threading.Event()
        threading.Thread(target=lambda: (sender.once(), done.set()), daemon=True).start()
        assert done.wait(30), "it reads for ever"
        assert sender.verdicts[0].status == status
        assert sender.verdicts[0].seconds < 30


def test_no_more_than_the_limit_is_read() -> None:
    """A fast receiver does not get to send for as long as the time-out is."""
    length = 500 * RESPONSE_LIMIT
    with raw_server(OK + b"Content-Length: %d\r\n\r\n" % length + b"x" * length) as (url, connections):
        sender = Sender(url, {"timeout": "30s"})
        verdict = sender.once()
        assert verdict.delivered
        assert verdict.seconds < 30
        # Its connection is of no use any more: the rest of that body is still to come.
        eventually(lambda: connections[0].fileno() == -1)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (b"Retry-After: 7", 7.0),
        (b"Retry-After:  120 ", 120.0),
        (b"Retry-After: 0", 0.0),
        (b"Retry-After: " + b"9" * 400, 999_999_999.0),
        (b"Date: Sun, 09 Sep 2001 01:46:40 GMT\r\nRetry-After: Sun, 09 Sep 2001 01:48:10 GMT", 90.0),
        (b"Date: Sun, 09 Sep 2001 01:46:40 GMT\r\nRetry-After: Sun, 09 Sep 2001 01:46:39 GMT", 0.0),
        (b"Retry-After: Tue, 14 Nov 2023 22:14:20 GMT", 60.0),  # no Date: by Redis's clock
        (b"Retry-After: soon", None),
        (b"Retry-After: -5", None),
        (b"Retry-After: 1.5", None),
        (b"Retry-After: \xb2", None),
        (b"Retry-After:", None),
        (b"Retry-After: Sun, 09 Sep 99999 01:46:40 GMT", None),
        (b"Date: Sun, 09 Sep 99999 01:46:40 GMT\r\nRetry-After: Sun, 09 Sep 2001 01:46:39 GMT", 0.0),
        (b"Retry-After: Sun, 09 Sep 2001 01:" + b"9" * 400, None),
        (b"Retry-After: Sun, 09 Sep 2001 " + b"9" * 20 + b":46:40 GMT", 999_999_999.0),
        (b"Retry-After: Tue, 14 Nov 2023 22:14:20" + b" " * 72 + b"GMT", 60.0),
        (b"Retry-After: Tue, 14 Nov 2023 22:14:20" + b" " * 73 + b"GMT", None),  # too long to be read as a date
        (b"X-Nothing: 1", None),
    ],
)
def test_retry_after(headers: bytes, seconds: float | None) -> None:
    with raw_server(b"HTTP/1.1 429 Too Many Requests\r\n" + headers + b"\r\nContent-Length: 0\r\n\r\n") as (url, _):
        sender = Sender(url)
        sender.clock.set(1_700_000_000_000)
        verdict = sender.once()
        assert verdict.status == 429
        by_the_clock = b"GMT" in headers and b"Date" not in headers
        assert verdict.retry_after == (pytest.approx(seconds, abs=20) if by_the_clock and seconds else seconds)
        sender.webhook.close()


# ---- the quick retries


@pytest.mark.parametrize(
    ("statuses", "result", "requests"),
    [
        ([200], Result.DELIVERED, 1),
        ([500, 500, 200], Result.DELIVERED, 3),
        ([404, 302, 200], Result.DELIVERED, 3),
        ([500, 500, 500, 200], Result.FAILED, 3),
        ([429, 429, 429, 200], Result.REJECTED, 3),
        ([410, 200], Result.REJECTED, 1),
        ([500, 410, 200], Result.REJECTED, 2),
    ],
)
def test_attempts(statuses: list[int], result: Result, requests: int) -> None:
    with Receiver(lambda _, before: Answer(statuses[before])) as receiver:
        sender = Sender(receiver.url, {"attempts": 1}, attempts=3)
        verdict = sender.deliver()
    assert verdict.result is result
    assert verdict.status == statuses[requests - 1]
    assert len(receiver.requests) == requests
    assert [told.status for told in sender.verdicts] == statuses[:requests]
    assert sender.verdicts[-1] == verdict


def test_no_answer_is_tried_again() -> None:
    with Receiver(lambda _, before: Answer(hang_up=before == 0)) as receiver:
        assert Sender(receiver.url).deliver().delivered
    assert len(receiver.requests) == 2


def test_there_is_a_back_off_between_attempts() -> None:
    """The waits are random, so their sum over many is checked."""
    with Receiver(lambda *_: Answer(500)) as receiver:
        settings = {"attempts": 20, "backoff_initial": "40ms", "backoff_max": "40ms"}
        Sender(receiver.url, settings).deliver()
    times = [request.at for request in receiver.requests]
    assert len(times) == 20
    assert times[-1] - times[0] > 0.1


def test_a_longer_retry_after_ends_the_hand_over() -> None:
    with Receiver(lambda *_: Answer(503, {"Retry-After": "2"})) as receiver:
        verdict = Sender(receiver.url, {"attempts": 3, "backoff_max": "1s"}).deliver()
    assert (verdict.status, verdict.retry_after) == (503, 2.0)
    assert len(receiver.requests) == 1


def test_a_shorter_retry_after_is_waited_for() -> None:
    with Receiver(lambda _, before: Answer(200 if before else 503, {} if before else {"Retry-After": "1"})) as receiver:
        assert Sender(receiver.url, {"backoff_max": "2s"}).deliver().delivered
    first, second = receiver.requests
    assert second.at - first.at >= 1.0


class Still(Clock):
    """A clock of Redis that does not move on."""

    def now_ms(self) -> int:
        return 1_700_000_059_875


def test_a_retry_after_of_exactly_the_longest_back_off_is_waited_for() -> None:
    """A date has no fraction of a second, but Redis's clock has one."""
    until = b"HTTP/1.1 503 Busy\r\nRetry-After: Tue, 14 Nov 2023 22:14:20 GMT\r\nContent-Length: 0\r\n\r\n"
    with raw_server(until, OK + b"Content-Length: 0\r\n\r\n") as (url, _):
        sender = Sender(url, {"backoff_max": "125ms"}, clock=Still())
        assert sender.deliver().delivered
        sender.webhook.close()
    assert [verdict.retry_after for verdict in sender.verdicts] == [0.125, None]


# ---- batches

BATCH = [MESSAGE, Message("evt_2", "reservation.expired", TRACE, BODY.replace(b"evt_1", b"evt_2"), "default:1-2")]


@pytest.mark.parametrize("messages", [BATCH, BATCH[:1]], ids=["two", "one"])
def test_a_batch_is_one_signed_request(messages: list[Message]) -> None:
    with Receiver() as receiver:
        sender = Sender(receiver.url, secrets=[WHSEC], batch_size=100)
        assert all(sender.deliver(*messages).delivered for _ in range(2))
    first, again = receiver.requests
    assert json.loads(first.body) == [json.loads(message.body) for message in messages]
    for request in (first, again):
        assert standardwebhooks.Webhook(WHSEC).verify(request.body, request.headers) == json.loads(first.body)
        assert request.headers["traceparent"].startswith(f"00-{TRACE}-")
        assert not [name for name in request.headers if name.startswith("X-Cycles-Event")]
    assert first.event_id == again.event_id
    assert len(sender.verdicts) == 2, "requests are counted, not events"


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_batch_is_not_sent_again_as_it_is(status: int) -> None:
    with Receiver(lambda *_: Answer(status)) as receiver:
        sender = Sender(receiver.url, {"attempts": 3}, batch_size=2)
        assert sender.deliver(*BATCH).content_refused
        assert len(receiver.requests) == 1
        assert sender.deliver(*BATCH[:1]).content_refused
        assert len(receiver.requests) == 4, "a single event is retried as ever"


def test_a_batch_that_fails_otherwise_is_retried() -> None:
    with Receiver(lambda _, before: Answer(500 if before < 2 else 200)) as receiver:
        assert Sender(receiver.url, {"attempts": 3}, batch_size=2).deliver(*BATCH).delivered
    assert len(receiver.requests) == 3


def test_cloud_events_have_their_own_content_type() -> None:
    with Receiver() as receiver:
        Sender(receiver.url, format="cloudevents").once()
        Sender(receiver.url, format="cloudevents", batch_size=2).deliver(*BATCH)
    types = [request.headers["Content-Type"] for request in receiver.requests]
    assert types == ["application/cloudevents+json", "application/cloudevents-batch+json"]


# ---- what is not logged

HUSH = "hush-hush"


def test_reasons_tell_no_url() -> None:
    with Receiver(lambda *_: Answer(hang_up=True)) as receiver, raw_server(b"nonsense\r\n") as (no_http, _):
        port = receiver.url.rpartition(":")[2].partition("/")[0]
        for url in (
            receiver.url,
            no_http,
            f"http://127.0.0.1:{free_port()}/",
            f"https://127.0.0.1:{port}/",
            "http://nosuchhost.invalid/",
            "http://[::1:80/".replace(":80", "]:1"),
        ):
            verdict = Sender(url.replace("//", f"//user:{HUSH}@") + f"?token={HUSH}").once()
            assert verdict.result is Result.FAILED
            assert verdict.reason
            assert not re.search(f"{HUSH}|http|user|127|nosuch|token|hook", verdict.reason.replace("HTTP ", "")), url


@pytest.mark.parametrize("place", ["endpoint", "environment"])
def test_a_proxy_that_repeats_its_password(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password lies across the border of what is kept of the proxy's words."""
    words = "x" * 68 + f" {HUSH}-{HUSH}"
    with raw_server(f"HTTP/1.1 407 {words}\r\n\r\n".encode()) as (url, _):
        proxy = url.replace("//", f"//user:{HUSH}-{HUSH}@")
        if place == "environment":
            monkeypatch.setenv("https_proxy", proxy)
        verdict = Sender("https://receiver.example/", proxy=proxy if place == "endpoint" else None).once()
    assert verdict.reason == f"the proxy: it answers 407 {'x' * 68} ***"


def test_a_proxy_of_the_environment_that_repeats_what_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    def echo(request: Request, _: int) -> Answer:
        return Answer(403, body=f"no: {request.headers['Proxy-Authorization']}".encode())

    with Receiver(echo) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", f"//user:{HUSH}@").removesuffix("/hook"))
        verdict = Sender("http://receiver.example/").once()
    assert verdict.answer == "no: Basic ***"


def test_a_secret_across_the_end_of_what_is_kept_is_hidden() -> None:
    """The body before it is all secrets, so that little is left of it, and its end is shown."""
    whole, rest = divmod(KEPT - 6, len(HUSH))
    body = b" " * rest + HUSH.encode() * whole + b" " + HUSH.encode() * 2
    with Receiver(lambda *_: Answer(500, body=body)) as receiver:
        verdict = Sender(receiver.url, headers={"X-Key": HUSH}).once()
    assert set(verdict.answer) <= set("*hus ")
    assert "hush" not in verdict.answer


def test_a_message_shows_no_body() -> None:
    assert repr(MESSAGE) == "Message(evt_1)"
    assert HUSH not in f"{Message('evt_2', 'x', TRACE, HUSH.encode())}"


# ---- for people


def test_an_exchange_tells_what_was_sent_and_what_came_back() -> None:
    with Receiver(lambda *_: Answer(503, {"X-Trouble": "disk"}, b"a" * KEPT + b"b")) as receiver:
        sender = Sender(receiver.url.replace("http://", "http://user:hush@"), headers={"X-Team": "ops"})
        exchange = sender.webhook.send_once(sender.request())
    (request,) = receiver.requests
    sent = {name.lower(): value for name, value in exchange.request_headers.items()}
    assert sent.items() <= {name.lower(): value for name, value in request.headers.items()}.items()
    assert sent["x-team"] == "ops"
    assert sent["authorization"].startswith("Basic ")
    assert exchange.response_headers["X-Trouble"] == "disk"
    assert exchange.response_body == b"a" * KEPT
    assert sender.verdicts == [exchange.outcome]
    assert (exchange.outcome.result, exchange.outcome.status) == (Result.FAILED, 503)
    assert "Basic" not in repr(exchange)


def test_the_body_that_is_kept_is_bounded_however_it_comes() -> None:
    pieces = b"".join(b"%x\r\n%b\r\n" % (1000, letter * 1000) for letter in (b"a", b"b", b"c", b"d", b"e", b"f"))
    with raw_server(OK + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n") as (url, _):
        sender = Sender(url)
        exchange = sender.webhook.send_once(sender.request())
        sender.webhook.close()
    assert exchange.response_body == b"a" * 1000 + b"b" * 1000 + b"c" * 1000 + b"d" * 1000 + b"e" * 96


def test_an_exchange_without_an_answer() -> None:
    sender = Sender(f"http://127.0.0.1:{free_port()}/")
    exchange = sender.webhook.send_once(sender.request())
    assert (exchange.outcome.reason, exchange.response_headers, exchange.response_body) == (
        "Connection refused",
        {},
        b"",
    )
    assert exchange.request_headers["webhook-id"] == "evt_1"
