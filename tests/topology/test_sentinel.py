"""Kills a primary with replicas and sentinels under load, with and without unreplicated writes."""

import asyncio
import itertools
import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import AsyncLedger, Ledger
from tests.support.books import Property, check, read
from tests.support.harness import BATCH, SCOPES, budget, daemon, environment, eventually, once, reserve
from tests.support.receiver import EventCounter, Receiver
from tests.support.rotation import USER, Rotation
from tests.support.servers import Binary
from tests.topology.load import Load, account, delivered
from tests.topology.servers import PASSWORD, SENTINEL_PASSWORD, Sentinels, sentinels

TOTAL = 2000
FAST = {
    "sweep__interval": "100ms",
    "sweep__pipeline_depth": 5,
    "redis__socket_timeout": "1s",
    "redis__connect_timeout": "1s",
}


@pytest.mark.slow
def test_the_primary_is_killed_under_load(topology_binary: Binary, tmp_path: Path) -> None:
    batched = EventCounter()
    with sentinels(topology_binary) as running, Receiver() as receiver, Receiver(batched) as batches:
        with running.client() as client:
            reserve(client, [f"old {number}" for number in range(TOTAL)])
            assert client.wait(2, 5000) == 2
        endpoints = [
            {"name": "hook", "url": receiver.url},
            {"name": "batches", "url": batches.url, "batch_size": BATCH},
        ]
        env = environment(running.url(), endpoints=endpoints, **FAST)
        with Load(running.url("default")).running() as load, daemon(env, tmp_path) as swept:
            with running.client() as client:
                eventually(lambda: client.xlen("sweeperd:events") > 200)
            assert running.primary is running.servers[0]
            running.fail_over()
            after = len(load.told)
            with running.client() as client:
                eventually(lambda: len(load.told) > after + 50, limit=30)
                load.stop()
                eventually(lambda: client.zcard("reservation:ttl") == 0, limit=30)
                eventually(lambda: delivered(client), limit=30)
                assert swept.get("/readyz")[0] == 200
                assert swept.metric("sweeperd_sweeps_total", result="error") >= 1
                assert swept.metric("sweeperd_candidates_total", outcome="error") == 0
                assert swept.terminate() == 0
                books = read(client)
                check(books, set(Property))
                assert budget(client) == (0, 5 * TOTAL)
                assert sum(entry.startswith(b"old ") for entry in books.reservations) == TOTAL
                undone = account(receiver, books, batched)
                lost = load.told - books.reservations.keys()
                print(f"{len(books.reservations)} left, {load.failed} failed, {len(lost)} lost, {undone} undone")
                # What goes to waste in a fail-over is what was on its way: a moment's worth.
                assert len(lost) < 100
        log = "".join(path.read_text() for path in tmp_path.glob("*.log"))
        assert "/reservations/0" in log
        for secret in (PASSWORD, SENTINEL_PASSWORD, "p%2Fss", "s3ntinel"):
            assert secret not in log


@pytest.mark.parametrize("wait_replicas", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.slow
def test_what_the_primary_had_not_replicated_is_swept_again_in_one_piece(
    topology_binary: Binary, wait_replicas: int, tmp_path: Path
) -> None:
    """Once without a wait: the webhooks are out, and come again. Once with: they come after the fail-over only."""
    total = 200
    with sentinels(topology_binary) as running, Receiver() as receiver:
        env = environment(
            running.url(),
            endpoints=[{"name": "hook", "url": receiver.url}],
            events__wait_replicas=wait_replicas,
            events__wait_timeout="200ms",
            **FAST,
        )
        with daemon(env, tmp_path) as swept:
            eventually(lambda: swept.get("/readyz")[0] == 200)
            with running.client() as client:
                # Due only when nothing reaches the replicas any more.
                reserve(client, [f"{number}" for number in range(total)], overdue_by=-2000)
                assert client.wait(2, 5000) == 2
                running.cut_replication()
                eventually(lambda: client.xlen("sweeperd:events") == total)
                assert budget(client) == (0, 5 * total)
                if wait_replicas:
                    eventually(lambda: swept.logged("delivery waits for redis"))
                    assert "too few replicas have confirmed" in swept.logged("delivery waits for redis")[-1]["error"]
                    assert receiver.requests == []
                    held = client.xpending_range("sweeperd:events", "hook", "-", "+", 1000)
                    assert {row["times_delivered"] for row in held} <= {0, 1}, (
                        "a hand-over that was none is not counted"
                    )
                else:
                    receiver.wait_for(lambda requests: len(requests) == total)
            running.fail_over()
            expected = total if wait_replicas else 2 * total
            with running.client() as client:
                eventually(lambda: client.xlen("sweeperd:events") == total, limit=30)
                receiver.wait_for(
                    lambda requests: len({request.event_id for request in requests}) == expected, limit=30
                )
                eventually(lambda: delivered(client), limit=30)
                assert swept.terminate() == 0
                books = read(client)
                check(books, set(Property))
                assert [budget(client, scope) for scope in SCOPES] == [(0, 5 * total)] * len(SCOPES)
        times = Counter(request.event["data"]["reservation_id"] for request in receiver.requests)
        assert set(times.values()) == {expected // total}
        assert account(receiver, books) == expected - total


def test_a_call_of_asyncio_during_a_fail_over_is_a_lost_reply(topology_binary: Binary) -> None:
    """A call without an answer may be done, and a done one may be lost. Repeated under its key, each is done once."""
    with sentinels(topology_binary) as running:
        unanswered, keys = asyncio.run(_charge_during_a_fail_over(running))
        assert unanswered >= 10
        with running.client() as client:
            amounts = [int(value or 0) for value in client.hmget("budget:s:TOKENS", "spent", "remaining", "reserved")]
            assert amounts == [3 * keys, 10**9 - 3 * keys, 0]


async def _charge_during_a_fail_over(running: Sentinels) -> tuple[int, int]:
    """Ten tasks charge 3 each time, the primary dies meanwhile. Returns how many calls had no answer, and all keys."""
    over, unanswered, used, numbers = asyncio.Event(), 0, list[str](), itertools.count()
    async with AsyncLedger.from_url(running.url("default")) as ledger:
        await ledger.open_budget("s", "TOKENS", 10**9)

        async def charge(key: str) -> None:
            nonlocal unanswered
            while True:
                try:
                    done = await ledger.event("load", ["s"], "TOKENS", 3, idempotency_key=key)
                except RedisUnavailable:
                    unanswered += 1
                    await asyncio.sleep(0.1)
                else:
                    assert done.charged == 3
                    return

        async def work() -> None:
            while not over.is_set():
                used.append(str(next(numbers)))
                await charge(used[-1])

        tasks = [asyncio.create_task(work()) for _ in range(10)]
        while len(used) < 100:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(running.fail_over)
        before = len(used)
        while len(used) < before + 100:
            await asyncio.sleep(0.01)
        over.set()
        await asyncio.gather(*tasks)
        for key in used:
            await charge(key)
    return unanswered, len(used)


@pytest.mark.slow
def test_a_password_that_a_command_prints(topology_binary: Binary, tmp_path: Path) -> None:
    """On the primary and both replicas. It changes under traffic, and with the fail-over."""
    with sentinels(topology_binary) as running, Receiver() as receiver, ExitStack() as stack:
        admins = [stack.enter_context(running.client(server)) for server in running.servers]
        rotation = Rotation(admins, tmp_path, ["on", "~*", "&*", "+@all"])
        url = re.sub(r"//[^@]*@", "//", running.url("default"))
        settings = {"redis__user": USER, "redis__password": rotation.command, "webhooks__redelivery_initial": "1s"}
        env = environment(url, endpoints=[{"name": "hook", "url": receiver.url}], **FAST, **settings)
        with Ledger.from_url(url, user=USER, password=rotation.command) as ledger, daemon(env, tmp_path) as swept:
            ledger.open_budget("s", "TOKENS", 10)
            assert running.primary is running.servers[0]
            with running.client() as client, rotation.turning(1, disconnecting=True):
                for number in range(10):
                    reserve(client, [f"before {number}"])
                    eventually(lambda number=number: receiver.distinct == number + 1, limit=30)
            admins.pop(0)
            running.fail_over()
            rotation.turn()
            with running.client() as client:
                reserve(client, ["after"])
            eventually(lambda: receiver.distinct == 11, limit=30)
            eventually(lambda: swept.get("/readyz")[0] == 200)
            assert ledger.budget("s", "TOKENS").remaining == 10
        with running.client() as client:
            reserve(client, ["last"])
        assert once(env).report["expired"] == 1
