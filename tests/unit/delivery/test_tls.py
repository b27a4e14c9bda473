"""TLS to real receivers, straight and through a real proxy: what is verified, and what the reason says."""

import datetime
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sweeperd.delivery.http import DeliveryResult, Result, Transport
from tests.support.authority import LONG_AGO, Authority
from tests.support.deliveries import MESSAGE, Sender
from tests.support.forward_proxy import ForwardProxy
from tests.support.raw_server import listening
from tests.support.receiver import Answer, Receiver
from tests.support.servers import free_port

pytestmark = pytest.mark.usefixtures("bare_environment")

QUICK: dict[str, object] = {"timeout": "300ms", "connect_timeout": "300ms"}
UNTRUSTED = "TLS: the receiver's certificate is not signed by a CA that is trusted here"
DEMANDED = "TLS: the receiver demands a client certificate"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def failure(result: DeliveryResult) -> str:
    assert (result.result, result.status) == (Result.FAILED, None)
    return result.reason


def test_a_ca_of_its_own(authority: Authority) -> None:
    with Receiver(tls=authority.server()) as receiver:
        sender = Sender(receiver.url, ca=authority.ca())
        assert all(sender.once().delivered for _ in range(2))
        assert failure(Sender(receiver.url).once()) == UNTRUSTED
    assert len(receiver.requests) == 2


def test_the_ca_of_the_endpoint_is_the_only_one(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    with Receiver(tls=authority.server()) as receiver:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", authority.ca())
        assert Sender(receiver.url).once().delivered
        assert failure(Sender(receiver.url, ca=other.ca()).once()) == UNTRUSTED


def test_a_directory_of_cas(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL finds a CA in it by the name of the file: the hash of the CA's subject."""
    command = ["openssl", "x509", "-hash", "-noout", "-in", authority.ca()]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    full, empty = tmp_path / "full", tmp_path / "empty"
    for directory in (full, empty):
        directory.mkdir()
    shutil.copy(authority.ca(), full / f"{name}.0")
    with Receiver(tls=authority.server()) as receiver:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(full))
        assert Sender(receiver.url).once().delivered
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(empty))
        assert failure(Sender(receiver.url).once()) == UNTRUSTED


def test_a_bundle_that_is_not_there_is_a_failure_of_the_request(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/bundle.pem")
    with Receiver(tls=authority.server()) as receiver:
        assert failure(Sender(receiver.url).once()) == "No such file or directory"


def test_an_expired_certificate(authority: Authority) -> None:
    with Receiver(tls=authority.server(expired=True)) as receiver:
        reason = failure(Sender(receiver.url, ca=authority.ca()).once())
    assert reason == "TLS: the receiver's certificate has expired"


def test_a_certificate_for_another_host(authority: Authority) -> None:
    with Receiver(tls=authority.server("receiver.example")) as receiver:
        reason = failure(Sender(receiver.url, ca=authority.ca()).once())
    assert reason == "TLS: the receiver's certificate is for another host name"


def test_a_receiver_that_demands_a_client_certificate(authority: Authority) -> None:
    cert, key = authority.client()
    with Receiver(tls=authority.server(demands=True)) as receiver:
        assert Sender(receiver.url, ca=authority.ca(), client_cert=cert, client_key=key).once().delivered
        assert [failure(Sender(receiver.url, ca=authority.ca()).once()) for _ in range(5)] == [DEMANDED] * 5
    assert len(receiver.requests) == 1


def test_a_long_body_to_a_receiver_that_demands_a_client_certificate(authority: Authority) -> None:
    """It closes the connection while the body is being sent."""
    large = MESSAGE._replace(body=b"[" + b"1," * 2_000_000 + b"1]")
    with Receiver(tls=authority.server(demands=True)) as receiver:
        sender = Sender(receiver.url, ca=authority.ca())
        reasons = {failure(sender.deliver(large, attempts=1)) for _ in range(5)}
    assert reasons == {DEMANDED}


@contextmanager
def tls_listening(authority: Authority, serve: Callable[[ssl.SSLSocket], None]) -> Iterator[Sender]:
    """A server as `listening`, but with TLS. Yields a sender to it."""
    context = authority.server()
    with listening(lambda connection: serve(context.wrap_socket(connection, server_side=True))) as url:
        yield Sender(url.replace("http://127.0.0.1", "https://localhost"), ca=authority.ca())


def test_a_receiver_may_answer_before_it_has_read_all_and_close(authority: Authority) -> None:
    """Otherwise a 413 would not make the next batch smaller."""
    large = MESSAGE._replace(body=b"[" + b"1," * 2_000_000 + b"1]")

    def serve(connection: ssl.SSLSocket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the answer is sent before the reset
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\n\r\n")
        connection.close()

    with tls_listening(authority, serve) as sender:
        assert {sender.deliver(large, attempts=1).reason for _ in range(3)} == {"HTTP 413"}


def test_the_rest_of_a_record_is_not_the_next_response(authority: Authority) -> None:
    """It has left the socket, so the socket has nothing to say."""
    junk = b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n" * 400

    def serve(connection: ssl.SSLSocket) -> None:
        while connection.recv(65536):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" + junk)

    with tls_listening(authority, serve) as sender:
        assert [sender.once().reason for _ in range(3)] == ["HTTP 200"] * 3


def test_an_older_tls_that_demands_a_client_certificate(authority: Authority) -> None:
    context = authority.server(demands=True)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Receiver(tls=context) as receiver:
        reason = failure(Sender(receiver.url, ca=authority.ca()).once())
    assert reason == "TLS: the receiver ends the handshake; it may demand a client certificate"


def test_a_client_certificate_of_another_ca(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    cert, key = Authority(tmp_path / "other").client()
    with Receiver(tls=authority.server(demands=True)) as receiver:
        reason = failure(Sender(receiver.url, ca=authority.ca(), client_cert=cert, client_key=key).once())
    assert reason == "TLS: the receiver does not trust the CA of the client certificate"


def test_an_expired_client_certificate(authority: Authority) -> None:
    cert, key = authority.client(not_after=LONG_AGO + datetime.timedelta(days=1))
    with Receiver(tls=authority.server(demands=True)) as receiver:
        reason = failure(Sender(receiver.url, ca=authority.ca(), client_cert=cert, client_key=key).once())
    assert reason == "TLS: the receiver says that the client certificate has expired"


# ---- proxies


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tunnel"])
def test_a_proxy_of_its_own(tls: bool, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes before the environment's, and NO_PROXY is about the environment's."""
    trust: dict[str, Any] = {"ca": authority.ca()} if tls else {}
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    with Receiver(tls=authority.server() if tls else None) as receiver, ForwardProxy("user:p@ss") as proxy:
        sender = Sender(receiver.url, proxy=proxy.url("user:p%40ss"), **trust)
        assert all(sender.once().delivered for _ in range(3))
        assert len(proxy.passed) == (1 if tls else 3), "a tunnel is used again"
    assert len(receiver.requests) == 3
    assert "Proxy-Authorization" not in receiver.requests[0].headers


def test_a_client_certificate_through_a_proxy(authority: Authority) -> None:
    cert, key = authority.client()
    with Receiver(tls=authority.server(demands=True)) as receiver, ForwardProxy() as proxy:
        trust: dict[str, Any] = {"ca": authority.ca(), "proxy": proxy.url()}
        assert Sender(receiver.url, client_cert=cert, client_key=key, **trust).once().delivered
        assert failure(Sender(receiver.url, **trust).once()) == DEMANDED
        assert failure(Sender(receiver.url, proxy=proxy.url()).once()) == UNTRUSTED


def test_a_tunnel_that_the_proxy_refuses(authority: Authority) -> None:
    with Receiver(tls=authority.server()) as receiver, ForwardProxy("user:password") as proxy:
        reason = failure(Sender(receiver.url, ca=authority.ca(), proxy=proxy.url("user:guess")).once())
    assert reason == "the proxy: it answers 407 Proxy Authentication Required"


def test_a_plain_request_that_the_proxy_refuses_is_no_fault_of_the_event() -> None:
    with Receiver() as receiver, ForwardProxy("user:password") as proxy:
        result = Sender(receiver.url, proxy=proxy.url("user:guess")).once()
    assert (result.status, result.refused) == (407, False)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there(scheme: str) -> None:
    sender = Sender(f"{scheme}://receiver.example/hook", proxy=f"http://127.0.0.1:{free_port()}")
    assert failure(sender.once()) == "the proxy: Connection refused"


@contextmanager
def silent() -> Iterator[str]:
    """A proxy that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []
        threading.Thread(target=lambda: connections.append(listener.accept()[0]), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(("scheme", "settings"), [("http", QUICK), ("https", QUICK | {"timeout": "60s"})])
def test_a_silent_proxy_is_held_to_the_deadline(scheme: str, settings: dict[str, object]) -> None:
    """To ask for a tunnel is a part of connecting."""
    with silent() as url:
        sender = Sender(f"{scheme}://receiver.example/hook", settings, proxy=url)
        result = sender.once()
    assert failure(result) in ("no answer in time", "the proxy: no answer in time", "the proxy: no connection in time")
    assert result.seconds < 30


def test_a_handshake_that_drips_through_a_proxy_with_tls_is_held_to_the_deadline(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a TLS record, one by one."""

    def serve(connection: ssl.SSLSocket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for byte in b"\x16\x03\x03\x20\x00" + bytes(300):
            connection.sendall(bytes([byte]))
            time.sleep(0.1)

    monkeypatch.setenv("SSL_CERT_FILE", authority.ca())
    with tls_listening(authority, serve) as proxy:
        monkeypatch.setenv("https_proxy", proxy.endpoint.url.get_secret_value().removesuffix("/hook"))
        result = Sender("https://receiver.example/hook", QUICK).once()
    assert failure(result) == "TLS: no handshake in time"
    assert result.seconds < 15


def test_a_slow_handshake_through_a_proxy_is_held_to_the_deadline(authority: Authority) -> None:
    """The receiver never speaks: the tunnel is there, and the handshake has the rest of the time."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ForwardProxy() as proxy:
        url = f"https://localhost:{listener.getsockname()[1]}/hook"
        result = Sender(url, QUICK, proxy=proxy.url()).once()
    assert "in time" in failure(result)
    assert result.seconds < 30


def test_the_handshake_through_a_proxy_has_what_the_proxy_left_of_the_time(authority: Authority) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        time.sleep(0.2)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        authority.server().wrap_socket(connection, server_side=True).recv(1)

    with listening(serve) as url:
        sender = Sender("https://localhost/hook", ca=authority.ca(), proxy=url.removesuffix("/hook"))
        with closing(Transport(sender.endpoint, {}, 1, 20.0, 20.0).connect()) as connection:
            assert 0 < connection.sock.gettimeout() <= 20 - 0.2


def test_an_answer_through_a_tunnel_is_read_to_the_end(authority: Authority) -> None:
    with Receiver(lambda *_: Answer(503, body=b"x" * 10_000), tls=authority.server()) as receiver:
        with ForwardProxy() as proxy:
            sender = Sender(receiver.url, ca=authority.ca(), proxy=proxy.url())
            assert {sender.once().status for _ in range(3)} == {503}
            assert len(proxy.passed) == 1
