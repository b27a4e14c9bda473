"""`reconcile` under live traffic: it reports only what is so, and its repairs lose no client's write."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import hypothesis
import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sweeperd.config import SweepSettings
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.ops.reconcile import budgets, keyspace, subjects
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.reconcile.report import Finding, ReconcileReport
from sweeperd.ops.reconcile.subjects import Reservations
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.ops.reconcile.walk import mend, reconcile
from sweeperd.store import Shard
from tests.property.play import UNIT, Step, World, run_at_once, steps
from tests.support.fixtures import a_shard
from tests.support.servers import Server

CLIENTS = 2
FAST = 1e9
#: A twentieth of the profile's tries: each of them walks several times.
TRIES = settings(
    max_examples=hypothesis.settings().max_examples // 20,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    # Threads do not meet in the same way twice, so there is no smaller example to search for.
    phases=[Phase.explicit, Phase.generate],
)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2 * CLIENTS + 2) as threads:
        yield threads


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly a key in each step, so that as much as can be happens between two steps."""
    for module, name in (
        (keyspace, "PAGE"),
        (subjects, "PAGE"),
        (subjects, "SCRIPT_BATCH"),
        (budgets, "SCRIPT_BATCH"),
        (subjects, "BATCH"),
        (subjects, "CONFIRM"),
    ):
        monkeypatch.setattr(module, name, 1)


def subject(shard: Shard, timing: Timing = DEFAULT_TIMING) -> Reservations:
    return Reservations(shard, SweepSettings(), Throttle(FAST, timing=timing))


@dataclass
class Walks:
    """Walks, one after the other."""

    reports: list[ReconcileReport] = field(default_factory=list)

    @contextmanager
    def around(self, shard: Shard, pool: ThreadPoolExecutor, *, repair: bool) -> Iterator[None]:
        """Walk again and again while the block lasts, and to the end of the walk that is under way then."""
        over = threading.Event()

        def walk() -> None:
            while True:
                last = over.is_set()
                report = reconcile(subject(shard, Timing(settle_faults=0.0, identify_every=0.0)))
                self.reports.append(mend(subject(shard), report) if repair else report)
                if last:
                    return

        walking = pool.submit(walk)
        try:
            yield
        finally:
            over.set()
            walking.result()

    @property
    def findings(self) -> list[Finding]:
        return [finding for report in self.reports for finding in report.findings]


@pytest.mark.usefixtures("hasty")
@given(clients=st.lists(steps, min_size=2, max_size=CLIENTS), repair=st.booleans())
@TRIES
def test_nothing_is_found_where_nothing_is_wrong(
    client: redis.Redis, server: Server, pool: ThreadPoolExecutor, clients: Sequence[Sequence[Step]], repair: bool
) -> None:
    with closing(World(client, server)) as world, a_shard(server) as shard:
        walks = Walks()
        with walks.around(shard, pool, repair=repair):
            run_at_once(world, clients, pool)
        assert walks.findings == []
        # During the last walk no client was at work.
        assert walks.reports[-1].unjudged == 0
        world.conclude()


@pytest.mark.usefixtures("hasty")
@given(clients=st.lists(steps, min_size=2, max_size=CLIENTS), by=st.sampled_from([1, 2, 5]))
@TRIES
def test_a_drift_is_told_as_what_it_is(
    client: redis.Redis, server: Server, pool: ThreadPoolExecutor, clients: Sequence[Sequence[Step]], by: int
) -> None:
    drifted = f"budget:tenant:t:{UNIT}"
    with closing(World(client, server)) as world, a_shard(server) as shard:
        client.hincrby(drifted, "reserved", by)
        walks = Walks()
        with walks.around(shard, pool, repair=True):
            run_at_once(world, clients, pool)
        for finding in walks.findings:
            assert (finding.fault, finding.subject) == (Fault.BUDGET_DRIFT, drifted.encode())
            assert finding.bounds
            assert finding.bounds[0] <= by <= finding.bounds[1]
        assert [finding.bounds for finding in walks.reports[-1].findings] == [(by, by)]
        client.hincrby(drifted, "reserved", -by)
        world.conclude()
