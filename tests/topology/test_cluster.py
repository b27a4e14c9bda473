"""Moves the slot of a shard during a sweep, and kills its primary."""

from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from sweeperd.config import RedisSettings
from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import Ledger
from sweeperd.outbox import Outbox, Replication
from sweeperd.store import Shard
from sweeperd.store.lease import Lease
from sweeperd.store.scripts import Call, Script
from tests.support.books import Property, check, read
from tests.support.harness import BATCH, budget, daemon, environment, eventually, once, reserve, server_time
from tests.support.receiver import EventCounter, Receiver
from tests.support.rotation import USER, Rotation
from tests.support.servers import Binary
from tests.topology.load import Load, account, delivered
from tests.topology.servers import Cluster, cluster, moved_step_by_step
from tests.topology.walk import walk

PREFIX = "{tenant-a}:"
EVENTS, INDEX = f"{PREFIX}sweeperd:events", f"{PREFIX}reservation:ttl"


@pytest.mark.slow
def test_the_slot_moves_and_then_its_primary_is_killed(topology_binary: Binary, tmp_path: Path) -> None:
    batched = EventCounter()
    with cluster(topology_binary) as running, Receiver() as receiver, Receiver(batched) as batches:
        walk(running)
        source, target = running.owner(PREFIX), running.other_primary(PREFIX)
        with running.client(source) as client:
            for late in range(6):
                # Some are due now, some while the slot moves.
                ids = [f"{late}-{number}" for number in range(300)]
                reserve(client, ids, overdue_by=500 - 500 * late, prefix=PREFIX)
            # So that each key that a script names is there, and can move before the budgets.
            client.zadd(f"{PREFIX}sweeperd:quarantine", {"an old one": 1})
        env = environment(
            running.limited_url(PREFIX),
            keys__prefix=PREFIX,
            sweep__interval="100ms",
            sweep__pipeline_depth=5,
            redis__socket_timeout="1s",
            redis__connect_timeout="1s",
            endpoints=[
                {"name": "hook", "url": receiver.url},
                {"name": "batches", "url": batches.url, "batch_size": BATCH},
            ],
        )
        with Load(running.url, PREFIX).running() as load, daemon(env, tmp_path) as swept:

            def failed(more: int) -> None:
                """Let that many ticks fail."""
                before = swept.metric("sweeperd_sweeps_total", result="error")
                eventually(lambda: swept.metric("sweeperd_sweeps_total", result="error") >= before + more)

            receiver.wait_for(lambda requests: len(requests) >= 100)
            for step in moved_step_by_step(running, PREFIX, target):
                if step.startswith("all"):
                    failed(3)
                    assert "wait" in swept.get("/readyz")[1] or "slot" in swept.get("/readyz")[1]
            eventually(lambda: swept.get("/readyz")[0] == 200)
            with running.client(target) as client:
                before = client.xlen(EVENTS)
                eventually(lambda: client.xlen(EVENTS) > before + 50)
                eventually(lambda: client.wait(1, 1000) == 1)
            assert running.owner(PREFIX) is target
            heir = running.fail_over(PREFIX)
            told = len(load.told)
            eventually(lambda: len(load.told) > told + 50, limit=30)
            load.stop()
            with running.client(heir) as client:
                eventually(lambda: client.zcard(INDEX) == 0, limit=30)
                eventually(lambda: delivered(client, PREFIX), limit=30)
                assert swept.get("/readyz")[0] == 200
                assert swept.metric("sweeperd_candidates_total", outcome="error") == 0
                assert swept.metric("sweeperd_missing_budgets_total") == 0
                assert swept.terminate() == 0
                books = read(client, PREFIX)
                check(books, set(Property))
                assert budget(client, prefix=PREFIX) == (0, 6 * 300 * 5)
                assert sum(b"-" in entry and len(entry) <= 5 for entry in books.reservations) == 6 * 300
                lost = load.told - books.reservations.keys()
                undone = account(receiver, books, batched)
                print(f"{len(books.reservations)} left, {load.failed} failed, {len(lost)} lost, {undone} undone")
                # What goes to waste in a fail-over is what was on its way: a moment's worth.
                assert len(lost) < 100


@pytest.mark.slow
def test_a_password_that_a_command_prints(topology_binary: Binary, tmp_path: Path) -> None:
    """On all nodes. It changes under traffic, and once more when another node has the slot."""
    with cluster(topology_binary, replicas=False) as running, Receiver() as receiver, ExitStack() as stack:
        admins = {server: stack.enter_context(running.client(server)) for server in running.servers}
        rotation = Rotation(list(admins.values()), tmp_path, ["on", "~*", "&*", "+@all"])
        env = environment(
            running.url,
            keys__prefix=PREFIX,
            sweep__interval="100ms",
            redis__socket_timeout="1s",
            redis__connect_timeout="1s",
            redis__user=USER,
            redis__password=rotation.command,
            webhooks__redelivery_initial="1s",
            endpoints=[{"name": "hook", "url": receiver.url}],
        )
        ledger = Ledger.from_url(running.url, prefix=PREFIX, user=USER, password=rotation.command)
        with ledger, daemon(env, tmp_path) as swept:
            ledger.open_budget("s", "TOKENS", 10)
            source, target = running.owner(PREFIX), running.other_primary(PREFIX)
            with rotation.turning(0.5, disconnecting=True):
                for number in range(4):
                    reserve(admins[source], [f"before {number}"], prefix=PREFIX)
                    eventually(lambda number=number: receiver.distinct == number + 1, limit=30)
            for _ in moved_step_by_step(running, PREFIX, target):
                pass
            rotation.turn()
            rotation.disconnect()
            reserve(admins[target], ["after"], prefix=PREFIX)
            eventually(lambda: receiver.distinct == 5, limit=30)
            eventually(lambda: swept.get("/readyz")[0] == 200)
            assert ledger.budget("s", "TOKENS").remaining == 10
            assert swept.terminate() == 0
        log = "".join(path.read_text() for path in tmp_path.glob("*.log"))
        assert not [password for password in rotation.passwords if password in log]
        reserve(admins[target], ["last"], prefix=PREFIX)
        assert once(env).report["expired"] == 1


@pytest.mark.slow
def test_a_slot_on_the_move_is_one_redis(topology_binary: Binary) -> None:
    """Commands on one key follow it, scripts on several wait, and nothing runs twice or in the wrong place."""
    with cluster(topology_binary) as running:
        for prefix, budgets_first in (("{tenant-a}:", False), ("{tenant-b}:", True)):
            _moves(running, prefix, budgets_first=budgets_first)


def _moves(running: Cluster, prefix: str, *, budgets_first: bool) -> None:
    events = f"{prefix}sweeperd:events"
    source, target = running.owner(prefix), running.other_primary(prefix)
    with running.client(source) as client:
        reserve(client, ["one"], prefix=prefix)
        reserve(client, ["two"], prefix=prefix, scopes=["tenant:trap"])
        client.zadd(f"{prefix}sweeperd:quarantine", {"an old one": 1})
        client.xgroup_create(events, "hook", id="0", mkstream=True)
        for number in range(100):
            client.xadd(events, {"id": f"{number}"})
    shard = Shard(RedisSettings.model_validate({"url": running.url}), prefix)
    keys, expire, lease = shard.keys, Script("sweep/expire"), Lease(shard, "sweep", timedelta(seconds=15))

    def call(entry: bytes) -> Call:
        named = [keys.reservation(entry), keys.reservation_index, keys.events, keys.quarantine]
        return Call(named, [entry, keys.budget_stem, 0, 60_000, "trace"])

    stream = Outbox(shard, "us", Replication(1, 1.0))
    cautious = Outbox(shard, "us", Replication(2, 0.05))
    moved = moved_step_by_step(running, prefix, target, budgets_first=budgets_first)
    for steps, step in enumerate(moved, 1):
        shard.read_clock()
        assert shard.client.incr(f"{prefix}count") == steps
        pipeline = shard.client.pipeline(transaction=False)
        pipeline.hget(keys.reservation(b"one"), "state")
        pipeline.zscore(keys.reservation_index, "one")
        pipeline.incr(f"{prefix}other")
        state, score, other = pipeline.execute()
        assert (state, score is not None, other) == (b"ACTIVE", True, steps)
        assert lease.acquire(), "the script on one key follows it"
        (taken,) = stream.read("hook", 1)
        assert stream.confirmed("hook", [taken]), "WAIT asks the node that the event is on"
        assert not cautious.confirmed("hook", [taken]), "each primary has one replica"
        if step.startswith("all"):
            waits = "it waits until its slot has moved|access a non local key in a cluster node"
            with pytest.raises(RedisUnavailable, match=waits), shard.reaching():
                expire.run(shard.client, call(b"one"))
        if step == "all but budgets" and not budgets_first:
            # Why it waits. Asked, the target runs the script, and takes the budget that is yet to come for closed.
            with running.client(target) as there:
                asking = there.pipeline(transaction=False)
                asking.execute_command("ASKING")
                asking.execute_command("EVAL", expire.source, 4, *call(b"two").keys, *call(b"two").args)
                assert asking.execute()[1][3] == b'["tenant:trap"]'
    with running.client(target) as client:
        assert budget(client, prefix=prefix) == (5, 0)
        assert expire.run(shard.client, call(b"one"))[0] == b"expired"
        assert budget(client, prefix=prefix) == (0, 5)
        assert abs(shard.read_clock() - server_time(client)) < 1000
    shard.close()
