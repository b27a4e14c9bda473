"""Tests the limits of the grace cache, made small because the real ones take minutes."""

import pytest

from sweeperd.sweep import Outcome
from sweeperd.sweep import index as grace
from sweeperd.sweep import index as grace_cache
from tests.integration.sweep.test_grace_cache import World, world
from tests.integration.sweep.test_index_reader import SCANNED, Index, index
from tests.support.harness import eventually

__all__ = ["index", "world"]


def test_what_changed_in_the_hash_alone_is_noticed_after_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No writer that keeps the contract does that."""
    monkeypatch.setattr(grace, "RESCAN_AFTER", (0.3, 0.3))
    world.in_grace(*map(str, range(100)))
    world.tick()
    world.shard.client.hset(world.shard.keys.reservation(b"42"), "grace_ms", 0)
    eventually(lambda: world.tick().counts[Outcome.EXPIRED] == 1)


def test_it_remembers_no_more_than_it_may(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace, "CAPACITY", 2)
    world.in_grace(*map(str, range(300)), ago=range(10_000, 10_000 - 7 * 300, -7))
    world.tick()
    report, looked = world.looks(world.tick)
    assert report.counts[Outcome.IN_GRACE] == 300
    assert 200 <= looked < 300


def test_no_more_ranges_are_kept_than_may_be(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace_cache, "CAPACITY", 3)
    index.fill([number * 10 for number in range(6 * SCANNED)])
    index.tick()
    assert sum(page.passed for page in index.tick()) == 3 * (SCANNED - 1)
    # In front, so that new ranges are found before those that are known.
    index.fill([-10 * number for number in range(1, SCANNED + 1)])
    index.tick()
    assert 0 < sum(page.passed for page in index.tick()) <= 3 * (SCANNED - 1)
