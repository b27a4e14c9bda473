"""The ledger for asyncio: what it has beyond the calls that both ledgers share."""

import asyncio
import inspect
from datetime import timedelta

import pytest
import redis

from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import AsyncLedger, InsufficientBudget, Ledger, NoBudget
from tests.support.servers import Server, free_port

MINUTE = timedelta(minutes=1)


def test_both_have_the_same_calls() -> None:
    operations = {name for name in vars(Ledger) if not name.startswith("_") and name not in ("close", "from_url")}
    for name in operations:
        ours, theirs = getattr(AsyncLedger, name), getattr(Ledger, name)
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert ours.__doc__ == theirs.__doc__
        assert inspect.iscoroutinefunction(ours)
    assert "Reserved" in str(inspect.signature(Ledger.reserve).return_annotation)
    assert operations == {name for name in vars(AsyncLedger) if name in operations}


def test_many_calls_at_once(server: Server, client: redis.Redis) -> None:
    before = {each["id"] for each in client.client_list()}

    async def work() -> None:
        async with AsyncLedger.from_url(server.url) as ledger:
            await ledger.open_budget("s", "TOKENS", 1000)

            async def job(number: int) -> bool:
                try:
                    held = await ledger.reserve("a", ["s"], "TOKENS", 10, ttl=MINUTE, idempotency_key=str(number))
                except InsufficientBudget:
                    return False
                await ledger.settle("a", held.reservation_id, 10, idempotency_key=str(number))
                return True

            done = await asyncio.gather(*(job(number) for number in range(300)))
            assert sum(done) == 100
            assert (await ledger.budget("s", "TOKENS")).spent == 1000
            assert len({each["id"] for each in client.client_list()} - before) <= 64

    asyncio.run(work())


def test_a_cancelled_call_is_a_lost_reply(server: Server, client: redis.Redis) -> None:
    """The same request under the same key is done once, and no other call gets the answer of the cancelled one."""

    async def work() -> None:
        async with AsyncLedger.from_url(server.url) as ledger:
            await ledger.open_budget("s", "TOKENS", 100)
            for number in range(10):
                client.client_pause(60_000, all=False)
                key = str(number)
                call = asyncio.create_task(ledger.event("a", ["s"], "TOKENS", 5, idempotency_key=key))
                await asyncio.sleep(0.02)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                client.client_unpause()
                assert (await ledger.budget("s", "TOKENS")).scope == "s"
                assert (await ledger.event("a", ["s"], "TOKENS", 5, idempotency_key=key)).charged == 5
            assert (await ledger.budget("s", "TOKENS")).spent == 50

    asyncio.run(work())


def test_the_errors_of_the_other_ledger(server: Server, client: redis.Redis) -> None:
    async def work() -> None:
        async with AsyncLedger.from_url(server.url) as ledger:
            with pytest.raises(NoBudget):
                await ledger.budget("s", "TOKENS")
            client.script_flush()
            with pytest.raises(NoBudget):
                await ledger.budget("s", "TOKENS")
        async with AsyncLedger.from_url(f"redis://127.0.0.1:{free_port()}") as nowhere:
            with pytest.raises(RedisUnavailable):
                await nowhere.budget("s", "TOKENS")

    asyncio.run(work())


def test_a_cluster_needs_the_other_ledger() -> None:
    with pytest.raises(ValueError, match="Cluster"):
        AsyncLedger.from_url("redis+cluster://127.0.0.1:7000", prefix="{a}:")
