"""Sweeps one kind next to a lease that never expires."""

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.metrics import Metrics
from sweeperd.runtime.schedule import Complete, Signal, Tick
from sweeperd.runtime.sweeps import KindSweep
from sweeperd.store import Shard
from sweeperd.store.lease import holder, process_name
from sweeperd.sweep import kinds_of
from tests.support.builders import reservations_kind
from tests.support.harness import eventually, reserve

LEASE = "sweeperd:lease:sweep"
WARNING = "the lease is held, but its holder does not sweep: sweeping without the lease; delete its key"


def settings_of(time_budget: str = "30s") -> Settings:
    return Settings.model_validate({"sweep": {"lease_ttl": "1s", "time_budget": time_budget}})


def sweep_of(shard: Shard, settings: Settings, metrics: Metrics) -> KindSweep:
    kind = reservations_kind(shard.keys, settings.sweep)
    return KindSweep(ShardContext(settings, shard, metrics, threading.Event(), 1), kind)


def kind_sweep_of(shard: Shard, settings: Settings, metrics: Metrics, name: str) -> KindSweep:
    """The sweep of a configured kind."""
    kind = kinds_of(settings, shard)[name]
    return KindSweep(ShardContext(settings, shard, metrics, threading.Event(), 1), kind)


def sweeps(metrics: Metrics, result: str) -> float:
    labels = {"shard": "default", "result": result}
    found = [
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "sweeperd_sweeps_total" and labels.items() <= sample.labels.items()
    ]
    return sum(found)


def hold_for_ever(client: redis.Redis) -> None:
    client.set(LEASE, "somebody-1-0123456789abcdef")


def hold_a_list(client: redis.Redis) -> None:
    client.rpush(LEASE, "no lease")


def after(seconds: float) -> Tick:
    """A tick over the whole index, by a process that has not had the lease for this long."""
    return Tick(stood_by=seconds)


@pytest.mark.parametrize("hold", [hold_for_ever, hold_a_list])
def test_a_lease_that_never_runs_out_stops_no_sweep(
    hold: Callable[[redis.Redis], None], client: redis.Redis, shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    hold(client)
    reserve(client, ["overdue"])
    metrics = Metrics()
    sweep = sweep_of(shard, settings_of(), metrics)
    with caplog.at_level(logging.WARNING):
        assert sweep.run(after(3.9)) is Signal.STOOD_BY
        assert (sweeps(metrics, "standby"), client.zcard("reservation:ttl")) == (1, 1)
        outcome = sweep.run(after(4.0))
        assert isinstance(outcome, Complete)
        assert (outcome.alone, outcome.noted, client.zcard("reservation:ttl")) == (True, True, 0)
        assert isinstance(sweep.run(after(5.0)), Complete), "the note of this sweep is its own, so it goes on"
    assert sweeps(metrics, "ok") == 2
    assert [record.message for record in caplog.records if record.message == WARNING] == [WARNING]
    client.delete(LEASE)
    sweep.run()
    assert sweeps(metrics, "ok") == 3
    assert holder(shard, "sweep") == ""


@pytest.mark.parametrize("same_host_and_pid", [False, True])
def test_a_holder_that_notes_its_sweeps_is_waited_for(
    client: redis.Redis, shard: Shard, same_host_and_pid: bool
) -> None:
    by = f"{socket.gethostname()}-{os.getpid()}-000000" if same_host_and_pid else "somebody-1"
    assert same_host_and_pid == (by.rpartition("-")[0] == process_name().rpartition("-")[0])
    hold_for_ever(client)
    sweep = sweep_of(shard, settings_of(), Metrics())
    note: dict[Any, Any] = {"at": shard.read_clock() - 3000, "by": by, "seconds": 1, "complete": 1}
    client.hset("sweeperd:ticks", mapping={**note, "expired": 0, "earlier_at": 0, "earlier_expired": 0})
    assert sweep.run(after(3600)) is Signal.STOOD_BY
    client.hset("sweeperd:ticks", "at", shard.read_clock() - 4000)
    assert isinstance(sweep.run(after(3600)), Complete), "its last sweep is too old"


def test_a_note_from_the_future_is_no_sweep(client: redis.Redis, shard: Shard) -> None:
    """The sweeping process died, then Redis's clock was set back by an hour: the lease lasts for an hour more."""
    client.set(LEASE, "somebody-1-0123456789abcdef", px=3_600_000)
    note: dict[Any, Any] = {"at": shard.read_clock() + 3_600_000, "by": "somebody-1", "seconds": 1, "complete": 1}
    client.hset("sweeperd:ticks", mapping={**note, "expired": 0, "earlier_at": 0, "earlier_expired": 0})
    assert isinstance(sweep_of(shard, settings_of(time_budget="1s"), Metrics()).run(after(5)), Complete)


def test_a_lease_that_is_renewed_has_its_time_budget_as_well(client: redis.Redis, shard: Shard) -> None:
    sweep = sweep_of(shard, settings_of(time_budget="2s"), Metrics())
    client.set(LEASE, "somebody-1-0123456789abcdef", px=60_000)
    assert sweep.run(after(5.9)) is Signal.STOOD_BY
    assert isinstance(sweep.run(after(6.0)), Complete)


def test_the_lease_of_another_type_is_nobodys(client: redis.Redis, shard: Shard) -> None:
    hold_a_list(client)
    assert holder(shard, "sweep") == ""


def asked(client: redis.Redis) -> tuple[int, int]:
    """How many commands the server has run but for INFO, those of scripts among them, and how often it has read."""
    stats: dict[str, Any] = client.info("commandstats")
    commands = sum(row["calls"] for name, row in stats.items() if name != "cmdstat_info")
    return commands, client.info("stats")["total_reads_processed"]


def test_an_idle_tick_asks_little(client: redis.Redis, shard: Shard) -> None:
    reserve(client, ["later"], overdue_by=-3_600_000)
    metrics = Metrics()
    sweep = sweep_of(shard, Settings(), metrics)
    leading = Tick(briefly=True)
    sweep.run(leading)
    commands, reads = asked(client)
    sweep.run(leading)
    more_commands, more_reads = asked(client)
    assert sweeps(metrics, "ok") == 2
    assert more_commands - commands <= 8
    assert more_reads - reads - 2 <= 3, "without the two of INFO"
    assert metrics.registry.get_sample_value("sweeperd_due_entries", {"shard": "default", "kind": "reservations"}) == 0


def test_the_gauges_have_a_pace_of_their_own(client: redis.Redis, shard: Shard) -> None:
    settings, metrics = Settings.model_validate({"sweep": {"interval": "100ms"}}), Metrics()
    sweep = sweep_of(shard, settings, metrics)
    sweep.run()
    client.zadd("sweeperd:quarantine", {"bad": 1})
    labels = {"shard": "default", "kind": "reservations"}

    def shown() -> bool:
        sweep.run()
        return metrics.registry.get_sample_value("sweeperd_quarantined_entries", labels) == 1

    assert not shown()
    eventually(shown)
