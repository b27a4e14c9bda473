"""Loads the Lua scripts and runs them; a script cache that was flushed is refilled without anybody noticing."""

import functools
import hashlib
import importlib.resources
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import NoScriptError

_INCLUDE = re.compile(r"^[ ]*-- @include (\w+)\n", re.MULTILINE)


@functools.cache
def source(name: str) -> str:
    """The text of `scripts/<name>.lua`, with each `-- @include other` line replaced by that file's text."""
    text = importlib.resources.files("sweeperd").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda include: source(include[1]), text)


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
        replies = _send(client, "EVALSHA", self.sha, calls)
        unknown = [position for position, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            # The server did not run these (restart, fail-over, SCRIPT FLUSH), so running them now runs them once. EVAL
            # loads the script and cannot be told again that it is unknown, however often the cache is flushed.
            again = _send(client, "EVAL", self.source, [calls[position] for position in unknown])
            for position, reply in zip(unknown, again, strict=True):
                replies[position] = reply
        return replies


def _send(client: "redis.Redis", command: str, script: str, calls: Sequence[Call]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command(command, script, len(call.keys), *call.keys, *call.args)  # type: ignore[no-untyped-call]
    return list(pipeline.execute(raise_on_error=False))
