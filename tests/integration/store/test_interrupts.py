"""A call that is interrupted between request and reply: the next call on that connection gets its own reply."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio.connection
import redis.connection

from sweeperd.config import RedisSettings
from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import AsyncLedger, Ledger, Reserved
from sweeperd.store import Shard
from sweeperd.store.scripts import Call, Script, ScriptPipeline, run_commands
from tests.support.servers import Server

#: Until the interrupted call's reply comes, ms: by then the next call has been sent.
LATE = 200
MINUTE = timedelta(minutes=1)
ECHO = Script("a script of a test", "return ARGV[1]")


class Interrupt(Exception):
    """Raised by a signal handler, as Celery's SoftTimeLimitExceeded."""


INTERRUPTS = [Interrupt, KeyboardInterrupt, redis.RedisError]


class Interrupter:
    """Once armed, raises an error in the next call, after its request was sent."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._error: type[BaseException] | None = None

    def arm(self, error: type[BaseException]) -> None:
        self._client.client_pause(LATE)
        self._error = error

    def strike(self) -> None:
        error, self._error = self._error, None
        if error:
            raise error


@pytest.fixture
def interrupter(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Interrupter:
    interrupter = Interrupter(client)
    ours = client.connection_pool
    for module in (redis.connection, redis.asyncio.connection):
        send: Any = module.AbstractConnection.send_packed_command

        def sent(self: Any, *args: Any, send: Any = send, **options: Any) -> Any:
            send(self, *args, **options)
            if self not in ours._in_use_connections:
                interrupter.strike()

        async def awaited(self: Any, *args: Any, send: Any = send, **options: Any) -> Any:
            await send(self, *args, **options)
            interrupter.strike()

        replacement = sent if module is redis.connection else awaited
        monkeypatch.setattr(module.AbstractConnection, "send_packed_command", replacement)
    return interrupter


@pytest.fixture
def shard(server: Server) -> Iterator[Shard]:
    shard = Shard(RedisSettings.model_validate({"url": server.url}))
    with contextlib.closing(shard):
        yield shard


def _command(client: redis.Redis, word: str) -> list[Any]:
    return [client.echo(word)]


def _pipeline(client: redis.Redis, word: str) -> list[bytes]:
    return run_commands(client, [("ECHO", word), ("ECHO", word)])


def _script(client: redis.Redis, word: str) -> list[bytes]:
    return ECHO.run_many(client, [Call([b"k"], [word]), Call([b"k"], [word])])


def _script_pipeline(client: redis.Redis, word: str) -> list[bytes]:
    with ScriptPipeline(ECHO, client) as pipeline:
        pipeline.send([Call([b"k"], [word]), Call([b"k"], [word])])
        return pipeline.receive().replies


@pytest.mark.parametrize(
    ("use", "error"),
    [
        *((_command, each) for each in INTERRUPTS),
        *((use, Interrupt) for use in (_pipeline, _script, _script_pipeline)),
    ],
)
def test_no_reply_is_left_for_the_next(
    shard: Shard, interrupter: Interrupter, use: Callable[[redis.Redis, str], list[bytes]], error: type[BaseException]
) -> None:
    use(shard.client, "before")
    interrupter.arm(error)
    with pytest.raises(error):
        use(shard.client, "interrupted")
    assert set(use(shard.client, "next")) == {b"next"}


def test_a_batch_that_was_read_in_part(shard: Shard, interrupter: Interrupter, monkeypatch: pytest.MonkeyPatch) -> None:
    read = redis.connection.AbstractConnection.read_response
    with contextlib.suppress(Interrupt), ScriptPipeline(ECHO, shard.client) as pipeline:
        pipeline.send([Call([b"k"], ["first"])])
        pipeline.receive()
        pipeline.send([Call([b"k"], ["interrupted"])] * 2)
        with monkeypatch.context() as patch:

            def interrupted(self: Any, *args: Any, **options: Any) -> Any:
                read(self, *args, **options)
                raise Interrupt

            patch.setattr(redis.connection.AbstractConnection, "read_response", interrupted)
            pipeline.receive()
    assert shard.client.echo("next") == b"next"


def test_an_interrupted_handshake_is_made_again(server: Server, client: redis.Redis, interrupter: Interrupter) -> None:
    """Without that, the next call would work on database 0."""
    shard = Shard(RedisSettings.model_validate({"url": f"redis://127.0.0.1:{server.port}/3"}))
    with contextlib.closing(shard):
        interrupter.arm(Interrupt)
        with pytest.raises(Interrupt):
            shard.client.echo("interrupted")
        shard.client.set("mine", "1")
    assert client.dbsize() == 0
    client.execute_command("SELECT", 3)
    client.flushdb()
    client.execute_command("SELECT", 0)


def test_a_call_from_a_handler_of_errors_keeps_its_connection(shard: Shard) -> None:
    shard.client.ping()
    try:
        raise ValueError
    except ValueError:
        shard.client.ping()
        with pytest.raises(redis.ResponseError):
            shard.client.execute_command("NOSUCH")
    shard.client.ping()
    assert shard.opened == 1


@pytest.mark.parametrize("error", INTERRUPTS)
def test_a_ledger(server: Server, interrupter: Interrupter, error: type[BaseException]) -> None:
    with Ledger.from_url(server.url) as ledger:
        ledger.open_budget("s", "TOKENS", 1000)

        def reserve(key: str) -> Reserved:
            return ledger.reserve("a", ["s"], "TOKENS", 5, ttl=MINUTE, idempotency_key=key)

        reserve("before")
        interrupter.arm(error)
        with pytest.raises(error):
            reserve("interrupted")
        held = reserve("next")
        assert reserve("interrupted").reservation_id != held.reservation_id
        assert reserve("next") == held
        assert ledger.budget("s", "TOKENS").reserved == 15


@pytest.mark.parametrize("error", [Interrupt, asyncio.CancelledError])
def test_a_ledger_for_asyncio(server: Server, interrupter: Interrupter, error: type[BaseException]) -> None:
    async def work() -> None:
        async with AsyncLedger.from_url(server.url) as ledger:
            await ledger.open_budget("s", "TOKENS", 1000)

            async def reserve(key: str) -> Reserved:
                return await ledger.reserve("a", ["s"], "TOKENS", 5, ttl=MINUTE, idempotency_key=key)

            await reserve("before")
            interrupter.arm(error)
            with pytest.raises(error):
                await reserve("interrupted")
            held = await reserve("next")
            assert (await reserve("interrupted")).reservation_id != held.reservation_id
            assert await reserve("next") == held
            assert (await ledger.budget("s", "TOKENS")).reserved == 15

    asyncio.run(work())


def _left(ledger: Ledger) -> None:
    """Leave the reply to a request on the ledger's connection, without an error."""
    pool = ledger._shard.client.connection_pool
    connection = pool.get_connection()
    call = ledger._requests.reserve("a", ["s"], "TOKENS", 5, ttl=MINUTE, idempotency_key="other").call
    connection.send_command("EVAL", ledger.scripts["reserve"].source, len(call.keys), *call.keys, *call.args)
    pool.release(connection)


@pytest.mark.parametrize(
    "next_call",
    [
        lambda ledger: ledger.reserve("a", ["s"], "TOKENS", 5, ttl=MINUTE, idempotency_key="next"),
        lambda ledger: ledger.commit("a", "no such", 5, idempotency_key="next"),
        lambda ledger: ledger.budget("s", "TOKENS"),
        lambda ledger: ledger.get("no such"),
        lambda ledger: ledger.open_budget("t", "TOKENS", 5),
    ],
    ids=["reserve", "commit", "budget", "get", "open_budget"],
)
def test_an_answer_to_another_request_is_not_believed(
    server: Server, client: redis.Redis, next_call: Callable[[Ledger], object]
) -> None:
    with Ledger.from_url(server.url) as ledger:
        ledger.open_budget("s", "TOKENS", 1000)
        ledger.budget("s", "TOKENS")
        client.client_pause(LATE)
        _left(ledger)
        with pytest.raises(RedisUnavailable, match="another request"):
            next_call(ledger)
        assert ledger.budget("s", "TOKENS").scope == "s"
