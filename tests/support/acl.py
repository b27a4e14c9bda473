"""The user that `sweeperd acl` makes, for tests to run sweeperd as."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.ops.acl import Role, acl_users
from tests.support.servers import Server

#: The shipped file: for the default settings.
ACL = Path(__file__).parents[2] / "deploy" / "redis" / "sweeperd.acl"
PASSWORD = "only-for-tests"


def rules(prefix: str = "", *, commands: bool = False, role: Role = "all", **sections: object) -> list[str]:
    """What the user may do, with these settings: `events={"wait_replicas": 1}`."""
    place = {} if "shards" in sections else {"keys": {"prefix": prefix}}
    settings = Settings.model_validate(place | sections)
    (user,) = acl_users(settings, settings.all_shards, role, commands=commands)
    return user.rules


@contextlib.contextmanager
def limited(server: Server, client: redis.Redis, prefix: str = "", **given: Any) -> Iterator[str]:
    """
    The URL of the server for the user of these `rules`, while the block lasts. At its end nothing must have been
    refused to that user.
    """
    client.execute_command("ACL", "SETUSER", "sweeperd", "reset", f">{PASSWORD}", *rules(prefix, **given))
    client.acl_log_reset()
    try:
        yield server.url.replace("redis://", f"redis://sweeperd:{PASSWORD}@")
        assert refusals(client) == []
    finally:
        client.acl_deluser("sweeperd")


def refusals(client: redis.Redis) -> list[tuple[object, object]]:
    """What was refused to users since the log was reset: the reason, and the command or key."""
    return [
        (row[b"reason"], row[b"object"])
        for row in map(_row, client.execute_command("ACL", "LOG"))
        # redis-py says who it is (CLIENT SETINFO) and does not mind a refusal.
        # Before 7.2 it cannot be granted; 6.2 logs it without the subcommand.
        if row[b"object"] not in (b"client", b"client|setinfo")
    ]


def _row(row: object) -> dict[bytes, object]:
    if isinstance(row, dict):
        return {key if isinstance(key, bytes) else key.encode(): _bytes(value) for key, value in row.items()}
    assert isinstance(row, list)
    return dict(zip(row[::2], map(_bytes, row[1::2]), strict=True))


def _bytes(value: object) -> object:
    return value.encode() if isinstance(value, str) else value
