"""Loads Lua scripts and runs them: by SHA1, or with the whole text if the server doesn't know the script."""

import functools
import hashlib
import importlib.resources
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

import redis
from hiredis import pack_command
from redis.exceptions import NoScriptError

from sweeperd import progress
from sweeperd.store.connect import TIME_SCRIPT, ClusterClient

#: A line that includes the text of another file: `-- @include clock` is `include/clock.lua`.
_INCLUDE = re.compile(r"^( *)-- @include ([\w/]+)\n", re.MULTILINE)

#: The folder of the fragments that scripts include. A fragment cannot run by itself.
INCLUDE = "include"
_PACKED_TIME = pack_command(("TIME",))
#: The words of one command.
Command = tuple[Any, ...]

T = TypeVar("T")


def script_names(folder: str = "") -> list[str]:
    """The sorted names of all scripts, `<folder>/<file>`, or of one folder (`include` for the fragments)."""
    folders = importlib.resources.files("sweeperd").joinpath("scripts").iterdir()
    return sorted(
        f"{directory.name}/{file.name.removesuffix('.lua')}"
        for directory in folders
        if directory.is_dir() and (directory.name == folder if folder else directory.name != INCLUDE)
        for file in directory.iterdir()
        if file.name.endswith(".lua")
    )


@functools.cache
def own_text(name: str) -> str:
    """The text of `scripts/<name>.lua` before its includes are expanded."""
    return importlib.resources.files("sweeperd").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")


@functools.cache
def read_all() -> None:
    """Read every script once, so that this process keeps its own while another version is installed."""
    for name in (*script_names(), *script_names(INCLUDE)):
        own_text(name)


@functools.cache
def source(name: str) -> str:
    """The text of `scripts/<name>.lua` with its includes expanded, as sent to the server."""
    return expand(own_text(name))


def expand(text: str, read: Callable[[str], str] | None = None) -> str:
    """Expands the includes of a text. `read` returns the text of a file by its name, instead of `own_text`."""
    return _expand(text, set(), read or own_text)


def _expand(text: str, present: set[str], read: Callable[[str], str]) -> str:
    """
    Replaces each `-- @include` line by the text of the named file, which may include more. A file that is already
    `present` is left out, so that each appears once.

    An indented include is scoped to its block: after the block, the file is no longer present.
    """
    block, indent, end = set[str](), "", 0

    def included(line: re.Match[str]) -> str:
        nonlocal block, indent, end
        other = line[2] if "/" in line[2] else f"{INCLUDE}/{line[2]}"
        known = present
        if line[1]:
            left = re.search(rf"^(?!{line[1]}|$)", text[end : line.start()], re.MULTILINE)
            if left or line[1] != indent:
                block = set(present)
            known, indent, end = block, line[1], line.end()
        if other in known:
            return ""
        known.add(other)
        return _expand(read(other), known, read)

    return _INCLUDE.sub(included, text)


@dataclass(frozen=True)
class Call:
    """One run of a script: its KEYS and its ARGV."""

    keys: Sequence[bytes]
    args: Sequence[bytes | str | int]


class Script:
    """A script, `scripts/<name>.lua` or `text`, which a function makes before the first run. Sent by SHA1 if known."""

    def __init__(self, name: str, text: str | Callable[[], str] | None = None) -> None:
        self.name = name
        self._text = text

    @functools.cached_property
    def source(self) -> str:
        if self._text is None:
            return source(self.name)
        return self._text if isinstance(self._text, str) else self._text()

    @functools.cached_property
    def sha(self) -> str:
        """The digest by which the server knows the text."""
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def forget(self) -> None:
        """Call the `text` function again before the next run."""
        for name in ("source", "sha"):
            self.__dict__.pop(name, None)

    def run(self, client: "redis.Redis", call: Call) -> Any:
        """Run once and return the reply. Raises redis.RedisError."""
        (reply,) = accepted(self.run_many(client, [call]))
        return reply

    def run_many(self, client: "redis.Redis", calls: Sequence[Call]) -> list[Any]:
        """
        Run the calls in one pipelined round trip. Returns the replies in order, with the error of a failed call as its
        reply. Raises redis.RedisError if the connection fails; any of the calls may then have run.
        """
        return self.run_unknown(client, calls, evaluate(client, "EVALSHA", self.sha, calls))

    def run_timed(self, client: "redis.Redis", calls: Sequence[Call]) -> tuple[list[Any], int | None]:
        """Like `run_many`, with how long the server worked on the calls, like `PipelineReplies.micros`."""
        began, *replies, ended = evaluate(client, "EVALSHA", self.sha, calls, around=server_clock(client))
        micros = _micros_between(began, replies, ended)
        return self.run_unknown(client, calls, replies), micros

    def run_unknown(self, client: "redis.Redis", calls: Sequence[Call], replies: list[Any]) -> list[Any]:
        """Rerun the calls whose reply is NOSCRIPT, and replace those replies. Raises redis.RedisError."""
        unknown = [position for position, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            # The server didn't run these (restart, failover, SCRIPT FLUSH), so each runs once. EVAL carries the script,
            # so it never gets NOSCRIPT, however often the cache is flushed.
            again = evaluate(client, "EVAL", self.source, [calls[position] for position in unknown])
            for position, reply in zip(unknown, again, strict=True):
                replies[position] = reply
        return replies


def evaluate(
    client: "redis.Redis", command: str, script: str, calls: Sequence[Call], *, around: Command = ()
) -> list[Any]:
    """
    Run the calls by EVAL or EVALSHA in one pipeline. `around` is a command that is sent both before and after the
    calls; its replies come first and last. A failed command's reply is its error. Raises redis.RedisError.
    """
    beside = [around] if around else []
    progress.allow(_longest_reply(client))
    return run_commands(
        client, [*beside, *((command, script, len(call.keys), *call.keys, *call.args) for call in calls), *beside]
    )


def _longest_reply(client: "redis.Redis") -> float:
    """How long the client waits for a reply, seconds. For that long, a script that runs in Redis counts as progress."""
    return client.connection_pool.connection_kwargs.get("socket_timeout") or 0.0


def run_commands(client: "redis.Redis", commands: Iterable[Command]) -> list[Any]:
    """Run the commands in one pipeline. The reply to a failed one is its error. Raises redis.RedisError."""
    pipeline: Any = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    replies = list(pipeline.execute(raise_on_error=False))
    progress.step()
    return replies


def accepted(replies: list[Any]) -> list[Any]:
    """The replies. Raises the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def batches(items: Sequence[T], length: int) -> Iterator[Sequence[T]]:
    """The items in order, in lists of up to `length`."""
    return (items[start : start + length] for start in range(0, len(items), length))


class PipelineReplies(NamedTuple):
    """The replies to one batch of calls, and how long the server worked on it by its own clock, µs."""

    replies: list[Any]
    #: None if TIME was refused, or if the server didn't know the script at first.
    micros: int | None
    #: How long the server did other work while these calls waited in its input; None if they didn't wait.
    pause_micros: int | None


class ScriptPipeline:
    """
    Pipelines batches of calls of one script on its own connection. Redis works on the next batch while the process
    handles the replies to the last one, so that neither waits for the other. In a Cluster a command may be redirected
    to another node, so no batch is sent ahead.
    """

    def __init__(self, script: Script, client: "redis.Redis") -> None:
        self._script = script
        self._client = client
        self._sent: deque[Sequence[Call]] = deque()
        self._connection: Any = None
        #: When the server finished the last batch, µs, if the next batch was already waiting in its input.
        self._next_waits_since: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, calls: Sequence[Call]) -> None:
        """Send one batch. Raises redis.RedisError if the connection fails."""
        self._sent.append(calls)
        if isinstance(self._client, ClusterClient):
            return
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()
        sha = self._script.sha
        # redis-py also packs with pack_command, but first checks each argument in Python.
        commands: Any = (("EVALSHA", sha, len(call.keys), *call.keys, *call.args) for call in calls)
        packed = [pack_command(command) for command in commands]
        self._connection.send_packed_command([b"".join([_PACKED_TIME, *packed, _PACKED_TIME])])

    def receive(self) -> PipelineReplies:
        """
        The replies to the oldest pending batch, as from `Script.run_many`. Raises redis.RedisError if the connection
        fails; any calls of this batch and of later ones may then have run.
        """
        calls = self._sent[0]
        if isinstance(self._client, ClusterClient):
            clock = server_clock(self._client)
            began, *replies, ended = evaluate(self._client, "EVALSHA", self._script.sha, calls, around=clock)
            busy = False
        else:
            busy = not self._connection.can_read(timeout=0)
            progress.allow(_longest_reply(self._client))
            began, *replies, ended = [self._reply() for _ in range(len(calls) + 2)]
        # Last, so that `close` knows about unread replies if an exception interrupts the reading.
        self._sent.popleft()
        progress.step()
        since, until = micros_of(began), micros_of(ended)
        waited_since = self._next_waits_since
        self._next_waits_since = until if busy and self._sent else None
        micros = _micros_between(began, replies, ended)
        return PipelineReplies(
            self._script.run_unknown(self._client, calls, replies),
            micros,
            None if since is None or waited_since is None else since - waited_since,
        )

    def close(self) -> None:
        """Return the connection to the pool, disconnected if it has unread replies."""
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


def server_clock(client: "redis.Redis") -> tuple[Any, ...]:
    """The command that reads the server's clock, for `micros_of`."""
    # Every node of a Cluster answers TIME, even without the slot. A script is routed by its key.
    return ("EVAL", TIME_SCRIPT, 1, client.slot.key) if isinstance(client, ClusterClient) else ("TIME",)


def _micros_between(began: Any, replies: Sequence[Any], ended: Any) -> int | None:
    """See `PipelineReplies.micros`."""
    since, until = micros_of(began), micros_of(ended)
    known = not any(isinstance(reply, NoScriptError) for reply in replies)
    return until - since if known and since is not None and until is not None else None


def micros_of(time: Any) -> int | None:
    """A reply to TIME in µs."""
    return None if isinstance(time, Exception) else int(time[0]) * 1_000_000 + int(time[1])
