"""Names and addresses of receivers: dead addresses before a live one, slow name servers, and one deadline for all."""

import contextlib
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sweeperd.delivery import connect as module
from sweeperd.delivery.connect import OutOfTime, Resolver, connect_to
from sweeperd.delivery.http import Result
from tests.support.deliveries import Sender
from tests.support.harness import eventually
from tests.support.raw_server import listening
from tests.support.receiver import Receiver

pytestmark = pytest.mark.usefixtures("bare_environment")

Rows = list[tuple[Any, ...]]


def row(host: str, port: int) -> tuple[Any, ...]:
    return socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)


@contextlib.contextmanager
def black_holes(port: int, count: int) -> Iterator[list[str]]:
    """Addresses that swallow packets: listeners whose queue is full, so Linux drops what else comes."""
    with contextlib.ExitStack() as stack:
        hosts = [f"127.7.7.{number + 1}" for number in range(count)]
        for host in hosts:
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(0)
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    filler.connect((host, port))
        yield hosts


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[int], Rows]]:
    """What these names are resolved to, by the port; all other names as ever. The resolver is new."""
    known: dict[str, Callable[[int], Rows]] = {}
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return known[name](port) if name in known else real(host, port, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(module, "RESOLVER", Resolver())
    return known


def at(url: str, name: str) -> str:
    return url.replace("127.0.0.1", name)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


@pytest.mark.parametrize("dead", [1, 12])
def test_dead_addresses_before_a_live_one_cost_no_attempt(names: dict[str, Any], dead: int) -> None:
    with Receiver() as receiver, black_holes(port_of(receiver.url), dead) as hosts:
        names["many.test"] = lambda port: [row(host, port) for host in (*hosts, "127.0.0.1")]
        result = Sender(at(receiver.url, "many.test"), {"connect_timeout": "20s"}).once()
    assert result.delivered, "the first alone would take all of the time"
    assert result.seconds >= dead * module.STAGGER, "each has a moment before the next one is tried"


def test_the_addresses_share_a_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first ones would leave the last one none."""
    monkeypatch.setattr(module, "STAGGER", 60.0)
    with Receiver() as receiver:
        port = port_of(receiver.url)
        with black_holes(port, 1) as hosts:
            connect_to([row(host, port) for host in (*hosts, "127.0.0.1")], (), time.monotonic() + 2.4).close()


def test_an_address_that_refuses_leaves_one_that_is_waited_for_alone() -> None:
    with Receiver() as receiver:
        port = port_of(receiver.url)
        with black_holes(port, 1) as hosts:
            began = time.thread_time()
            with pytest.raises(OutOfTime, match="no connection in time"):
                connect_to([row(host, port) for host in (*hosts, "127.7.8.1")], (), time.monotonic() + 0.6)
            assert time.thread_time() - began < 0.1, "to wait takes no CPU time"


def test_no_socket_stays_open_but_the_one_that_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while an error, whose traceback has the sockets, is at hand."""
    opened: list[socket.socket] = []

    class Noted(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(self)

    with Receiver() as receiver:
        port = port_of(receiver.url)
        with black_holes(port, 1) as hosts:
            monkeypatch.setattr(module, "socket", types.SimpleNamespace(**vars(socket) | {"socket": Noted}))
            addresses = [row(host, port) for host in (*hosts, "127.7.8.1", "127.0.0.1")]
            with connect_to(addresses, (), time.monotonic() + 20) as connected:
                assert [each for each in opened if each.fileno() != -1] == [connected]
            with pytest.raises(OSError, match="Protocol not available"):
                connect_to(addresses[-1:], [(socket.SOL_SOCKET, -1, 1)], time.monotonic() + 20)
    assert len(opened) == 4
    assert all(each.fileno() == -1 for each in opened)


def test_addresses_that_refuse_are_passed_at_once(names: dict[str, Any]) -> None:
    with Receiver() as receiver:
        names["many.test"] = lambda port: (
            [row(f"127.7.8.{number + 1}", port) for number in range(20)] + [row("127.0.0.1", port)]
        )
        result = Sender(at(receiver.url, "many.test"), {"connect_timeout": "20s"}).once()
        names["none.test"] = lambda port: [row("127.7.8.1", port)]
        refused = Sender(at(receiver.url, "none.test")).once()
    assert result.delivered
    assert result.seconds < 15
    assert refused.reason == "Connection refused"


def test_a_connection_is_tried_for_no_longer_than_the_time_out(names: dict[str, Any]) -> None:
    with Receiver() as receiver, black_holes(port_of(receiver.url), 12) as hosts:
        names["dead.test"] = lambda port: [row(host, port) for host in hosts]
        result = Sender(at(receiver.url, "dead.test"), {"connect_timeout": "500ms", "timeout": "20s"}).once()
    assert (result.result, result.reason) == (Result.FAILED, "no connection in time")
    assert 0.5 <= result.seconds < 15


def test_the_families_take_turns_and_few_sockets_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def begin(address: Any, _options: Any) -> socket.socket:
        tried.append(address[4][0])
        raise OSError(111, "refused")

    monkeypatch.setattr(module, "_begin", begin)
    six = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", (f"::{number}", 1, 0, 0)) for number in range(3)]
    with pytest.raises(OSError, match="refused"):
        connect_to([*six, row("127.0.0.1", 1)], (), time.monotonic() + 5)
    assert tried == ["::0", "127.0.0.1", "::1", "::2"]
    tried.clear()
    with pytest.raises(OSError, match="refused"):
        connect_to([row("127.0.0.1", 1)] * 1000, (), time.monotonic() + 5)
    assert len(tried) == module.MOST_ADDRESSES


# ---- name servers


def test_a_slow_name_server_fails_the_attempt_in_time_and_the_next_one_has_its_answer(names: dict[str, Any]) -> None:
    answers = threading.Event()

    def late(port: int) -> Rows:
        answers.wait(20)
        return [row("127.0.0.1", port)]

    names["late.test"] = late
    with Receiver() as receiver:
        sender = Sender(at(receiver.url, "late.test"), {"connect_timeout": "300ms", "timeout": "20s"})
        for _ in range(3):
            result = sender.once()
            assert (result.result, result.reason) == (Result.FAILED, "the host's name was not resolved in time")
            assert result.seconds < 15
        assert sum(thread.name == "resolve" for thread in threading.enumerate()) == 1, "the attempts share a lookup"
        answers.set()
        eventually(lambda: not any(thread.name == "resolve" for thread in threading.enumerate()))
        names["late.test"] = lambda _: pytest.fail("the late answer is kept")
        assert sender.once().delivered


def test_lookups_that_are_stuck_leave_other_names_alone(names: dict[str, Any]) -> None:
    answers = threading.Event()
    resolver = Resolver(most=2)
    names["stuck.test"] = lambda port: [row("127.0.0.1", port)] * answers.wait(20)
    names["quick.test"] = lambda port: [row("127.0.0.2", port)]

    def soon() -> float:
        return time.monotonic() + 0.1

    try:
        for port in (1, 2):
            with pytest.raises(OutOfTime):
                resolver.resolve("stuck.test", port, soon())
            if port == 1:
                assert resolver.resolve("quick.test", 1, soon() + 5) == [row("127.0.0.2", 1)]
        assert resolver.resolve("127.0.0.3", 1, soon())[0][4] == ("127.0.0.3", 1), "an address needs no lookup"
        with pytest.raises(OutOfTime, match="2 other lookups"):
            resolver.resolve("quick.test", 1, soon())
    finally:
        answers.set()
    assert resolver.resolve("quick.test", 1, soon() + 5) == [row("127.0.0.2", 1)]


def test_a_late_answer_is_kept_for_a_minute_and_a_timely_one_not_at_all(names: dict[str, Any]) -> None:
    asked: list[int] = []
    may_answer = threading.Event()

    def answer(port: int) -> Rows:
        asked.append(port)
        may_answer.wait(20)
        return [row("127.0.0.1", port)]

    def resolve(seconds: float = 20) -> None:
        resolver.resolve("some.test", 1, time.monotonic() + seconds)

    names["some.test"] = answer
    resolver = Resolver()
    may_answer.set()
    resolve()
    resolve()
    assert len(asked) == 2
    may_answer.clear()
    with pytest.raises(OutOfTime):
        resolve(0.05)
    may_answer.set()
    eventually(lambda: not resolver._running)
    resolve()
    assert len(asked) == 3
    (late,) = resolver._lookups.values()
    late.ended_at -= module.LATE_RESULT_KEPT
    resolve()
    assert len(asked) == 4


def test_a_name_that_does_not_exist_is_asked_for_anew() -> None:
    resolver = Resolver()
    for _ in range(2):
        with pytest.raises(socket.gaierror):
            resolver.resolve("nosuchhost.invalid", 1, time.monotonic() + 20)
    assert not resolver._lookups


# ---- the phases


def hang(connection: socket.socket) -> None:
    """Say nothing until the other side ends the connection."""
    while connection.recv(65536):
        pass


QUICK: dict[str, object] = {"connect_timeout": "1s", "timeout": "1s"}


def test_a_handshake_that_hangs_is_named() -> None:
    with listening(hang) as url:
        result = Sender(url.replace("http:", "https:"), QUICK).once()
    assert (result.result, result.reason) == (Result.FAILED, "TLS: no handshake in time")


def test_a_proxy_that_hangs_is_named() -> None:
    with listening(hang) as url:
        result = Sender("https://receiver.example/", QUICK, proxy=url.removesuffix("/hook")).once()
    assert (result.result, result.reason) == (Result.FAILED, "the proxy: no answer in time")


def test_the_handshake_shares_the_time_of_connecting(names: dict[str, Any]) -> None:
    """Resolving takes most of it, so little is left."""

    def slow(port: int) -> Rows:
        time.sleep(0.5)
        return [row("127.0.0.1", port)]

    names["slow.test"] = slow
    with listening(hang) as url:
        settings: dict[str, object] = {"connect_timeout": "1s", "timeout": "20s"}
        result = Sender(at(url, "slow.test").replace("http:", "https:"), settings).once()
    assert result.reason == "TLS: no handshake in time"
    assert 0.9 < result.seconds < 15
