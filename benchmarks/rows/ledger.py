"""Measures what the ledger's client costs: reserve and commit, beside the same scripts over raw sockets."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from statistics import quantiles

import redis

from benchmarks.fill import SCOPES, TENANT, UNIT
from benchmarks.lab import Lab
from benchmarks.process import apart
from benchmarks.row import Goal, Row, Sample
from benchmarks.wire import Wire, encode_calls
from sweeperd.config import RedisSettings
from sweeperd.ledger import Ledger
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: How many clients call at the same time, each one call after the other.
CLIENTS = (32, 200)
TTL = timedelta(minutes=1)
#: What each of the scripts' replies holds once.
OK = b"$2\r\nok\r\n"

#: One call of a client, without its result.
Step = Callable[[], object]


@dataclass(frozen=True)
class Calls:
    """What a run came to: pairs of reserve and commit a second, and the 99th percentile of one call, ms."""

    pairs_per_second: float
    p99_ms: float


def by_client(url: str, clients: int, pairs: int) -> Calls:
    """This many threads share a Ledger; each makes its part of the pairs."""
    shard = Shard(RedisSettings.model_validate({"url": url}), connections=clients)
    with Ledger(shard, new_id=_own_id) as ledger:
        return _together([_steps(ledger, _names(number, pairs // clients)) for number in range(clients)])


def by_socket(url: str, clients: int, pairs: int) -> Calls:
    """The same calls, encoded beforehand, each client a thread with a bare socket."""
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(url, OK)) for _ in range(clients)]
        calls = [_encoded(_names(number, pairs // clients)) for number in range(clients)]
        return _together(
            [
                [partial(_exchange, wire, data, count) for count, data in enumerate(of_client, 1)]
                for wire, of_client in zip(wires, calls, strict=True)
            ]
        )


def _together(clients: Sequence[Sequence[Step]]) -> Calls:
    """Have each client take its steps one after the other, all clients at the same time."""
    seconds: list[float] = []
    start = threading.Barrier(len(clients) + 1)

    def work(steps: Sequence[Step]) -> None:
        spent = []
        start.wait()
        for step in steps:
            began = time.perf_counter()
            step()
            spent.append(time.perf_counter() - began)
        seconds.extend(spent)

    threads = [threading.Thread(target=work, args=(steps,)) for steps in clients]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return Calls(len(seconds) / 2 / (time.perf_counter() - began), quantiles(seconds, n=100)[98] * 1000)


def _names(client: int, pairs: int) -> list[bytes]:
    """The ids of a client's reservations, which are its idempotency keys too."""
    return [b"bench-%d-%d" % (client, number) for number in range(pairs)]


_wanted = threading.local()


def _own_id() -> bytes:
    """The id of the reservation that this thread is about to make."""
    name: bytes = _wanted.name
    return name


def _reserve(ledger: Ledger, name: bytes) -> None:
    _wanted.name = name
    ledger.reserve(TENANT, SCOPES, UNIT, 1, ttl=TTL, idempotency_key=name)


def _steps(ledger: Ledger, names: Sequence[bytes]) -> list[Step]:
    return [
        step
        for name in names
        for step in (
            partial(_reserve, ledger, name),
            partial(ledger.commit, TENANT, name, 1, idempotency_key=name),
        )
    ]


class _Recorded(Script):
    """Keeps each call, encoded, and runs none."""

    def __init__(self, name: str, calls: list[bytes]) -> None:
        super().__init__(name)
        self._calls = calls

    def run(self, _client: "redis.Redis", call: Call) -> list[object]:
        self._calls.append(encode_calls(self, [call]))
        times = b'"at":0,"created_at":0,"expires_at":0'
        answer = b'{"reservation_id":"","unit":"","charged":0,"debt":0,"balances":[],"missing":[],%b}' % times
        return [b"ok", answer, call.args[0]]


def _encoded(names: Sequence[bytes]) -> list[bytes]:
    """The calls of these reservations as the ledger makes them, a reserve and its commit in turn."""
    calls: list[bytes] = []
    ledger = Ledger(Shard(RedisSettings()), new_id=_own_id)
    for name in ("reserve", "commit"):
        ledger.scripts[name] = _Recorded(f"ledger/{name}", calls)
    for step in _steps(ledger, names):
        step()
    return calls


def _exchange(wire: Wire, data: bytes, count: int) -> None:
    """Send a call; its reply is the wire's reply number `count`."""
    wire.send(data)
    wire.await_replies(count)


def measure(lab: Lab) -> Sample:
    """Both ways with each number of clients, on a fresh server each."""
    pairs = lab.size("pairs", 10_000, 2_000)
    ratios: dict[str, float] = {}
    figures: dict[str, float] = {}
    for clients in CLIENTS:
        ours, limit = (_run(lab, run, clients, pairs) for run in (by_client, by_socket))
        ratios[f"at_{clients}"] = ours.pairs_per_second / limit.pairs_per_second
        figures |= {
            f"pairs_per_second_at_{clients}": ours.pairs_per_second,
            f"p99_ms_at_{clients}": ours.p99_ms,
            f"limit_pairs_per_second_at_{clients}": limit.pairs_per_second,
            f"limit_p99_ms_at_{clients}": limit.p99_ms,
        }
    return Sample(ratios, figures)


def _run(lab: Lab, run: Callable[[str, int, int], Calls], clients: int, pairs: int) -> Calls:
    with lab.server() as server:
        with Ledger.from_url(server.url) as ledger, redis.Redis.from_url(server.url) as client:
            client.flushall()
            for scope in SCOPES:
                ledger.open_budget(scope, UNIT, 10**12)
            for name in ("reserve", "commit"):
                client.script_load(ledger.scripts[name].source)
        return apart(run, server.url, clients, pairs)


ROW = Row(
    "ledger",
    "pairs of reserve and commit a second, four scopes, threads that share one Ledger",
    "the same scripts over raw sockets, requests encoded beforehand, as many threads",
    {"at_32": Goal("at_least", 0.2, what="32 clients"), "at_200": Goal("at_least", 0.2, what="200 clients")},
    measure,
)
