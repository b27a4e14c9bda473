"""The clients of the ledger. Each operation is a script: one atomic step and one round trip."""

import asyncio
import contextlib
import functools
import inspect
import uuid
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, get_args

import redis
from redis.exceptions import NoScriptError

from sweeperd.config import RedisSettings, check_prefix
from sweeperd.ledger import models
from sweeperd.ledger.errors import MissingRight, RedisFull
from sweeperd.ledger.models import Name
from sweeperd.ledger.requests import SCRIPTS, Request, Requests
from sweeperd.store.connect import sentinels_of
from sweeperd.store.errors import describe, is_demoted, is_full, is_refused
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.tracing import ledger_call

#: The most connections of a ledger: if all are in use, a call opens one more.
_CONNECTIONS = 10_000
#: How many calls of an AsyncLedger are at Redis at the same time. A thousand new connections at once would time out.
_AT_ONCE = 64
#: Then the connections are closed, since one of them has a reply too many.
_FOREIGN = "the reply is the answer to another request"
_NO_GRACE = timedelta(0)
_AUDIT_RETENTION = timedelta(days=30)

P = ParamSpec("P")
Answer = TypeVar("Answer")


def _new_id() -> str:
    return str(uuid.uuid4())


@contextlib.contextmanager
def _refusals_of_redis() -> Iterator[None]:
    """Redis at maxmemory and a missing right are refusals of the ledger: nothing has changed."""
    try:
        yield
    except redis.RedisError as error:
        if is_full(error):
            raise RedisFull from error
        if is_refused(error):
            raise MissingRight(describe(error).encode()) from error
        raise


def _as_method(call: Any, describe: Callable[..., Any]) -> Any:
    """`call` with the name, the text and the parameters of a method of Requests, for `help()`."""
    functools.update_wrapper(call, describe)
    signature = inspect.signature(describe)
    (answer,) = get_args(signature.return_annotation)
    call.__signature__ = signature.replace(return_annotation=answer)
    return call


def _sent(
    describe: Callable[Concatenate[Requests, P], Request[Answer]],
) -> "Callable[Concatenate[Ledger, P], Answer]":
    """The operation as a method of Ledger."""

    def call(self: "Ledger", *args: P.args, **kwargs: P.kwargs) -> Answer:
        return self._run(describe(self._requests, *args, **kwargs))

    method: Callable[Concatenate[Ledger, P], Answer] = _as_method(call, describe)
    return method


def _awaited(
    describe: Callable[Concatenate[Requests, P], Request[Answer]],
) -> "Callable[Concatenate[AsyncLedger, P], Coroutine[Any, Any, Answer]]":
    """The operation as a coroutine of AsyncLedger."""

    async def call(self: "AsyncLedger", *args: P.args, **kwargs: P.kwargs) -> Answer:
        return await self._run(describe(self._requests, *args, **kwargs))

    method: Callable[Concatenate[AsyncLedger, P], Coroutine[Any, Any, Answer]] = _as_method(call, describe)
    return method


class _Client:
    """What both ledgers begin with."""

    def __init__(
        self,
        shard: Shard,
        *,
        default_grace: timedelta = _NO_GRACE,
        audit_retention: timedelta = _AUDIT_RETENTION,
        cycles: bool = False,
        new_id: Callable[[], Name] = _new_id,
    ) -> None:
        """
        `default_grace` is for reservations without their own grace: set it to the sweep's `sweep.grace`.
        `audit_retention` is how long the hash of an ended reservation stays readable, 1 h at least: `sweeperd
        reconcile` compares budgets with these hashes. `cycles`: a Cycles service works on the same keys, so each new
        reservation has all that the service reads, and budgets are not opened here. `new_id` makes the id of a new
        reservation, different each time.
        """
        self.scripts = {name: Script(f"ledger/{name}") for name in SCRIPTS}
        self._shard = shard
        self._requests = Requests(
            shard.keys,
            models.milliseconds("default_grace", default_grace, least=0),
            models.milliseconds("audit_retention", audit_retention, least=models.LEAST_RETENTION),
            cycles,
            new_id,
        )

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "",
        default_grace: timedelta = _NO_GRACE,
        audit_retention: timedelta = _AUDIT_RETENTION,
        cycles: bool = False,
    ) -> Self:
        """
        The ledger of a Redis, with a URL as in sweeperd's `redis.url`: `redis://127.0.0.1:6379/0`, `rediss://`,
        `unix://`, `redis+sentinel://` or `redis+cluster://`. `prefix` is `keys.prefix`. Nothing connects before the
        first call.

        Raises ValueError if the URL cannot be used, and for a Cluster if the prefix has no hash tag. An AsyncLedger
        raises ValueError for every Cluster.
        """
        settings = RedisSettings.model_validate({"url": url})
        check_prefix(settings.url, prefix)
        shard = Shard(settings, prefix, connections=_CONNECTIONS, interrupted=True)
        return cls(shard, default_grace=default_grace, audit_retention=audit_retention, cycles=cycles)


class Ledger(_Client):
    """
    The budgets and reservations of one shard. Use it as a context manager, or call `close()` at the end.

    Amounts are whole numbers from 0 to 2^63-1. An operation takes 1 to 256 scopes. If a scope is named twice, it is
    charged twice, as the sweep releases it twice.

    Each change takes an idempotency key, valid for the tenant and the operation. The same request again gets the first
    answer, even if the reservation has ended since. The answer is kept for 24 hours, or for the TTL and the grace of
    the reservation if these are longer. A refusal is not kept: the same request may succeed later.

    Methods raise a LedgerError if the ledger refuses (nothing has changed then), MissingRight among them if the user of
    Redis lacks a right; ValueError or TypeError if an argument cannot be used; RedisUnavailable if Redis cannot be
    reached (the change may or may not have happened: call again with the same idempotency key); and redis.RedisError
    for any other error of Redis.

    A Ledger may be shared by threads. It has as many connections as threads have called it at the same time.
    """

    def close(self) -> None:
        """Close the connections to Redis."""
        self._shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    open_budget = _sent(Requests.open_budget)
    budget = _sent(Requests.budget)
    get = _sent(Requests.get)
    reserve = _sent(Requests.reserve)
    commit = _sent(Requests.commit)
    release = _sent(Requests.release)
    extend = _sent(Requests.extend)
    settle = _sent(Requests.settle)
    event = _sent(Requests.event)

    def _run(self, request: Request[Answer]) -> Answer:
        with ledger_call(request.script), self._shard.reaching(), _refusals_of_redis():
            reply = self.scripts[request.script].run(self._shard.client, request.call)
            if not request.is_answered_by(reply):
                self._shard.client.connection_pool.disconnect(inuse_connections=False)
                raise redis.ConnectionError(_FOREIGN)
        return request.answer(reply[:-1])


class AsyncLedger(_Client):
    """
    `Ledger` for asyncio: the same calls, answers, errors and scripts, without threads. Use it as an asynchronous
    context manager, or await `close()` at the end.

    If a call is cancelled between request and answer, the answer is lost, and the change may or may not have happened:
    call again with the same idempotency key. An AsyncLedger belongs to one event loop. It has at most 64
    connections: if all are in use, a call waits for one. A Redis Cluster needs `Ledger`.
    """

    def __init__(self, shard: Shard, **options: Any) -> None:
        """The options are those of `Ledger`. Raises ValueError for a Cluster."""
        super().__init__(shard, **options)
        self._client = shard.async_client()
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def close(self) -> None:
        """Close the connections to Redis."""
        for client in (self._client, *sentinels_of(self._client)):
            await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    open_budget = _awaited(Requests.open_budget)
    budget = _awaited(Requests.budget)
    get = _awaited(Requests.get)
    reserve = _awaited(Requests.reserve)
    commit = _awaited(Requests.commit)
    release = _awaited(Requests.release)
    extend = _awaited(Requests.extend)
    settle = _awaited(Requests.settle)
    event = _awaited(Requests.event)

    async def _run(self, request: Request[Answer]) -> Answer:
        with ledger_call(request.script), self._shard.reaching(), _refusals_of_redis():
            async with self._free:
                reply = await self._reply(self.scripts[request.script], request.call)
            if not request.is_answered_by(reply):
                await self._client.connection_pool.disconnect(inuse_connections=False)
                raise redis.ConnectionError(_FOREIGN)
        return request.answer(reply[:-1])

    async def _reply(self, script: Script, call: Call) -> Any:
        words = len(call.keys), *call.keys, *call.args
        try:
            try:
                return await self._client.execute_command("EVALSHA", script.sha, *words)
            except NoScriptError:
                return await self._client.execute_command("EVAL", script.source, *words)
        except redis.ResponseError as error:
            if is_demoted(error):
                # The next connection asks again for the primary.
                await self._client.connection_pool.disconnect(inuse_connections=False)
            raise
