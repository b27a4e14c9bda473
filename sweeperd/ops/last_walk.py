"""What `sweeperd:reconcile` keeps of walks: the last complete one, its report, and the place of an unfinished one."""

import json
import logging
from typing import Any, cast

import pydantic
import redis

from sweeperd.ops.reconcile import Fault, ReconcileReport, WalkCursor
from sweeperd.store.errors import is_full
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)


class LastWalk(pydantic.BaseModel):
    """The last complete walk in numbers: the field `last`, JSON."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    #: ms on Redis's clock.
    finished_at: int
    found: dict[Fault, int]
    #: EXPIRED reservations that another sweeper expired.
    foreign_expiries: int = 0

    @property
    def total(self) -> int:
        """How many findings there were."""
        return sum(self.found.values())


def read_last_report(shard: Shard) -> dict[str, Any] | None:
    """The report of the last walk, as `ReconcileReport.as_dict` made it. None without one. Raises redis.RedisError."""
    last, report = shard.client.hmget(shard.keys.reconcile, "last", "report")
    try:
        parsed = json.loads(report or b"")
        finished_at = LastWalk.model_validate_json(last or b"").finished_at
    except ValueError:
        return None
    remaining = sum(parsed["found"].values()) - sum(parsed["mended"].values())
    return {**parsed, "finished_at": finished_at, "remaining": remaining}


class WalkStore:
    """Reads and writes the hash, for the daemon's walks and for `status`. Raises redis.RedisError."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._client = shard.client
        self._key = shard.keys.reconcile

    def last(self) -> LastWalk | None:
        """The last complete walk; None without one, or where the field cannot be read."""
        return cast(LastWalk | None, self._read("last", LastWalk))

    def cursor(self) -> WalkCursor | None:
        """The place of an unfinished walk."""
        return cast(WalkCursor | None, self._read("cursor", WalkCursor))

    def write_cursor(self, cursor: WalkCursor) -> None:
        """Keep the place of a walk. A full Redis refuses it, and a later walk begins anew."""
        self._write({"cursor": cursor.model_dump_json()})

    def finish(self, walk: LastWalk, report: ReconcileReport) -> bool:
        """A walk is complete. False where Redis is full and refuses to keep it."""
        self._client.hdel(self._key, "cursor")
        return self._write({"last": walk.model_dump_json(), "report": report.as_json()})

    def _read(self, field: str, model: type[Any]) -> Any:
        text = self._client.hget(self._key, field)
        if not isinstance(text, bytes):
            return None
        try:
            return model.model_validate_json(text)
        except ValueError:
            log.warning("what is kept of a reconcile cannot be read", extra={"shard": self._shard.name, "field": field})
            return None

    def _write(self, fields: dict[Any, Any]) -> bool:
        try:
            self._client.hset(self._key, mapping=fields)
        except redis.ResponseError as error:
            if not is_full(error):
                raise
            return False
        return True
