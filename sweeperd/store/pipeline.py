"""Runs of one script that are sent before the replies to earlier runs have been read."""

from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import redis
from hiredis import pack_command
from redis.exceptions import NoScriptError

from sweeperd.store.cluster import TIME_SCRIPT, ClusterClient
from sweeperd.store.scripts import Call, Script, evaluate

_PACKED_TIME = pack_command(("TIME",))


class PipelineReplies(NamedTuple):
    """The replies to one batch of calls, and how long the server was busy with it by its own clock, µs."""

    replies: list[Any]
    #: None where TIME was refused, or where the server did not know the script at first.
    micros: int | None
    #: How long the server did other work while these calls were waiting in its input; None where they did not wait.
    pause_micros: int | None


class ScriptPipeline:
    """
    Batches of calls of one script, first in, first out, on a connection of its own. Redis works on the next batch while
    the process works on the replies to the last one, so that neither waits for the other. In a Cluster a command may be
    redirected to another node, so nothing is sent ahead there.
    """

    def __init__(self, script: Script, client: "redis.Redis") -> None:
        self._script = script
        self._client = client
        self._sent: deque[Sequence[Call]] = deque()
        self._connection: Any = None
        #: When the server was done with the last batch, µs, where the next one was waiting in its input by then.
        self._next_waits_since: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, calls: Sequence[Call]) -> None:
        """Send one batch. Raises redis.RedisError where the connection fails."""
        self._sent.append(calls)
        if isinstance(self._client, ClusterClient):
            return
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()
        sha = self._script.sha
        # redis-py packs with pack_command as well, but checks each argument in Python before it.
        commands: Any = (("EVALSHA", sha, len(call.keys), *call.keys, *call.args) for call in calls)
        packed = [pack_command(command) for command in commands]
        self._connection.send_packed_command([b"".join([_PACKED_TIME, *packed, _PACKED_TIME])])

    def receive(self) -> PipelineReplies:
        """
        The replies to the oldest batch that has none yet, as `Script.run_many` gives them. Raises redis.RedisError
        where the connection fails: which calls ran, of this batch and of later ones, is then unknown.
        """
        calls = self._sent.popleft()
        if isinstance(self._client, ClusterClient):
            # Each node of a Cluster answers TIME, also one that does not own the slot. A script goes by its key.
            clock = ("EVAL", TIME_SCRIPT, 1, self._client.slot.key)
            began, *replies, ended = evaluate(self._client, "EVALSHA", self._script.sha, calls, around=clock)
            busy = False
        else:
            busy = not self._connection.can_read(timeout=0)
            began, *replies, ended = [self._reply() for _ in range(len(calls) + 2)]
        since, until = _micros(began), _micros(ended)
        waited_since = self._next_waits_since
        self._next_waits_since = until if busy and self._sent else None
        known = not any(isinstance(reply, NoScriptError) for reply in replies)
        return PipelineReplies(
            self._script.run_unknown(self._client, calls, replies),
            until - since if known and since is not None and until is not None else None,
            None if since is None or waited_since is None else since - waited_since,
        )

    def close(self) -> None:
        """Give the connection back to the pool. One with unread replies is disconnected first."""
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


def _micros(time: Any) -> int | None:
    """A reply to TIME in µs."""
    return None if isinstance(time, Exception) else int(time[0]) * 1_000_000 + int(time[1])
