"""Measures what Cycles' own event records cost: a daemon that writes them on expiry, beside one that does not."""

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import redis

from benchmarks.fill import TENANT, entry_id
from benchmarks.lab import WARM, Lab
from benchmarks.row import Goal, Row, Sample
from benchmarks.rows.beside import acknowledged_at, await_that, ends
from benchmarks.wire import Wire, encode
from sweeperd.config import RELAY
from sweeperd.store.keys import CyclesKeys, Keys
from tests.support.harness import daemon, environment

#: How many tenants, and how many subscriptions each of them has.
CASES = {"one": (1, 1), "four": (1, 4), "one_tenants": (1000, 1), "four_tenants": (1000, 4)}
#: How many events the raw client sends in one piece.
PIECE = 100
KEYS = CyclesKeys(b"")


class Ran(NamedTuple):
    """One daemon over all entries."""

    #: From the first expiry to the last one, and to the last acknowledgement, seconds.
    sweep: float
    last: float
    #: CPU time of Redis, µs for each entry.
    redis_micros: float


def measure(lab: Lab) -> Sample:
    """
    The sweep alone, then with records for one and for four subscriptions, of one tenant and of 1,000; and with the
    brake, beside a dispatcher that takes all that it finds.
    """
    entries = lab.size("entries", 20_000, 4_000)
    alone, _ = _run(lab, entries, 1, 0)
    ratios: dict[str, float] = {}
    figures = {"alone_seconds": alone.sweep, "alone_redis_us": alone.redis_micros}
    for name, (tenants, subscriptions) in CASES.items():
        ran, raw = _run(lab, entries, tenants, subscriptions)
        relayed = ran.redis_micros - alone.redis_micros
        ratios |= {name: alone.sweep / ran.last, f"{name}_redis": relayed / raw}
        ratios[f"{name}_sweep"] = alone.sweep / ran.sweep
        figures |= {f"{name}_seconds": ran.last, f"{name}_sweep_seconds": ran.sweep}
        figures |= {f"{name}_redis_us": relayed, f"{name}_raw_redis_us": raw}
    taken, _ = _run(lab, entries, 1, 1, taken=True)
    ratios["one_taken"] = alone.sweep / taken.last
    figures["one_taken_seconds"] = taken.last
    return Sample(ratios, figures)


def _run(lab: Lab, entries: int, tenants: int, subscriptions: int, *, taken: bool = False) -> tuple[Ran, float]:
    """
    Without subscriptions: no relay. `taken`: a dispatcher takes the deliveries, and the brake is on. Also the CPU time
    of Redis for the same records from a raw client, µs.
    """
    settings: dict[str, Any] = {"reconcile__interval": "", "sweep__max_lag": "1ms", "sweep__time_budget": "1h"}
    if subscriptions:
        settings |= {"cycles__enabled": "true"} | ({} if taken else {"cycles__dispatch_backlog": 0})
    with lab.overdue(entries) as server, redis.Redis.from_url(server.url) as client:
        _share_out(server.url, entries, tenants)
        _subscribe(client, tenants, subscriptions)
        if subscriptions:
            # The relay's group would begin before the entries that warmed Redis up.
            client.xgroup_create(Keys().events, RELAY.name, "$")
        before = _cpu_micros(client)
        with (
            _dispatcher(server.url) if taken else contextlib.nullcontext(),
            daemon(environment(server.url, **settings), lab.directory),
        ):
            await_that(lambda: client.xlen(Keys().events) >= WARM + entries)
            done = acknowledged_at(client) if subscriptions else 0.0
            used = _cpu_micros(client) - before
        first, last = ends(client)
        records = list(_records(client)) if subscriptions and not taken else []
    made = entries * (1 + subscriptions) if subscriptions and not taken else 0
    if len(records) != made:
        raise RuntimeError(f"{made} records were to be made, and there are {len(records)}")
    return Ran(last - first, done - first, used / entries), _raw(lab, records) / entries


@contextlib.contextmanager
def _dispatcher(url: str) -> Iterator[None]:
    """One that takes all that it finds in the list."""
    stop = threading.Event()

    def take() -> None:
        with redis.Redis.from_url(url) as client:
            while not stop.is_set():
                if not client.rpop(KEYS.dispatch.decode(), 1000):
                    stop.wait(0.001)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _share_out(url: str, entries: int, tenants: int) -> None:
    """Give the entries to this many tenants, one after the other."""
    if tenants > 1:
        with Wire(url, b":0\r\n") as wire:
            for first in range(0, entries, 1000):
                some = range(first, min(first + 1000, entries))
                rows = ((Keys().reservation(entry_id(number)), b"t%d" % (number % tenants)) for number in some)
                wire.send(b"".join(encode("HSET", key, "tenant", tenant) for key, tenant in rows))
                wire.await_replies(some.stop)


def _subscribe(client: "redis.Redis", tenants: int, subscriptions: int) -> None:
    pipeline = client.pipeline(transaction=False)
    for tenant, number in itertools.product(range(tenants), range(subscriptions)):
        name = f"t{tenant}" if tenants > 1 else TENANT
        record: dict[str, Any] = {"subscription_id": f"whsub_{name}_{number}", "tenant_id": name, "status": "ACTIVE"}
        record |= {"event_types": ["reservation.expired"], "url": "https://hooks.example.com/cycles"}
        pipeline.sadd(KEYS.subscriptions(name.encode()), record["subscription_id"])
        pipeline.set(KEYS.subscription(record["subscription_id"].encode()), json.dumps(record))
    pipeline.execute()


def _cpu_micros(client: "redis.Redis") -> float:
    used = client.info("cpu")
    return float((used["used_cpu_user"] + used["used_cpu_sys"]) * 1e6)


def _records(client: "redis.Redis") -> Iterator[bytes]:
    """The commands that write each record as a plain client would, an event before its deliveries."""
    events = client.zrange(KEYS.all_events.decode(), 0, -1, withscores=True)
    deliveries: dict[str, list[tuple[str, dict[str, str], bytes | str]]] = {}
    for piece in _pieces(client.lrange(KEYS.dispatch.decode(), 0, -1)):
        for delivery, text in zip(piece, client.mget([KEYS.delivery(each.decode()) for each in piece]), strict=True):
            about = json.loads(text or b"")
            deliveries.setdefault(about["event_id"], []).append((delivery.decode(), about, text or b""))
    for piece in _pieces(events):
        bodies = client.mget([KEYS.event(event.decode()) for event, _ in piece])
        for (event, at), body in zip(piece, bodies, strict=True):
            tenant, key = json.loads(body or b"")["tenant_id"].encode(), KEYS.event(event.decode())
            yield (
                encode("SET", key, body or b"", "EX", 7_776_000)
                + encode("ZADD", KEYS.events(tenant), int(at), event)
                + encode("ZADD", KEYS.all_events, int(at), event)
            )
            for name, about, text in deliveries[event.decode()]:
                yield (
                    encode("SET", KEYS.delivery(name), text, "EX", 1_209_600)
                    + encode("ZADD", KEYS.deliveries(about["subscription_id"]), int(at), name)
                    + encode("LPUSH", KEYS.dispatch, name)
                )


def _pieces(rows: Any) -> Iterator[Any]:
    return (rows[first : first + PIECE] for first in range(0, len(rows), PIECE))


def _raw(lab: Lab, records: list[bytes]) -> float:
    """CPU time of Redis for these commands, sent in pieces, µs."""
    if not records:
        return 0.0
    with lab.server() as server, redis.Redis.from_url(server.url) as client, Wire(server.url, b"+OK\r\n") as wire:
        before = _cpu_micros(client)
        for number, piece in enumerate(_pieces(records)):
            wire.send(b"".join(piece))
            wire.await_replies(number * PIECE + len(piece))
        return _cpu_micros(client) - before


ROW = Row(
    "relay",
    "a Cycles record for each of 20,000 expiries, and a delivery for each subscription",
    "the last expiry of the same daemon without records",
    {
        "one": Goal("at_least", 0.5, "last record, one subscription"),
        "four": Goal("at_least", 0.4, "last record, four subscriptions"),
        "one_tenants": Goal("at_least", 0.5, "last record, one subscription of each of 1,000 tenants"),
        "four_tenants": Goal("at_least", 0.4, "last record, four subscriptions of each of 1,000 tenants"),
        "one_sweep": Goal("at_least", 0.8, "last expiry, one subscription"),
        "four_sweep": Goal("at_least", 0.8, "last expiry, four subscriptions"),
        "one_redis": Goal("at_most", 2.2, "CPU time of Redis, one subscription", "the records from a raw client"),
        "four_redis": Goal("at_most", 1.6, "CPU time of Redis, four subscriptions", "the records from a raw client"),
    },
    measure,
)
