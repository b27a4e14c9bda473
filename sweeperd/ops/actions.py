"""The actions of operators: recorded in a bounded stream, counted in Redis, exported by the daemons."""

import contextlib
import enum
import getpass
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import redis
from pydantic import Field

from sweeperd.document import CommandDocument, Count, Document, Down, Moment
from sweeperd.store import streams
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode, whole

if TYPE_CHECKING:
    from sweeperd.metrics import Metrics

log = logging.getLogger(__name__)

#: How many actions are kept, about, and the longest target that is recorded, characters.
KEPT, TARGET = 10_000, 500
#: After the name of an action: how many entries all actions of this name have changed.
CHANGED = ":changed"
#: How often a daemon reads the actions of a shard, seconds.
EXPORT_EVERY = 10.0


class Action(enum.StrEnum):
    REQUEUE = "requeue"
    DISMISS = "dismiss"
    ADOPT = "adopt"
    REPLAY = "replay"
    CANCEL_REPLAY = "cancel-replay"
    DROP = "drop"
    DROP_BACKLOG = "drop-backlog"
    SKIP = "skip"
    PAUSE = "pause"
    RESUME = "resume"
    REPAIR = "repair"
    REPAIR_BUDGET = "repair-budget"
    ACCEPT_KIND = "accept-kind"


class ActionDocument(Document):
    at: Moment
    shard: str
    who: str = Field(description="user@host.")
    action: str
    target: str
    count: Count = Field(description="How many entries it changed.")
    finished: bool = Field(description="False: it began, and has not ended or was killed.")


class ActionsDocument(CommandDocument, title="sweeperd actions --json"):
    actions: list[ActionDocument] = Field(description="The newest first.")
    down: Down


def begin(shard: Shard, action: Action, target: str) -> bytes:
    """Record that an action begins. Returns the id of the record, for `record` at the end. Raises redis.RedisError."""
    return _record(shard, action, target, 0, "begun")


def record(shard: Shard, action: Action, target: str, count: int = 1, begun: bytes = b"") -> None:
    """Record a finished action, in place of the record of its begin if there is one. Raises redis.RedisError."""
    _record(shard, action, target, count, begun)


def _record(shard: Shard, action: Action, target: str, count: int, begun: bytes | str) -> bytes:
    call = Call([shard.keys.actions, shard.keys.action_counts], [KEPT, _who(), action, target[:TARGET], count, begun])
    return cast(bytes, Script("ops/record_action").run(shard.client, call))


def read_actions(
    shard: Shard, first: bytes = streams.FIRST, *, newest_first: bool = False
) -> Iterator[tuple[bytes, ActionDocument]]:
    """The kept actions with their ids, from the id `first` on. Raises redis.RedisError."""
    for entry, fields in streams.read(shard, shard.keys.actions, first, backwards=newest_first):
        who, action, target, count = (fields.get(name, b"") for name in (b"who", b"action", b"target", b"count"))
        yield (
            entry,
            ActionDocument(
                at=streams.milliseconds(entry),
                shard=shard.name,
                who=decode(who),
                action=decode(action),
                target=decode(target),
                count=whole(count) or 0,
                finished=b"begun" not in fields,
            ),
        )


class ActionExporter:
    """Exports the counts of one shard from a daemon, and logs each action that is recorded while the daemon runs."""

    def __init__(self, shard: Shard, metrics: "Metrics") -> None:
        self._shard = shard
        self._metrics = metrics
        self._seen: bytes | None = None
        self._next = 0.0

    def update(self) -> None:
        """To be called every few seconds. If Redis refuses the commands, the next call tries again."""
        if time.monotonic() < self._next:
            return
        with contextlib.suppress(redis.RedisError):
            self._export()
            self._next = time.monotonic() + EXPORT_EVERY

    def _export(self) -> None:
        for kept, suffix in ((self._metrics.operator_actions, ""), (self._metrics.operator_changes, CHANGED)):
            counts = self._shard.client.hmget(self._shard.keys.action_counts, [action + suffix for action in Action])
            numbers = {action.value: int(count or 0) for action, count in zip(Action, counts, strict=True)}
            kept.set(self._shard.name, numbers)
        if self._seen is None:
            self._seen = streams.last_id(self._shard.client, self._shard.keys.actions)
            return
        for entry, action in read_actions(self._shard, streams.after(self._seen)):
            self._seen = entry
            log.info("an operator acted", extra=action.model_dump(exclude={"at"}))


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
