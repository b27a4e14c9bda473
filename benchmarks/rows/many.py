"""Measures work without a request: events that no endpoint wants, and events that are given up."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from benchmarks.events import add_events
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample
from sweeperd.config import RedisSettings
from sweeperd.outbox import ConsumerGroups
from sweeperd.store.embedded import Server
from sweeperd.store.keys import Keys
from sweeperd.store.shard import Shard
from sweeperd.store.streams import last_id
from tests.support.harness import daemon, environment, eventually
from tests.support.servers import free_port

ENDPOINTS = 16
#: No event of the benchmark has this tenant.
OTHER = "another-tenant"
#: How many unwanted events a second come beside a wanted one, in pieces, and how often a wanted one comes, seconds.
UNWANTED_RATE, PIECE, WANTED_EVERY = 1_000, 50, 0.5
#: The longest that one part may take, seconds.
LIMIT = 300.0


def measure(lab: Lab) -> Sample:
    """One run of each part, each with its own server and process."""
    passed, wanted, given_up = _passed(lab), _beside_unwanted(lab), _given_up(lab)
    figures = {
        "passed_per_second": passed,
        "slowest_wanted_seconds": wanted,
        "given_up_per_second": given_up,
    }
    return Sample(dict(figures), figures)


def _passed(lab: Lab) -> float:
    """How many group-events a second pass 16 endpoints that want none of them."""
    events = lab.size("unwanted_events", 50_000, 2_000)
    endpoints = [_endpoint(f"hook-{number}", tenants=[OTHER]) for number in range(ENDPOINTS)]
    with lab.server() as server, _behind(lab, server, endpoints, events) as backlog:
        began = time.monotonic()
        backlog.rewind()
        eventually(backlog.settled, LIMIT, 0.02)
        return ENDPOINTS * events / (time.monotonic() - began)


def _beside_unwanted(lab: Lab) -> float:
    """How long the slowest wanted event takes beside UNWANTED_RATE unwanted ones a second, seconds."""
    count = lab.size("wanted_events", 20, 4)
    with lab.server() as server, Receiver(0.0) as receiver:
        env = environment(server.url, endpoints=[_endpoint("hook", receiver.url, tenants=[OTHER])], role="deliver")
        with daemon(env, lab.directory) as running, redis.Redis.from_url(server.url) as client:
            eventually(lambda: running.get("/readyz")[0] == 200, LIMIT)
            slowest = 0.0
            receiver.begin()
            for number in range(1, count + 1):
                _unwanted(client, WANTED_EVERY)
                sent = time.monotonic()
                client.xadd(Keys().events, {"id": f"wanted {number}", "tenant": OTHER})
                eventually(lambda number=number: receiver.tally().requests >= number, LIMIT, 0.005)
                slowest = max(slowest, time.monotonic() - sent)
            assert running.terminate() == 0
    return slowest


def _unwanted(client: redis.Redis, seconds: float) -> None:
    """Add unwanted events at their rate, for so long."""
    pieces, began = int(UNWANTED_RATE * seconds / PIECE), time.monotonic()
    for piece in range(pieces):
        with client.pipeline(transaction=False) as pipeline:
            for _ in range(PIECE):
                pipeline.xadd(Keys().events, {"id": "unwanted", "tenant": "acme"})
            pipeline.execute()
        time.sleep(max(0.0, began + (piece + 1) * seconds / pieces - time.monotonic()))


def _given_up(lab: Lab) -> float:
    """How many events a second are given up whose endpoint is dead."""
    events = lab.size("dead_events", 30_000, 2_000)
    dead = _endpoint("hook", f"http://127.0.0.1:{free_port()}/")
    waits = dict.fromkeys(("redelivery_initial", "redelivery_max"), "1s")
    settings = {f"webhooks__{name}": value for name, value in (waits | {"max_age": "2s", "attempts": "1"}).items()}
    with lab.server() as server, _behind(lab, server, [dead], events, **settings) as backlog:
        client, letters = backlog.shard.client, backlog.shard.keys.dead_letters
        time.sleep(3)  # now all of them are too old
        backlog.rewind()
        first: int = eventually(lambda: client.xlen(letters), LIMIT, 0.01)
        began = time.monotonic()
        eventually(lambda: client.xlen(letters) >= events, LIMIT, 0.02)
        return (events - first) / (time.monotonic() - began)


@dataclass(frozen=True)
class Backlog:
    """A backlog that the running daemon has not seen: its groups begin after it."""

    shard: Shard
    groups: list[str]
    before: bytes

    def rewind(self) -> None:
        """Set the groups back, and add an event that tells of it."""
        for group in self.groups:
            self.shard.client.xgroup_setid(self.shard.keys.events, group, self.before)
        self.shard.client.xadd(self.shard.keys.events, {"id": "last", "tenant": "acme"})

    def settled(self) -> bool:
        """Whether the groups have acknowledged all events."""
        last = last_id(self.shard.client, self.shard.keys.events)
        found: Any = self.shard.client.xinfo_groups(self.shard.keys.events)
        return all(group["last-delivered-id"] == last and not group["pending"] for group in found)


@contextlib.contextmanager
def _behind(
    lab: Lab, server: Server, endpoints: list[dict[str, Any]], events: int, **settings: object
) -> Iterator[Backlog]:
    """A daemon with these endpoints, and a backlog for them, while the block lasts."""
    shard = Shard(RedisSettings.model_validate({"url": server.url}))
    with contextlib.closing(shard):
        shard.read_clock()
        before = last_id(shard.client, shard.keys.events)
        add_events(server.url, events, first=shard.client.xlen(shard.keys.events))
        names = [str(endpoint["name"]) for endpoint in endpoints]
        for name in names:
            ConsumerGroups(shard, "benchmark").ensure(name)
        env = environment(server.url, endpoints=endpoints, role="deliver", **settings)
        with daemon(env, lab.directory) as running:
            eventually(lambda: running.get("/readyz")[0] == 200, LIMIT)
            yield Backlog(shard, names, before)
            assert running.terminate() == 0


def _endpoint(name: str, url: str = "http://127.0.0.1:1/", **settings: Any) -> dict[str, Any]:
    return {"name": name, "url": url} | settings


ROW = Row(
    "many",
    "events that need no request: unwanted by 16 endpoints, beside a wanted one, and given up",
    "",
    {
        "passed_per_second": Goal("at_least", 50_000, "unwanted events a second, summed over 16 endpoints"),
        "slowest_wanted_seconds": Goal("at_most", 1.0, "slowest wanted event beside 1,000 unwanted a second, seconds"),
        "given_up_per_second": Goal("at_least", 5_000, "events of a dead endpoint given up a second"),
    },
    measure,
)
