"""A TLS handshake with a real receiver, straight and through a real proxy, and what it says of the certificate."""

import datetime
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

import pytest

from sweeperd.config import EndpointSettings
from sweeperd.delivery import handshake
from sweeperd.delivery.handshake import certificate_expiry, first_stop
from sweeperd.delivery.http import begin_exchange
from tests.support.authority import Authority
from tests.support.deliveries import Sender
from tests.support.forward_proxy import ForwardProxy
from tests.support.raw_server import listening, raw_server
from tests.support.receiver import Receiver

pytestmark = pytest.mark.usefixtures("bare_environment")

UNTRUSTED = "TLS: the receiver's certificate is not signed by a CA that is trusted here"


@pytest.fixture(autouse=True)
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CAs but those that a test names."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def expiry(url: str, timeout: float = 10.0, **endpoint: object) -> datetime.datetime:
    settings = EndpointSettings.model_validate({"name": "billing", "url": url, **endpoint})
    return datetime.datetime.fromtimestamp(certificate_expiry(settings, timeout), datetime.UTC)


def test_the_receivers_certificate_and_not_the_clients_is_read(authority: Authority) -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=20)
    cert, key = authority.client(not_after=soon)
    with Receiver(tls=authority.server(demands=True)) as receiver:
        assert expiry(receiver.url, ca=authority.ca(), client_cert=cert, client_key=key).year >= 3000
        with pytest.raises(ConnectionError, match="the receiver demands a client certificate"):
            expiry(receiver.url, ca=authority.ca())
    assert not receiver.requests


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_environment_names_the_cas_as_for_deliveries(
    variable: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver(tls=authority.server()) as receiver:
        with pytest.raises(ConnectionError) as refused:
            expiry(receiver.url)
        assert str(refused.value) == UNTRUSTED
        monkeypatch.setenv(variable, authority.ca())
        assert expiry(receiver.url).year >= 3000


@pytest.mark.parametrize("credentials", ["user:p@ss", "user:"])
def test_through_a_proxy(credentials: str, authority: Authority) -> None:
    with Receiver(tls=authority.server()) as receiver, ForwardProxy(credentials) as proxy:
        assert expiry(receiver.url, ca=authority.ca(), proxy=proxy.url(credentials.replace("@", "%40"))).year >= 3000
        assert len(proxy.passed) == 1
        with pytest.raises(ConnectionError, match="407 Proxy Authentication Required"):
            expiry(receiver.url, ca=authority.ca(), proxy=proxy.url())


def test_a_proxy_without_credentials(authority: Authority) -> None:
    with Receiver(tls=authority.server()) as receiver, ForwardProxy() as proxy:
        assert expiry(receiver.url, ca=authority.ca(), proxy=proxy.url()).year >= 3000
        assert len(proxy.passed) == 1


def test_the_environment_names_the_proxy_as_for_deliveries(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = EndpointSettings.model_validate({"name": "billing", "url": "https://receiver.invalid/"})
    with Receiver(tls=authority.server()) as receiver, ForwardProxy("user:p@ss") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url("user:p%40ss"))
        assert expiry(receiver.url, ca=authority.ca()).year >= 3000
        assert len(proxy.passed) == 1
        assert first_stop(endpoint) == ("127.0.0.1", int(proxy.url().rpartition(":")[2]), True)
        monkeypatch.setenv("NO_PROXY", "localhost,receiver.invalid")
        assert expiry(receiver.url, ca=authority.ca()).year >= 3000
        assert len(proxy.passed) == 1, "straight"
        assert first_stop(endpoint) == ("receiver.invalid", 443, False)


@pytest.mark.parametrize(
    ("proxy", "port"), [("http://proxy.example", 80), ("https://proxy.example", 443), ("proxy.example:3128", 3128)]
)
def test_a_proxy_has_the_port_of_its_scheme_if_it_names_none(
    proxy: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = EndpointSettings.model_validate({"name": "billing", "url": "https://receiver.invalid/"})
    monkeypatch.setenv("ALL_PROXY", proxy)
    assert first_stop(endpoint) == ("proxy.example", port, True)


@pytest.mark.parametrize("there", [True, False])
def test_a_socks_proxy_needs_a_package(there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = EndpointSettings.model_validate({"name": "billing", "url": "https://receiver.invalid/"})
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy.example")
    if there:
        (tmp_path / "socks.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        assert first_stop(endpoint) == ("proxy.example", 1080, True)
    else:
        monkeypatch.setitem(sys.modules, "socks", None)
        with pytest.raises(
            ConnectionError, match=r"the proxy in \$ALL_PROXY cannot be used: it needs the package PySocks"
        ):
            first_stop(endpoint)


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize(
    "value", ["http://", "http://:hush@", "proxy.example:hush", "gopher://proxy.example", "http://[::1"]
)
def test_a_proxy_variable_that_cannot_be_used_is_named(
    value: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAME", value)
    monkeypatch.setenv("no_proxy", "elsewhere.example")
    monkeypatch.setenv(variable, value)
    endpoint = EndpointSettings.model_validate({"name": "billing", "url": "https://receiver.invalid/"})
    with pytest.raises(ConnectionError) as refused:
        first_stop(endpoint)
    reasons = [str(refused.value), Sender("https://receiver.invalid/").once().reason]
    with pytest.raises(ConnectionError) as refused:
        certificate_expiry(endpoint, 5)
    reasons.append(str(refused.value))
    assert all(reason.startswith(f"the proxy in ${variable} cannot be used: ") for reason in reasons)
    assert "hush" not in str(reasons)


def test_a_receiver_that_has_nothing_against_the_client_is_not_waited_for(authority: Authority) -> None:
    """It says nothing after the handshake, as receivers do; the wait for a refusal is a short one of its own."""
    with Receiver(tls=authority.server()) as receiver:
        started = time.monotonic()
        assert expiry(receiver.url, timeout=handshake.REFUSAL_WAIT * 60, ca=authority.ca()).year >= 3000
        assert time.monotonic() - started < handshake.REFUSAL_WAIT * 40


def test_the_connection_is_closed_where_the_receiver_refuses_the_client(authority: Authority) -> None:
    """Also while the error is still at hand."""
    left = []

    def refuse(listener: socket.socket) -> None:
        """The server's side: it says why it refuses, and then reads to the end of the connection."""
        secured = authority.server(demands=True).wrap_socket(
            listener.accept()[0], server_side=True, do_handshake_on_connect=False
        )
        with pytest.raises(ssl.SSLError):
            secured.do_handshake()
        with socket.socket(fileno=secured.detach()) as connection:
            connection.settimeout(10)
            while received := connection.recv(1024):
                left.append(received)
            left.append(b"the end")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=refuse, args=(listener,), daemon=True)
        server.start()
        with pytest.raises(ConnectionError) as refused:
            expiry(f"https://localhost:{listener.getsockname()[1]}/", ca=authority.ca())
        server.join()
    assert str(refused.value) == "TLS: the receiver demands a client certificate"
    assert left[-1:] == [b"the end"]


def test_the_connection_is_closed_where_the_proxy_speaks_no_http() -> None:
    """Also while the error is still at hand."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        try:
            connection.sendall(b"220 mail.example.com ready\r\n")
            while connection.recv(65536):
                pass
        finally:
            ended.set()

    with listening(serve) as url, pytest.raises(ConnectionError) as refused:
        expiry("https://receiver.example/", proxy=url.removesuffix("/hook"))
    assert ended.wait(10)
    assert refused.value.__cause__ is not None


def test_a_handshake_has_its_own_time(authority: Authority) -> None:
    """Not what an earlier exchange of the same thread has left."""
    begin_exchange(0.0)
    with Receiver(tls=authority.server()) as receiver:
        assert expiry(receiver.url, ca=authority.ca()).year >= 3000


def test_a_proxy_that_repeats_its_password() -> None:
    with raw_server(b"HTTP/1.1 407 no, not hush%2Fhush\r\n\r\n") as (url, _):
        proxy = url.replace("//", "//user:hush%2Fhush@")
        endpoint = EndpointSettings.model_validate({"name": "a", "url": "https://receiver.example/", "proxy": proxy})
        with pytest.raises(ConnectionError) as caught:
            certificate_expiry(endpoint, 5)
    assert str(caught.value) == "it answers 407 no, not ***"
