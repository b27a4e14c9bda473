"""
What `sweeperd:reconcile` keeps of the walks over the reservations, and of those over each configured kind: the last
complete one, its report, and the place of an unfinished one.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast

import pydantic
import redis

from sweeperd.ops.reconcile import Fault, KindCursor, KindFault, WalkCursor
from sweeperd.store.errors import is_full
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)


class WalkEnd(pydantic.BaseModel):
    """When a complete walk ended and what it found, by fault: JSON."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    #: ms on Redis's clock.
    finished_at: int
    found: Mapping[Any, int]

    @property
    def total(self) -> int:
        """How many findings there were."""
        return sum(self.found.values())


class LastWalk(WalkEnd):
    """The last complete walk over the reservations: the field `last`."""

    found: dict[Fault, int]
    #: EXPIRED reservations that another sweeper expired.
    foreign_expiries: int = 0


class LastKindWalk(WalkEnd):
    """The last complete walk over a configured kind: the field `last:<kind>`."""

    found: dict[KindFault, int]


def read_last_report(shard: Shard, kind: str = "") -> dict[str, Any] | None:
    """
    The report of the last walk over this configured kind (empty: reservations), as `as_dict` of the report made it.
    None without one. Raises redis.RedisError.
    """
    end = f":{kind}" if kind else ""
    last, report = shard.client.hmget(shard.keys.reconcile, f"last{end}", f"report{end}")
    try:
        parsed = json.loads(report or b"")
        finished_at = WalkEnd.model_validate_json(last or b"").finished_at
    except ValueError:
        return None
    remaining = sum(parsed["found"].values()) - sum(parsed["mended"].values())
    return {**parsed, "finished_at": finished_at, "remaining": remaining}


WalkT = TypeVar("WalkT", bound=WalkEnd)
CursorT = TypeVar("CursorT", bound=pydantic.BaseModel)


class _Walks(Generic[WalkT, CursorT]):
    """The fields of the hash about the walks over one thing. Methods raise redis.RedisError."""

    def __init__(self, shard: Shard, walk: type[WalkT], cursor: type[CursorT], end: str = "") -> None:
        """`end`: the end of the names of the fields."""
        self._shard = shard
        self._client = shard.client
        self._key = shard.keys.reconcile
        self._walk = walk
        self._cursor = cursor
        self._end = end

    def last(self) -> WalkT | None:
        """The last complete walk; None without one, or where the field cannot be read."""
        return cast(WalkT | None, self._read("last", self._walk))

    def cursor(self) -> CursorT | None:
        """The place of an unfinished walk."""
        return cast(CursorT | None, self._read("cursor", self._cursor))

    def write_cursor(self, cursor: CursorT) -> None:
        """Keep the place of a walk. A full Redis refuses it, and a later walk begins anew."""
        self._write({"cursor": cursor.model_dump_json()})

    def finish(self, walk: WalkT, report: str) -> bool:
        """A walk is complete; `report`: JSON. False where Redis is full and refuses to keep it."""
        self._client.hdel(self._key, f"cursor{self._end}")
        return self._write({"last": walk.model_dump_json(), "report": report})

    def _read(self, name: str, model: type[pydantic.BaseModel]) -> pydantic.BaseModel | None:
        field = name + self._end
        text = self._client.hget(self._key, field)
        if not isinstance(text, bytes):
            return None
        try:
            return model.model_validate_json(text)
        except ValueError:
            log.warning("what is kept of a reconcile cannot be read", extra={"shard": self._shard.name, "field": field})
            return None

    def _write(self, fields: dict[str, str]) -> bool:
        try:
            self._client.hset(self._key, mapping={name + self._end: value for name, value in fields.items()})
        except redis.ResponseError as error:
            if not is_full(error):
                raise
            return False
        return True


class WalkStore(_Walks[LastWalk, WalkCursor]):
    """Of the walks over the reservations, for the daemon and for `status`. Methods raise redis.RedisError."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, LastWalk, WalkCursor)


class KindWalkStore(_Walks[LastKindWalk, KindCursor]):
    """Of the walks over one configured kind. Methods raise redis.RedisError."""

    def __init__(self, shard: Shard, kind: str) -> None:
        super().__init__(shard, LastKindWalk, KindCursor, f":{kind}")
