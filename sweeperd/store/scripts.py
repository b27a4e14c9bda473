"""Loads the Lua scripts and runs them; a script cache that was flushed is refilled without anybody noticing."""

import contextlib
import functools
import hashlib
import importlib.resources
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis
from hiredis import pack_command
from redis.exceptions import NoScriptError

from sweeperd.store.cluster import TIME_SCRIPT, ClusterClient

_TIME = ("TIME",)
_PACKED_TIME = pack_command(_TIME)
_INCLUDE = re.compile(r"^[ ]*-- @include ([\w/]+)\n", re.MULTILINE)


#: The folder of the fragments: text that scripts include, and no script of its own.
INCLUDE = "include"


def script_names() -> list[str]:
    """The name of every script that is sent to Redis, `<folder>/<file>`, in order."""
    folders = importlib.resources.files("sweeperd").joinpath("scripts").iterdir()
    return sorted(
        f"{folder.name}/{file.name.removesuffix('.lua')}"
        for folder in folders
        if folder.is_dir() and folder.name != INCLUDE
        for file in folder.iterdir()
        if file.name.endswith(".lua")
    )


@functools.cache
def source(name: str) -> str:
    """The text of `scripts/<name>.lua`, with each `-- @include other` line replaced by that file's text."""
    text = importlib.resources.files("sweeperd").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda include: source(include[1] if "/" in include[1] else f"{INCLUDE}/{include[1]}"), text)


@dataclass(frozen=True)
class Call:
    """One run of a script: what it may touch, and what it is told."""

    keys: Sequence[bytes]
    args: Sequence[bytes | str | int]


class Script:
    """One script, `scripts/<name>.lua` or `text`: sent by its SHA1, and whole where the server does not know it."""

    def __init__(self, name: str, text: str | None = None) -> None:
        self.name = name
        self.source = source(name) if text is None else text
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def run(self, client: "redis.Redis", call: Call) -> Any:
        """Run once and return the reply. Raises redis.RedisError."""
        reply = self.run_many(client, [call])[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def run_many(self, client: "redis.Redis", calls: Sequence[Call]) -> list[Any]:
        """
        Run each call, pipelined in one round trip. Returns the replies in order; what a single call raised stands in
        its place. Raises redis.RedisError where the connection as a whole fails: what was done by then is unknown.
        """
        return self._run_unknown(client, calls, _send(client, "EVALSHA", self.sha, calls))

    @contextlib.contextmanager
    def stream(self, client: "redis.Redis") -> Iterator["ScriptPipeline"]:
        """Runs of it on a connection of their own, sent before the replies to earlier ones were read."""
        stream = ScriptPipeline(self, client)
        try:
            yield stream
        finally:
            stream.close()

    def _run_unknown(self, client: "redis.Redis", calls: Sequence[Call], replies: list[Any]) -> list[Any]:
        """Run what the server did not know."""
        unknown = [position for position, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            # The server did not run these (restart, fail-over, SCRIPT FLUSH), so running them now runs them once. EVAL
            # loads the script and cannot be told again that it is unknown, however often the cache is flushed.
            again = _send(client, "EVAL", self.source, [calls[position] for position in unknown])
            for position, reply in zip(unknown, again, strict=True):
                replies[position] = reply
        return replies


class PipelineReplies(NamedTuple):
    """The replies to what was sent in one go, and by the server's own clock how long it was busy with it, in µs."""

    replies: list[Any]
    #: None where it did not tell, or did not know the script at first.
    micros: int | None
    #: How long it was busy with something else before it came to these, where they had been waiting for it.
    pause_micros: int | None


class ScriptPipeline:
    """
    Runs of one script, first in, first out. Redis works on what was sent while we work on its last replies, so that
    neither waits for the other. In a Cluster, where a command may have to go elsewhere, nothing is sent ahead.
    """

    def __init__(self, script: Script, client: "redis.Redis") -> None:
        self._script = script
        self._client = client
        self._sent: deque[Sequence[Call]] = deque()
        self._connection: Any = None
        #: When the server was done with the last replies, µs, where what follows them was waiting there by then.
        self._next_waits_since: int | None = None

    def send(self, calls: Sequence[Call]) -> None:
        """Send these. Raises redis.RedisError where the connection fails."""
        self._sent.append(calls)
        if isinstance(self._client, ClusterClient):
            return
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()
        sha = self._script.sha
        # redis-py packs with this as well, but goes over each argument beforehand.
        commands: Any = (("EVALSHA", sha, len(call.keys), *call.keys, *call.args) for call in calls)
        packed = [pack_command(command) for command in commands]
        self._connection.send_packed_command([b"".join([_PACKED_TIME, *packed, _PACKED_TIME])])

    def receive(self) -> PipelineReplies:
        """
        The replies to the first that were sent and not received yet, as `run_many` gives them. Raises redis.RedisError
        where the connection fails: what was done of these, and of those behind them, is unknown.
        """
        calls = self._sent.popleft()
        if self._connection is None:
            began, *replies, ended = _send(self._client, "EVALSHA", self._script.sha, calls, timed=True)
            busy = False
        else:
            busy = not self._connection.can_read(timeout=0)
            began, *replies, ended = [self._reply() for _ in range(len(calls) + 2)]
        since, until = _micros(began), _micros(ended)
        waited_since = self._next_waits_since
        self._next_waits_since = until if busy and self._sent else None
        known = not any(isinstance(reply, NoScriptError) for reply in replies)
        return PipelineReplies(
            self._script._run_unknown(self._client, calls, replies),
            until - since if known and since is not None and until is not None else None,
            None if since is None or waited_since is None else since - waited_since,
        )

    def close(self) -> None:
        """Give the connection back; one with replies on the way is of no use to anybody."""
        if self._connection is not None:
            if self._sent:
                self._connection.disconnect()
            self._client.connection_pool.release(self._connection)
            self._connection = None

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except redis.ResponseError as error:
            return error
        except BaseException:
            self._connection.disconnect()
            raise


def _send(client: "redis.Redis", command: str, script: str, calls: Sequence[Call], *, timed: bool = False) -> list[Any]:
    """`timed`: the server's clock comes before the first reply and after the last."""
    pipeline: Any = client.pipeline(transaction=False)
    # Each node of a Cluster answers TIME, also one that is not asked for anything else; a script goes by its key.
    clock = ("EVAL", TIME_SCRIPT, 1, client.slot.key) if isinstance(client, ClusterClient) else _TIME
    if timed:
        pipeline.execute_command(*clock)
    for call in calls:
        pipeline.execute_command(command, script, len(call.keys), *call.keys, *call.args)
    if timed:
        pipeline.execute_command(*clock)
    return list(pipeline.execute(raise_on_error=False))


def _micros(time: Any) -> int | None:
    """A reply to TIME in µs."""
    return None if isinstance(time, Exception) else int(time[0]) * 1_000_000 + int(time[1])
