"""Records what operators do in a bounded stream, which daemons export."""

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

from sweeperd.document import Count, Document, Moment, ShardsDocument, Truncated
from sweeperd.store import streams
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode, whole

if TYPE_CHECKING:
    from sweeperd.metrics import Metrics

log = logging.getLogger(__name__)

#: About how many actions are kept, and the characters of a target that are recorded.
KEPT, TARGET = 10_000, 500
#: Suffix of the counter of changed entries.
CHANGED = ":changed"
#: Seconds between two reads of a daemon.
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
    INDEX = "index"


class ActionDocument(Document):
    at: Moment
    shard: str
    who: str = Field(description="user@host.")
    action: str
    target: str
    count: Count = Field(description="How many entries it changed.")
    finished: bool = Field(
        description="False while it runs, if it was killed, or if an answer of Redis was lost: more may have changed."
    )


class ActionsDocument(ShardsDocument, title="sweeperd actions --json"):
    actions: list[ActionDocument] = Field(description="Newest first.")
    truncated: Truncated


def begin(shard: Shard, action: Action, target: str) -> bytes:
    """Records that an action begins. Returns the id of the record, which `record` needs at the end."""
    return record(shard, action, target, 0, finished=False)


def record(
    shard: Shard, action: Action, target: str, count: int = 1, begun: bytes = b"", *, finished: bool = True
) -> bytes:
    """
    Records an action; `begun` names the record of its beginning, which this one replaces. Not `finished`: it begins
    now, or an answer was lost, so that it may have changed more than `count` entries.
    """
    who, what = (decode(text.encode("utf-8", "surrogateescape")) for text in (_who(), target[:TARGET]))
    keys = [shard.keys.actions, shard.keys.action_counts]
    call = Call(keys, [KEPT, who, action, what, count, begun, "" if finished else 1])
    return cast(bytes, Script("ops/record_action").run(shard.client, call))


def read_actions(
    shard: Shard, first: bytes = streams.FIRST, *, newest_first: bool = False
) -> Iterator[tuple[bytes, ActionDocument]]:
    """The kept actions with their ids, from the id `first` on."""
    for entry, fields in streams.read(shard, shard.keys.actions, first, backwards=newest_first):
        texts = {name: decode(fields.get(name.encode(), b"")) for name in ("who", "action", "target")}
        count, finished = whole(fields.get(b"count", b"")) or 0, b"begun" not in fields
        at = streams.milliseconds(entry)
        yield entry, ActionDocument(at=at, shard=shard.name, count=count, finished=finished, **texts)


class ActionExporter:
    """Exports the counters of one shard, and logs each action that is recorded while the daemon runs."""

    def __init__(self, shard: Shard, metrics: "Metrics") -> None:
        self._shard = shard
        self._metrics = metrics
        self._seen: bytes | None = None
        self._next = 0.0

    def update(self) -> None:
        """Call this every few seconds. If Redis refuses the commands, the next call tries again."""
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
    except (KeyError, OSError):  # in a container the user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
