"""Classifies the errors of sweeps, walks and runs."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import redis

from sweeperd.errors import KindRefused, RedisUnavailable
from sweeperd.store.errors import describe

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """
    Classifies an error of a sweep, a walk or a run. Each counts as `error`, makes `--once` exit with 1, and leaves
    other kinds and shards alone. The daemon tries again at the next tick, but a refused kind is only checked again.
    """

    #: `redis`: Redis is not available, and `redis_up` is 0. `refused`: the kind cannot be swept on this server.
    #: `command`: Redis refused a command, such as one on a key of another type. `bug`: a fault of sweeperd, the only
    #: failure that is logged with its traceback.
    category: Literal["redis", "refused", "command", "bug"]
    cause: str
    error: Exception

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        match error:
            case RedisUnavailable():
                return cls("redis", str(error), error)
            case KindRefused():
                return cls("refused", str(error), error)
            case redis.ResponseError():
                return cls("command", describe(error), error)
            case _:
                return cls("bug", type(error).__name__, error)

    def log(self, level: int, line: str, fields: Mapping[str, object], text: str = "") -> None:
        """Log the failure, with `text` instead of the cause."""
        traceback = self.error if self.category == "bug" else None
        log.log(level, line, extra={**fields, "error": text or self.cause}, exc_info=traceback)
