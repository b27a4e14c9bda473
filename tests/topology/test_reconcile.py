"""Checks that `reconcile` and `check` report nothing of a walk that a moving slot interrupted."""

from contextlib import closing

import pytest

from sweeperd.config import Settings, SweepSettings
from sweeperd.context import Timing
from sweeperd.errors import RedisUnavailable
from sweeperd.ops.check.findings import CheckLevel, worst
from sweeperd.ops.check.server import check_shard
from sweeperd.ops.reconcile.faults import Fault, WalkStage
from sweeperd.ops.reconcile.report import ReconcileReport
from sweeperd.ops.reconcile.subjects import Reservations, WalkProgress
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.ops.reconcile.walk import mend, reconcile
from sweeperd.store import Shard, open_shards
from tests.support.harness import reserve
from tests.support.servers import Binary
from tests.topology.servers import cluster, moved_step_by_step

PREFIX = "{tenant-a}:"
IDS = [str(number) for number in range(150)]


def walk(shard: Shard, progress: WalkProgress = lambda *_: None, *, repair: bool = False) -> ReconcileReport:
    subject = Reservations(shard, SweepSettings(), Throttle(1e9, timing=Timing(settle_faults=0.0, identify_every=0.0)))
    subject.progress = progress
    report = reconcile(subject)
    return mend(subject, report) if repair else report


@pytest.mark.slow
def test_a_slot_that_moves_under_the_walk(topology_binary: Binary) -> None:
    with cluster(topology_binary) as running:
        source, target = running.owner(PREFIX), running.other_primary(PREFIX)
        with running.client(source) as client:
            reserve(client, IDS, overdue_by=-50_000, prefix=PREFIX)
        settings = Settings.model_validate({"redis": {"url": running.limited_url(PREFIX)}, "keys": {"prefix": PREFIX}})
        (shard,) = open_shards(settings)
        with closing(shard):
            before = walk(shard)
            assert (before.hashes, before.counters, before.remaining) == (len(IDS), 2, 0)
            assert worst(list(check_shard(shard, settings))) is CheckLevel.WARNING

            steps = moved_step_by_step(running, PREFIX, target)
            begun = False

            def move(stage: WalkStage, *_: int) -> None:
                """The first keys go while the walk is under way."""
                nonlocal begun
                if stage is WalkStage.HASHES and not begun:
                    begun = True
                    assert [next(steps), next(steps)] == ["opened", "keys"]

            with pytest.raises(RedisUnavailable):
                walk(shard, move)
            for step in steps:
                if step == "closed":
                    break
                with pytest.raises(RedisUnavailable):
                    walk(shard)

            # It may also move as a whole between two steps of a walk.
            def move_back(stage: WalkStage, *_: int) -> None:
                if stage is WalkStage.HASHES and running.owner(PREFIX) is target:
                    assert list(moved_step_by_step(running, PREFIX, source))[-1] == "closed"

            with pytest.raises(RedisUnavailable, match="replaced during the walk"):
                walk(shard, move_back)
            shard.client.zrem(shard.keys.reservation_index, *IDS[:10])
            mended = walk(shard, repair=True)
            assert (mended.found, mended.mended) == ({Fault.LOST: 10}, {Fault.LOST: 10})
            assert shard.client.zcard(shard.keys.reservation_index) == len(IDS)
