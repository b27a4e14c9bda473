"""Provides the ledger's clients, for threads and for asyncio. Each operation is one script in one round trip."""

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

#: The connection limit of a ledger. A call opens a new connection if all are in use.
_CONNECTIONS = 10_000
#: How many calls of an AsyncLedger run at once. A thousand simultaneous new connections would time out.
_AT_ONCE = 64
#: The connections are closed with this error, because one of them has an extra reply.
_FOREIGN = "the reply belongs to another request"
_NO_GRACE = timedelta(0)
_AUDIT_RETENTION = timedelta(days=30)

P = ParamSpec("P")
Answer = TypeVar("Answer")


def _new_id() -> str:
    return str(uuid.uuid4())


@contextlib.contextmanager
def _refusals_of_redis() -> Iterator[None]:
    """Turn maxmemory and missing rights into refusals of the ledger, because nothing has changed."""
    try:
        yield
    except redis.RedisError as error:
        if is_full(error):
            raise RedisFull from error
        if is_refused(error):
            raise MissingRight(describe(error).encode()) from error
        raise


def _as_method(call: Any, describe: Callable[..., Any]) -> Any:
    """`call` with the name, docstring and signature of a method of Requests, for `help()`."""
    functools.update_wrapper(call, describe)
    signature = inspect.signature(describe)
    (answer,) = get_args(signature.return_annotation)
    call.__signature__ = signature.replace(return_annotation=answer)
    return call


def _sent(describe: Callable[Concatenate[Requests, P], Request[Answer]]) -> "Callable[Concatenate[Ledger, P], Answer]":
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
    """The options of both ledgers."""

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
        `default_grace` is the grace of reservations without their own: set it to the sweep's `sweep.grace`.
        `audit_retention`, 1 h or more, is how long the hash of an ended reservation stays readable for `sweeperd
        reconcile`, which compares budgets with these hashes. `cycles`: a Cycles service uses the same keys, so each new
        reservation has all fields that the service reads, and the service opens the budgets. `new_id` returns a unique
        id for each new reservation.
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
        user: str = "",
        password: str = "",
        default_grace: timedelta = _NO_GRACE,
        audit_retention: timedelta = _AUDIT_RETENTION,
        cycles: bool = False,
    ) -> Self:
        """
        A ledger for a URL as in sweeperd's `redis.url`: `redis://127.0.0.1:6379/0`, `rediss://`, `unix://`,
        `redis+sentinel://` or `redis+cluster://`. `user` and `password` are as `redis.user` and `redis.password`, and
        may be `exec:COMMAND`. `prefix` is `keys.prefix`. The first call connects.

        Raises ValueError if the URL is invalid, if the prefix holds `sweeperd:`, and for a Cluster if the prefix has no
        hash tag. An AsyncLedger raises ValueError for every Cluster.
        """
        settings = RedisSettings.model_validate({"url": url, "user": user, "password": password})
        check_prefix(settings.url, prefix)
        shard = Shard(settings, prefix, connections=_CONNECTIONS, interrupted=True)
        return cls(shard, default_grace=default_grace, audit_retention=audit_retention, cycles=cycles)


class Ledger(_Client):
    """
    The budgets and reservations of one shard. Use it as a context manager, or call `close()` at the end.

    Amounts are whole numbers from 0 to 2^63-1. An operation takes 1 to 256 scopes. A scope that is named twice is
    charged twice, and the sweep releases it twice.

    Each change takes an idempotency key, which is scoped to the tenant and the operation. A repeated request gets the
    first answer, even after the reservation has ended. The answer is kept for 24 hours, or for the TTL and grace of the
    reservation if they are longer. A refusal is not kept, so the same request may succeed later.

    Methods raise a LedgerError if the ledger refuses and nothing has changed, which includes MissingRight. They raise
    ValueError or TypeError for an invalid argument, and RedisUnavailable if Redis cannot be reached. In that case the
    change may or may not have happened, so repeat the call with the same idempotency key. Any other error of Redis is
    raised as redis.RedisError.

    Thread-safe. A Ledger has as many connections as threads have called it at the same time.
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
    `Ledger` for asyncio, with the same calls, answers and errors. Use it as an asynchronous context manager, or await
    `close()` at the end.

    If a call is cancelled before its answer arrives, the change may or may not have happened, so repeat the call with
    the same idempotency key. An AsyncLedger belongs to one event loop. It has up to 64 connections, and a call waits if
    all are in use. A Redis Cluster needs `Ledger`.
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
                # The next connection looks up the primary again.
                await self._client.connection_pool.disconnect(inuse_connections=False)
            raise
