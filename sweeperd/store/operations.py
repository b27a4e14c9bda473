"""
Runs operations on Redis side by side: each round trip carries the commands of all of them.

An operation is a generator. It yields the commands of a round trip, and gets their replies. What it returns is its
result. A method that is marked as an `operation` runs alone when it is called; `part` makes it a part of another one.
"""

import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, Self, TypeVar, overload

import redis
from redis.exceptions import NoScriptError

from sweeperd import progress
from sweeperd.store.scripts import Call, Script, accepted

#: How many commands share a round trip: other clients wait while Redis works on them.
TOGETHER = 100


class Request(NamedTuple):
    """One command: its words, redis-py's options for its reply, and the script if the command runs one."""

    words: tuple[Any, ...]
    options: Mapping[str, Any] = {}
    script: Script | None = None
    call: Call | None = None

    @classmethod
    def of(cls, script: Script, call: Call) -> "Request":
        return cls(("EVALSHA", script.sha, len(call.keys), *call.keys, *call.args), {}, script, call)


T = TypeVar("T")
P = ParamSpec("P")
#: Yields the commands of a round trip and gets the replies; the reply to a failed command is its error.
Operation = Generator[Sequence[Request], list[Any], T]


def ask(*words: Any, **options: Any) -> Operation[Any]:
    """One command. Returns its reply; raises redis.RedisError."""
    (reply,) = accepted((yield [Request(words, options)]))
    return reply


def run_scripts(script: Script, calls: Iterable[Call]) -> Operation[list[Any]]:
    """Runs of a script in one round trip. Returns the replies; raises redis.RedisError at the first refused one."""
    requests = [Request.of(script, call) for call in calls]
    return accepted((yield requests)) if requests else []


class _Owner(Protocol):
    @property
    def client(self) -> redis.Redis: ...


class Bound(Generic[P, T]):
    """An operation of one object."""

    def __init__(self, client: redis.Redis, part: Callable[P, Operation[T]]) -> None:
        self._client = client
        #: Makes the operation, as a part of another one or for `run_together`.
        self.part = part

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run alone. Raises redis.RedisError."""
        return run(self._client, self.part(*args, **kwargs))


class operation(Generic[P, T]):  # noqa: N801 - a decorator
    """Marks a method that returns an operation; its object has a `client`."""

    def __init__(self, function: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self._function = function

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: _Owner, kind: type) -> Bound[P, T]: ...
    def __get__(self, owner: _Owner | None, kind: type) -> Self | Bound[P, T]:
        if owner is None:
            return self
        return Bound(owner.client, functools.partial(self._function, owner))


def run(client: redis.Redis, one: Operation[T]) -> T:
    """Run one operation. Raises what it raises."""
    (outcome,) = run_together(client, [one])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def run_together(client: redis.Redis, operations: Sequence[Operation[T]]) -> list[T | Exception]:
    """
    Run these operations side by side. Returns the result of each, or the error that it raised: one that fails does not
    touch the others. If the connection fails, all that still wait for a reply get the error.
    """
    outcomes: list[Any] = [None] * len(operations)
    waiting: dict[int, Sequence[Request]] = {}

    def resume(number: int, step: Callable[[], Sequence[Request]]) -> None:
        try:
            waiting[number] = step()
        except StopIteration as end:
            outcomes[number] = end.value
        except Exception as error:
            outcomes[number] = error

    for number, one in enumerate(operations):
        resume(number, functools.partial(next, one))
    while waiting:
        asked, waiting = waiting, {}
        broken: redis.RedisError | None = None
        for part in _parts(asked):
            requests = [request for number in part for request in asked[number]]
            try:
                if broken is not None:
                    raise broken
                replies = iter(_send(client, requests))
            except redis.RedisError as error:
                broken = error
                for number in part:
                    resume(number, functools.partial(operations[number].throw, error))
                continue
            for number in part:
                mine = [next(replies) for _ in asked[number]]
                resume(number, functools.partial(operations[number].send, mine))
    return outcomes


def _parts(asked: Mapping[int, Sequence[Request]]) -> Iterator[list[int]]:
    """The operations of each round trip. All that wait for replicas share one: each WAIT may take its whole time."""
    waiting = [number for number, requests in asked.items() if any(each.words[0] == "WAIT" for each in requests)]
    if waiting:
        yield waiting
    part, count = list[int](), 0
    for number, requests in asked.items():
        if waiting and number in waiting:
            continue
        if part and count + len(requests) > TOGETHER:
            yield part
            part, count = [], 0
        part.append(number)
        count += len(requests)
    if part:
        yield part


def _send(client: redis.Redis, requests: Sequence[Request]) -> list[Any]:
    """One round trip. Returns the reply to each request. A single WAIT, after all others, answers for all."""
    wait = next((request for request in requests if request.words[0] == "WAIT"), None)
    sent = [request for request in requests if request.words[0] != "WAIT"]
    pipeline: Any = client.pipeline(transaction=False)
    for request in (*sent, wait) if wait else sent:
        pipeline.execute_command(*request.words, **request.options)
    # For as long as the client waits for a reply, a script that runs in Redis counts as progress.
    progress.allow(client.connection_pool.connection_kwargs.get("socket_timeout") or 0.0)
    replies = list(pipeline.execute(raise_on_error=False))
    progress.step()
    having = replies.pop() if wait else None
    unknown: dict[Script, list[tuple[int, Call]]] = {}
    for number, (request, reply) in enumerate(zip(sent, replies, strict=True)):
        if isinstance(reply, NoScriptError) and request.script and request.call:
            unknown.setdefault(request.script, []).append((number, request.call))
    for script, runs in unknown.items():
        again = script.run_unknown(client, [call for _, call in runs], [replies[number] for number, _ in runs])
        for (number, _), reply in zip(runs, again, strict=True):
            replies[number] = reply
    found = iter(replies)
    return [having if request.words[0] == "WAIT" else next(found) for request in requests]
