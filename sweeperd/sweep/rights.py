"""The rights that a sweep needs, checked before it begins: without one of them nothing may be moved at all."""

from collections.abc import Mapping, Sequence
from typing import Any

import redis

from sweeperd.errors import KindRefused
from sweeperd.store.errors import REFUSED, describe
from sweeperd.store.scripts import Call, Script
from sweeperd.text import decode

_RIGHTS = Script("sweep/rights")


def check_rights(kind: str, needed: Mapping[bytes, Sequence[str]], client: "redis.Redis") -> None:
    """
    Check that the user may run these commands on these keys, which are known beforehand. Raises KindRefused, which
    names what is missing, or redis.RedisError.
    """
    replies = _RIGHTS.run_many(client, [Call([key], commands) for key, commands in needed.items()])
    missing = [problem for key, reply in zip(needed, replies, strict=True) if (problem := _missing(key, reply))]
    if missing:
        raise KindRefused(f"{kind}: this user of Redis has no right to {', '.join(missing)}")


def _missing(key: bytes, reply: Any) -> str:
    if isinstance(reply, REFUSED):
        return f"use {decode(key)} in a script ({describe(reply)})"
    if isinstance(reply, Exception):
        raise reply
    return f"run {', '.join(map(decode, reply))} on {decode(key)}" if reply else ""
