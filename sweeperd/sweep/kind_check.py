"""What is checked of a configured kind before its first sweep on a server."""

from collections.abc import Iterator
from typing import Any

import redis

from sweeperd.config.kinds import KindSettings
from sweeperd.errors import KindRefused
from sweeperd.store.cluster import ClusterClient
from sweeperd.store.errors import is_refused
from sweeperd.store.scripts import Call, Script
from sweeperd.sweep.kind_script import BASIC_GLOBALS, HIDDEN_GLOBALS, LIBRARIES

_COMPILES = Script("sweep/kind_compiles")
#: One harmless form of each command, after its key.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "HSET": ("f", "v"),
    "HDEL": ("f",),
    "HINCRBY": ("f", "1"),
    "INCRBY": ("1",),
    "SET": ("v",),
    "DEL": (),
    "ZADD": ("1", "m"),
    "ZREM": ("m",),
    "SADD": ("m",),
    "SREM": ("m",),
    "LPUSH": ("v",),
    "RPUSH": ("v",),
    "PEXPIRE": ("1",),
    "PUBLISH": ("m",),
    "XADD": ("*", "f", "v"),
}


def check_kind(kind: KindSettings, script: Script, index: bytes, client: "redis.Redis") -> None:
    """Raises KindRefused with the reason, or redis.RedisError."""
    if kind.script is not None:
        _check_script(kind, script, index, client)
    if refused := list(_refused_commands(kind, index, client)):
        raise KindRefused(f"{kind.name}: this user of Redis has no right to {', '.join(refused)}")


def _check_script(kind: KindSettings, script: Script, index: bytes, client: "redis.Redis") -> None:
    known = [*HIDDEN_GLOBALS, *BASIC_GLOBALS, *LIBRARIES]
    for text in (kind.script or "", script.source):
        reply: Any = _COMPILES.run(client, Call([index], [text, *known]))
        problem, asked, *unknown = reply
        if problem:
            where = problem.decode(errors="replace").removeprefix(index.decode(errors="replace") + ":")
            raise KindRefused(f"{kind.name}: the script does not compile, line {where}")
        if unknown:
            names = ", ".join(sorted(name.decode(errors="replace") for name in unknown))
            raise KindRefused(f"{kind.name}: this server has globals that a script would see: {names}")
        if not asked and kind.commands is None:
            raise KindRefused(
                f"{kind.name}: Redis 6.2 cannot be asked for rights, so a kind with a script has to name the commands"
                ' of its plans there, such as commands = ["HINCRBY"]'
            )


def own_commands(kind: KindSettings) -> list[str]:
    """The commands of the writes that every entry of the kind may need, and those of its plan."""
    planned = [command.name for command in kind.given_back] + (kind.commands or [])
    # A sum is written with HSET.
    planned = ["HSET" if name == "HINCRBY" else name for name in planned]
    end = ["PEXPIRE"] if kind.retention_ms else ["DEL"]
    return list(dict.fromkeys(["ZREM", "ZADD", "HSET", "XADD", *end, *planned]))


def _refused_commands(kind: KindSettings, index: bytes, client: "redis.Redis") -> Iterator[str]:
    """
    The commands that the user may not run. Asked of servers before Redis 7.0, whose scripts cannot ask before a write:
    each command is queued in a transaction that is then discarded, so nothing runs.
    """
    if isinstance(client, ClusterClient):
        return
    version = str(client.info("server").get("redis_version", "0"))
    if int(version.partition(".")[0]) >= 7:
        return
    connection: Any = client.connection_pool.get_connection()
    try:
        connection.send_command("MULTI")
        connection.read_response()
        for name in own_commands(kind):
            key = kind.channel_patterns[0].encode() if name == "PUBLISH" else index
            connection.send_command(name, key, *_ARGUMENTS[name])
            try:
                connection.read_response()
            except redis.ResponseError as error:
                if is_refused(error) or "permission" in str(error):
                    yield name
        connection.send_command("DISCARD")
        connection.read_response()
    finally:
        connection.disconnect()
        client.connection_pool.release(connection)
