"""What `--once`, `status`, the status page and `check` say of a Redis that is full."""

from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.store.memory import memory_use
from tests.integration.cli.test_schemas import check
from tests.integration.conftest import Ran, Sweeperd
from tests.support.harness import reserve
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.servers import Server

BATCH = 10
DEADLINE = 1_700_000_000_000


class Full:
    """A server of its own with overdue entries of two kinds, and the commands on it."""

    def __init__(self, server: Server, run: Sweeperd, config: Path) -> None:
        self.server, self._run, self.config = server, run, config
        self.client: Any = redis.Redis.from_url(server.url, protocol=2)
        config.write_text(SEAT_HOLD + f"[sweep]\nbatch_size = {BATCH}\n")
        self.client.hset("seats:hamlet", mapping={"free": 0, "held": 10_000})

    def fill(self, reservations: int, holds: int) -> None:
        reserve(self.client, [f"r{number}" for number in range(reservations)])
        for number in range(holds):
            hold_seats(self.client, f"h{number}", 1, DEADLINE)

    def use(self, percent: int) -> None:
        self.client.config_set("maxmemory", 0)
        used = memory_use(self.client.info("memory")).used
        self.client.config_set("maxmemory", used * 100 // percent)

    def run(self, *arguments: str) -> Ran:
        return self._run(*arguments, url=self.server.url, SWEEPERD_CONFIG=str(self.config))

    def shard(self) -> dict[str, Any]:
        document = self.run("status", "--json").document
        check("status", document)
        return dict(document["shards"][0])

    def memory(self) -> dict[str, Any]:
        document = self.run("check", "--json").document
        (found,) = (each for each in document["checks"] if each["check"] == "memory")
        return dict(found)


@pytest.fixture
def full(own_server: Server, sweeperd: Sweeperd, tmp_path: Path) -> Full:
    return Full(own_server, sweeperd, tmp_path / "config.toml")


def test_once_decides_one_batch_of_each_kind_and_says_what_is_left(full: Full) -> None:
    full.fill(25, 12)
    full.use(130)
    ran = full.run("--once", "--json")
    check("once", ran.document)
    assert (ran.code, ran.document["expired"], ran.document["deferred"]) == (1, 2 * BATCH, 17)
    assert ran.document["candidates"] == 37
    assert "reservations: 15 overdue entries left" in ran.err
    assert '"message": "expiries are deferred, because Redis is full"' in ran.err
    assert "seat-hold: 2 overdue entries left" in ran.err
    assert (full.client.zcard("reservation:ttl"), full.client.zcard("seats:ttl")) == (15, 2)
    assert full.client.xlen("sweeperd:events") == 2 * BATCH
    full.client.config_set("maxmemory", 0)
    again = full.run("--once", "--json")
    assert (again.code, again.document["expired"], again.document["deferred"]) == (0, 17, 0)


def memory(ran: Ran) -> str:
    """What the text of `status` says of the memory of its one shard."""
    (row,) = [table.splitlines()[1] for table in ran.out.split("\n\n") if "\tmemory\n" in table]
    return row.split("\t")[-1]


def test_the_status_names_the_full_redis_and_what_waits(full: Full) -> None:
    full.fill(25, 12)
    full.use(134)
    full.run("--once", "--json")
    shard = full.shard()
    limit = full.client.info("memory")["maxmemory"]
    assert (shard["memory"]["limit_bytes"], shard["memory"]["used_bytes"] > limit, shard["deferred"]) == (
        limit,
        True,
        17,
    )
    assert [kind["deferred"] for kind in shard["kinds"]] == [15, 2]
    text = full.run("status")
    assert text.code == 0
    assert memory(text).endswith(" %")
    assert int(memory(text).split()[0]) > 110
    assert "17 expiries wait" in text.err
    assert "sweeperd check" in text.err


def test_the_status_warns_before_redis_is_full(full: Full) -> None:
    full.run("status")  # its scripts need memory too
    full.use(90)
    assert "refuses new reservations at 100 %" in full.run("status").err
    full.use(50)
    assert "maxmemory" not in full.run("status").err


def test_without_a_maxmemory_the_status_shows_what_is_used(full: Full) -> None:
    assert full.shard()["memory"]["limit_bytes"] is None
    assert memory(full.run("status")).endswith(" MiB")


def test_check_reckons_what_the_backlog_needs(full: Full) -> None:
    full.use(50)
    assert full.memory()["level"] == "ok"
    full.client.config_set("maxmemory", 0)
    full.client.zadd("reservation:ttl", {f"r{number}": DEADLINE for number in range(50_000)})
    full.client.zadd("seats:ttl", {f"h{number}": DEADLINE for number in range(10_000)})
    full.use(80)
    found = full.memory()
    assert (found["level"], "60,000 due entries need 12 MiB" in found["says"]) == ("warning", True)
    full.client.config_set("maxmemory", 0)
    assert (full.memory()["level"], "12 MiB" in full.memory()["says"]) == ("ok", True)
