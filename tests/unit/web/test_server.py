"""The HTTP port: what it answers, with which headers, and that no client can exhaust it."""

import contextlib
import errno
import http.client
import json
import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sweeperd.config import HttpSettings
from sweeperd.metrics import Metrics
from sweeperd.web.bounded import CONNECTIONS, THREADS, QuietHandler
from sweeperd.web.server import ENTRY_PAGES, Lookup, WebServer
from tests.support.harness import eventually

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Reports:
    """Counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False

    def __call__(self) -> dict[str, Any]:
        self.asked += 1
        if self.fails:
            raise RuntimeError("a bug")
        return {"asked": self.asked}


@pytest.fixture
def reports() -> Reports:
    return Reports()


def served(listen: str, *hosts: str, entries: bool = False) -> HttpSettings:
    return HttpSettings.model_validate({"listen": listen, "hosts": hosts, "entries": entries})


@contextlib.contextmanager
def serving(reports: Reports) -> Iterator[int]:
    with serving_as(reports) as server:
        yield server.port


@contextlib.contextmanager
def serving_as(
    reports: Reports,
    handler: type[QuietHandler] = QuietHandler,
    host: str = "127.0.0.1",
    lookup: Lookup = lambda page, asked: {"page": page} | dict(asked),
) -> Iterator[WebServer]:
    class Ours(WebServer):
        pass

    Ours.handler = handler
    metrics = Metrics()
    metrics.sweep.announce("eu", "reservations", [], [])
    ours = Ours(
        served(f"{host}:0", "sweeperd", "page.example.com"),
        metrics,
        lambda: (True, "ok"),
        lambda: (False, "no sweep yet"),
        reports,
        lookup=lookup,
    )
    ours.start()
    yield ours
    ours.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(Reports()) as number:
        yield number


@pytest.fixture
def own_port(reports: Reports) -> Iterator[int]:
    """Of a server that asks `reports`."""
    with serving(reports) as number:
        yield number


def ask(
    port: int, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/", 200, "text/html; charset=utf-8"),
        ("/status.json", 200, "application/json"),
        ("/.well-known/jwks.json", 200, "application/jwk-set+json"),
        ("/healthz", 200, "text/plain; charset=utf-8"),
        ("/readyz", 503, "text/plain; charset=utf-8"),
        ("/elsewhere", 404, "text/plain; charset=utf-8"),
        ("/status.json/..", 404, "text/plain; charset=utf-8"),
    ],
)
def test_what_is_there(port: int, path: str, status: int, kind: str) -> None:
    answer = ask(port, path)
    assert (answer[0], answer[1]["Content-Type"]) == (status, kind)
    assert answer[1].items() >= HEADERS.items()
    assert int(answer[1]["Content-Length"]) == len(answer[2]) > 0


def test_the_page_may_not_be_framed_nor_run_anything_else(port: int) -> None:
    headers = ask(port, "/")[1]
    assert headers["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_metrics_are_there(port: int) -> None:
    status, _, body = ask(port, "/metrics")
    assert status == 200
    assert b"sweeperd_sweeps_total" in body


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/healthz", "/elsewhere"])
def test_it_is_read_only(port: int, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        status, headers, _ = ask(port, path, method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/healthz", "/readyz", "/elsewhere"])
def test_a_head_is_answered_as_a_get_without_its_body(port: int, path: str) -> None:
    status, headers, _ = ask(port, path)
    answer = ask(port, path, "HEAD")
    assert (answer[0], answer[1]["Content-Type"], answer[2]) == (status, headers["Content-Type"], b"")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.1.2.3:9464",
        "[::1]:9464",
        "[fe80::1]",
        "localhost",
        "LOCALHOST:80",
        "sweeperd",
        "Sweeperd.:9464",
        "sweeperd.prod.svc:9464",
        "sweeperd.prod.svc.cluster.local",
        "Sweeperd.Prod.Svc.Cluster.Local.:9464",
        "page.example.com",
    ],
)
def test_an_address_localhost_and_configured_names_are_served(port: int, host: str) -> None:
    assert ask(port, "/status.json", headers={"Host": host})[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9464",
        "sweeperd.evil.example",
        "127.0.0.1.evil.example",
        "",
        # May be a public domain, which somebody points to an address in here.
        "sweeperd.prod",
        "sweeperd.dev:9464",
        "other.prod.svc",
        "localhost.prod.svc",
        "sweeperd..svc",
        "sweeperd.a.b.svc",
        "sweeperd.svc",
        "sweeperd.prod.svc.evil.example",
        "page.example.com.svc",
        "page.example.com.prod.svc",
    ],
)
def test_another_name_is_refused(port: int, host: str) -> None:
    for path in ("/", "/status.json", "/metrics", "/healthz", "/elsewhere"):
        status, _, body = ask(port, path, headers={"Host": host})
        assert (status, b"http.hosts" in body, b"asked" in body) == (421, True, False), path


def test_names_change_with_a_reload(reports: Reports) -> None:
    with serving_as(reports) as server:
        assert ask(server.port, "/", headers={"Host": "status.internal"})[0] == 421
        server.allow(served("", "status.internal"))
        assert ask(server.port, "/", headers={"Host": "status.internal"})[0] == 200
        assert ask(server.port, "/", headers={"Host": "sweeperd"})[0] == 421


# ---- the pages about entries


class From(QuietHandler):
    """The client's address is what the request says in a header of the test."""

    def get_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environ()
        return environ | {"REMOTE_ADDR": environ.get("HTTP_TEST_CLIENT", environ["REMOTE_ADDR"])}


@pytest.mark.parametrize("page", ENTRY_PAGES)
def test_a_page_about_entries_and_its_document(port: int, page: str) -> None:
    status, headers, body = ask(port, f"/{page}?q=%3Cb%3E")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "script-src 'sha256-" in headers["Content-Security-Policy"]
    assert b"<b>" not in body
    status, headers, body = ask(port, f"/{page}.json?q=%3Cb%3E&id=a%00%FF&before=")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == {"page": page, "q": "<b>", "id": "a\0\udcff", "before": ""}
    assert HEADERS.items() <= headers.items()
    assert ask(port, f"/{page}.json", "HEAD")[2] == b""
    assert ask(port, f"/{page}.json", "POST")[0] == 405
    assert ask(port, f"/{page}.json", headers={"Host": "evil.example.com"})[0] == 421, "a name that leads here"


def test_a_question_without_a_meaning(reports: Reports) -> None:
    def lookup(page: str, asked: Mapping[str, str]) -> dict[str, Any]:
        raise {"search": ValueError("nothing is asked for"), "entry": TimeoutError("ask again")}[page]

    with serving_as(reports, lookup=lookup) as server:
        assert ask(server.port, "/search.json")[::2] == (400, b"nothing is asked for\n")
        status, headers, body = ask(server.port, "/entry.json")
        assert (status, headers["Retry-After"], body) == (503, "5", b"ask again\n")
    with serving_as(reports) as server:
        assert ask(server.port, f"/search.json?q={'x' * 9000}")[0] == 414
        assert ask(server.port, f"/search.json?{'q=x&' * 30}")[0] == 400


#: Headers of a request, and whether its client is taken for one on this host.
CLIENTS: list[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"Test-Client": "::1"}, True),
    ({"Test-Client": "::ffff:127.0.0.1"}, True),
    ({"Test-Client": "127.8.9.1", "Host": "[::1]:9464"}, True),
    ({"Host": "LOCALHOST.:80"}, True),
    ({"Test-Client": "10.1.2.3"}, False),
    ({"Test-Client": "fe80::1%eth0"}, False),
    ({"Test-Client": "::ffff:10.1.2.3"}, False),
    ({"Test-Client": ""}, False),
    # A header opens nothing, and who comes through a proxy is not on this host.
    ({"Test-Client": "10.1.2.3", "X-Forwarded-For": "127.0.0.1", "Host": "localhost"}, False),
    ({"X-Forwarded-For": "127.0.0.1"}, False),
    ({"X-Forwarded-Host": "localhost"}, False),
    ({"Forwarded": "for=127.0.0.1"}, False),
    ({"Via": "1.1 proxy"}, False),
    ({"X-Real-IP": "127.0.0.1"}, False),
    # Names and addresses that somebody else can be at.
    ({"Host": "page.example.com"}, False),
    ({"Host": "sweeperd.prod.svc"}, False),
    ({"Host": "10.1.2.3:9464"}, False),
    ({"Host": "0.0.0.0:9464"}, False),
]


def test_only_loopback_clients_see_entries(reports: Reports) -> None:
    asked = list[str]()
    paths = ["/search", "/search.json?q=a", "/entry.json?id=a", "/dead-letters", "/quarantine.json"]

    def lookup(page: str, _: Mapping[str, str]) -> dict[str, Any]:
        asked.append(page)
        return {}

    with serving_as(reports, From, lookup=lookup) as server:
        for headers, local in CLIENTS:
            asked.clear()
            status = 200 if local else 403
            for path in paths:
                found, _, body = ask(server.port, path, headers=headers)
                assert (found, b"http.entries" in body) == (status, not local), (path, headers)
            assert asked == (["search", "entry", "quarantine"] if local else [])
            assert ask(server.port, "/status.json", headers=headers)[0] == 200, "the status page is for all"
            server.allow(served("", "sweeperd", "page.example.com", entries=True))
            assert [ask(server.port, path, headers=headers)[0] for path in paths] == [200] * len(paths)
            server.allow(served("", "sweeperd", "page.example.com"))
            assert [ask(server.port, path, headers=headers)[0] for path in paths] == [status] * len(paths)


def test_a_client_on_this_host_is_local_on_a_server_of_every_address(reports: Reports) -> None:
    """As through `kubectl port-forward`: such a server sees 127.0.0.1 as an address of IPv6."""
    with serving_as(reports, host="") as server:
        assert ask(server.port, "/search")[0] == 200


def test_another_site_makes_no_browser_search(reports: Reports) -> None:
    with serving_as(reports) as server:
        for entries in (True, False):
            server.allow(served("", entries=entries))
            for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
                assert ask(server.port, "/search.json?q=a", headers={"Sec-Fetch-Site": site})[0] == status, site
                assert ask(server.port, "/search?q=a", headers={"Sec-Fetch-Site": site})[0] == 200, "a link to the page"


def test_many_who_look_cost_one_report(reports: Reports) -> None:
    with serving_as(reports) as server:
        server.fresh = 3600
        assert {json.loads(ask(server.port, "/status.json")[2])["asked"] for _ in range(20)} == {1}
        server.fresh = 0
        assert json.loads(ask(server.port, "/status.json")[2]) == {"asked": 2}


def test_a_bug_in_the_report_is_logged_and_takes_nothing_else_down(
    own_port: int, reports: Reports, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    reports.fails = True
    with caplog.at_level(logging.ERROR):
        assert ask(own_port, "/status.json")[0] == 500
    assert [(record.message, record.__dict__["path"]) for record in caplog.records] == [
        ("a request failed", "/status.json")
    ]
    reports.fails = False
    assert ask(own_port, "/status.json")[0] == 200
    assert capfd.readouterr().err == ""


def serving_threads() -> int:
    return sum("process_request" in thread.name for thread in threading.enumerate())


def test_who_is_slow_on_purpose_keeps_nobody_out(port: int) -> None:
    before = serving_threads()
    with contextlib.ExitStack() as stack:
        slow = []
        for _ in range(3 * CONNECTIONS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            # Those that are cut off already do not take it any more.
            with contextlib.suppress(OSError):
                client.sendall(b"GET / HTTP/1.1\r\n")
            slow.append(client)
            assert serving_threads() <= before + THREADS
        for path in ("/metrics", "/healthz", "/"):
            assert eventually(lambda asked=path: answered(port, asked))
        # The oldest were cut off, the newest are still waited for.
        with contextlib.suppress(ConnectionError):
            assert slow[0].recv(1) == b""
        slow[-1].sendall(b"\r\n")
        assert slow[-1].recv(12) == b"HTTP/1.0 200"
    eventually(lambda: serving_threads() <= before)


def test_a_connection_above_the_bound_gets_no_thread(reports: Reports) -> None:
    held = threading.Event()

    class Stubborn(QuietHandler):
        """Does not end although the connection was cut off: the worst that a slow client can do."""

        def handle(self) -> None:
            if not held.is_set():
                held.wait(20)
            else:
                super().handle()

    with serving_as(reports, Stubborn) as server:
        above_the_bound(server.port, held)


def above_the_bound(port: int, held: threading.Event) -> None:
    before = serving_threads()
    with contextlib.ExitStack() as stack:
        stack.callback(held.set)
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(THREADS + 5)
        ]
        # The server closes what is above the bound at once, without a word.
        assert [client.recv(1) for client in clients[THREADS:]] == [b""] * 5
        assert serving_threads() == before + THREADS
    assert eventually(lambda: serving_threads() <= before)
    assert eventually(lambda: answered(port, "/healthz"))


def answered(port: int, path: str) -> bool:
    try:
        return ask(port, path)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_who_says_nothing_is_left(reports: Reports) -> None:
    class Impatient(QuietHandler):
        timeout = 0.2

    with (
        serving_as(reports, Impatient) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as client,
    ):
        assert client.recv(1) == b""


def answers(host: str, port: int) -> bool:
    """Whether a scrape at this address is answered."""
    client = http.client.HTTPConnection(host, port, timeout=10)
    try:
        client.request("GET", "/metrics")
        return client.getresponse().status == 200
    except OSError:
        return False
    finally:
        client.close()


def test_no_host_means_every_address_of_both_families() -> None:
    with serving_as(Reports(), host="") as server:
        assert answers("127.0.0.1", server.port)
        assert answers("::1", server.port)


def test_no_host_means_ipv4_alone_if_the_system_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "AF_INET6", socket.AF_X25)  # no Linux of today has this family
    with serving_as(Reports(), host="") as server:
        assert answers("127.0.0.1", server.port)
        assert not answers("::1", server.port)


def test_a_port_that_is_taken_is_no_reason_to_serve_one_family_alone() -> None:
    with serving_as(Reports(), host="") as server, pytest.raises(OSError, match="in use"):
        WebServer(served(f":{server.port}"), Metrics(), lambda: (True, ""), lambda: (True, ""), dict)


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_the_address_is_not_looked_up(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer delayed the start by seconds."""
    asked: list[object] = []
    for name in ("getfqdn", "gethostbyaddr", "getnameinfo"):
        monkeypatch.setattr(socket, name, asked.append)
    with serving_as(Reports(), host=host) as server:
        assert answers("127.0.0.1", server.port)
    assert asked == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_without_a_file_for_a_connection_it_waits_and_says_so(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sweeperd.web.bounded")
    accept = socketserver.TCPServer.get_request
    refusals: list[float] = []
    full = True

    def refuse(server: socketserver.TCPServer) -> Any:
        if full:
            refusals.append(time.monotonic())
            raise OSError(number, os.strerror(number))
        return accept(server)

    monkeypatch.setattr(socketserver.TCPServer, "get_request", refuse)
    with serving_as(Reports()) as server, ThreadPoolExecutor(1) as other:
        answer = other.submit(answers, "127.0.0.1", server.port)
        eventually(lambda: len(refusals) >= 3)
        assert refusals[2] - refusals[0] > 0.1, "it spins"
        full = False
        assert answer.result()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert os.strerror(number) in caplog.records[0].getMessage()
