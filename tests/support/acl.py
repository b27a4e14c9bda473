"""The user that deploy/redis/sweeperd.acl makes, for tests to run sweeperd as."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import redis

from sweeperd.store.embedded import Server

ACL = Path(__file__).parents[2] / "deploy" / "redis" / "sweeperd.acl"
PASSWORD = "only-for-tests"


def rules(prefix: str = "") -> list[str]:
    """What the user may do, with the prefix put before each key as the README says."""
    user, name, *rest = ACL.read_text().split()
    assert (user, name) == ("user", "sweeperd")
    return ["~" + prefix + rule[1:] if rule.startswith("~") else rule for rule in rest]


@contextlib.contextmanager
def limited(server: Server, client: redis.Redis, prefix: str = "") -> Iterator[str]:
    """The URL of the server for that user, while the block lasts; at its end nothing must have been refused to it."""
    client.execute_command("ACL", "SETUSER", "sweeperd", "reset", f">{PASSWORD}", *rules(prefix))
    client.acl_log_reset()
    try:
        yield server.url.replace("redis://", f"redis://sweeperd:{PASSWORD}@")
        refused = [
            (row[b"reason"], row[b"object"])
            for row in map(_row, client.execute_command("ACL", "LOG"))
            # redis-py says who it is (CLIENT SETINFO) and does not mind a refusal.
            # Before 7.2 it cannot be granted; 6.2 logs it without the subcommand.
            if row[b"object"] not in (b"client", b"client|setinfo")
        ]
        assert refused == []
    finally:
        client.acl_deluser("sweeperd")


def _row(row: object) -> dict[bytes, object]:
    if isinstance(row, dict):
        return {key if isinstance(key, bytes) else key.encode(): _bytes(value) for key, value in row.items()}
    assert isinstance(row, list)
    return dict(zip(row[::2], map(_bytes, row[1::2]), strict=True))


def _bytes(value: object) -> object:
    return value.encode() if isinstance(value, str) else value
