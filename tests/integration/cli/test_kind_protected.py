"""What the commands say of entries that `unless` protects, and the gauges of the daemon."""

from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.config import load
from sweeperd.metrics import Metrics
from sweeperd.store import Shard
from tests.integration.cli.conftest import Configured
from tests.integration.cli.test_schemas import check
from tests.integration.conftest import Sweeperd
from tests.integration.runtime.test_kind_sweep import kind_sweep_of
from tests.support.harness import server_time
from tests.support.servers import Server

OFFERS = """
[[kinds]]
name = "offer"
index = "offers:ttl"
key = "offers:{id}"
deadline = "expires_at"
active = { state = "OPEN" }
ended = { state = "LAPSED" }
unless = "EXISTS paying:{id}"
unless_max = "1d"
"""
PROTECTED = "sweeperd:protected:offer"
HOUR = 3_600_000


class Offers(Configured):
    """Offers whose deadline has passed, and whose payment runs."""

    def add(self, entry: str, ago_ms: int) -> None:
        deadline = server_time(self.client) - ago_ms
        self.client.hset(f"offers:{entry}", mapping={"state": "OPEN", "expires_at": deadline})
        self.client.zadd("offers:ttl", {entry: deadline})
        self.client.set(f"paying:{entry}", 1)

    def status(self) -> dict[str, Any]:
        document = self.run("status", "--json").document
        check("status", document)
        (row,) = [each for each in document["shards"][0]["kinds"] if each["kind"] == "offer"]
        return dict(row)


@pytest.fixture
def offers(server: Server, client: redis.Redis, sweeperd: Sweeperd, tmp_path: Path) -> Offers:
    return Offers(client, sweeperd, tmp_path / "config.toml", server.url, OFFERS)


def test_what_is_protected_is_shown_and_counted(offers: Offers) -> None:
    offers.add("o1", HOUR)
    shown = offers.run("show", "o1", "--kind", "offer", "--json").document["shards"][0]["sweep"]
    assert (shown["outcome"], shown["detail"]) == ("not_due", "protected")
    assert "`unless`" in shown["why"]
    assert [write[:2] for write in shown["writes"]] == [
        ["ZREM", "offers:ttl"],
        ["ZADD", "offers:ttl"],
        ["ZADD", PROTECTED],
    ]
    offers.add("o2", 60_000)
    offers.sweep()
    row = offers.status()
    assert (row["due"], row["protected"], row["quarantined"]) == (0, 2, 0)
    assert 3600 <= row["oldest_protected_seconds"] < 3700
    assert "\tprotected\t" in offers.run("status").out
    assert offers.run("reconcile", "--kind", "offer").code == 0, "the score may be later than the deadline"
    offers.client.delete("paying:o1", "paying:o2")
    shown = offers.run("show", "o1", "--kind", "offer", "--json").document["shards"][0]["sweep"]
    assert (shown["outcome"], "no longer" in shown["why"]) == ("expired", True)
    offers.client.zadd("offers:ttl", {"o1": 1, "o2": 1})
    offers.sweep()
    assert not offers.client.exists(PROTECTED, "offers:ttl")
    assert offers.status()["protected"] == 0


def test_what_was_protected_for_too_long_is_put_back_when_it_is_free(offers: Offers) -> None:
    offers.add("o1", 25 * HOUR)
    offers.sweep()
    requeue = ["quarantine", "requeue", "--kind", "offer", "--reason", "PROTECTED_TOO_LONG", "--yes"]
    stays = offers.run(*requeue)
    assert (stays.code, "PROTECTED_TOO_LONG" in stays.out) == (1, True)
    offers.client.delete("paying:o1")
    assert offers.run(*requeue).code == 0
    offers.sweep()
    assert offers.client.hget("offers:o1", "state") == b"LAPSED"


def test_the_gauges_forget_what_its_service_has_ended(offers: Offers, shard: Shard) -> None:
    metrics = Metrics()
    sweep = kind_sweep_of(shard, load(offers.config, {"SWEEPERD_REDIS__URL": offers.url}), metrics, "offer")

    def gauges() -> list[float | None]:
        sweep.tick()
        sweep.measure()
        names = ("sweeperd_protected_entries", "sweeperd_oldest_protected_seconds")
        labels = {"shard": "default", "kind": "offer"}
        return [metrics.registry.get_sample_value(name, labels) for name in names]

    assert gauges() == [0, 0]
    for number in range(3):
        offers.add(f"o{number}", (number + 1) * HOUR)
    count, oldest = gauges()
    assert (count, oldest is not None and 3 * 3600 <= oldest < 3 * 3600 + 60) == (3, True)
    offers.client.zrem("offers:ttl", "o2")
    offers.client.hset("offers:o2", "state", "TAKEN")
    count, oldest = gauges()
    assert (count, oldest is not None and oldest < 2 * 3600 + 60) == (2, True)
    assert offers.client.zcard(PROTECTED) == 2
