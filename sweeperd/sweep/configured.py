"""What is checked of a configured kind before its first sweep on a server."""

import functools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import KindRefused
from sweeperd.store.connect import ClusterClient
from sweeperd.store.errors import is_refused
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call, Script
from sweeperd.sweep.kind import Decision, Kind, Outcome
from sweeperd.sweep.kind_script import BASIC_GLOBALS, FILE_FAILED, HIDDEN_GLOBALS, LIBRARIES, kind_script
from sweeperd.sweep.reservations import reservations
from sweeperd.text import decode, decode_list

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


# ---- the kinds of the settings, as the sweep takes them


def all_kinds(settings: Settings, keys: Keys) -> list[Kind]:
    """Reservations, where they are enabled, and each of `[[kinds]]`."""
    built_in = [reservations(keys, settings.sweep)] if settings.reservations.enabled else []
    return [*built_in, *(configured(kind, settings, keys) for kind in settings.kinds)]


def configured(kind: KindSettings, settings: Settings, keys: Keys) -> Kind:
    """One of `[[kinds]]`."""
    index, events, quarantine = keys.kind_index(kind.index), keys.events, keys.kind_quarantine(kind.name)
    # What expired together must not all end together: Redis would have to free it within the same moment.
    retention_ms, spread_ms = kind.retention_ms, int(kind.retention_ms * settings.sweep.audit_spread)
    script = Script(f"kind {kind.name}", kind_script(kind, settings.kinds, settings.reservations.enabled))

    def call(entry: bytes, trace_id: str) -> Call:
        retention = retention_ms + int(random.random() * spread_ms)  # noqa: S311
        return Call(
            [keys.kind_entry(kind.entry, entry), index, events, quarantine],
            [entry, keys.prefix, retention, trace_id],
        )

    check = functools.partial(check_kind, kind, script, index)
    return Kind(kind.name, index, quarantine, script, call, _decision, is_broken_by=_is_broken_by, check=check)


def _is_broken_by(error: Exception) -> bool:
    """Whether the user's file fails before its functions are called, or somebody has killed the script."""
    return FILE_FAILED in str(error) or "SCRIPT KILL" in str(error)


def _decision(entry: bytes, reply: Sequence[Any]) -> Decision:
    """The reply of a kind's script; its shapes are listed in kind_script.py."""
    outcome = Outcome(reply[0].decode())
    match outcome:
        case Outcome.EXPIRED:
            _, tenant, lag_ms, missing = reply
            return Decision(entry, outcome, tenant=tenant, lag_ms=lag_ms, missing=decode_list(missing))
        case Outcome.QUARANTINED:
            _, reason, tenant, why = reply
            return Decision(entry, outcome, decode(reason), tenant=tenant, why=decode(why))
        case Outcome.SKIPPED:
            return Decision(entry, outcome, decode(reply[1]))
        case Outcome.IN_GRACE:
            return Decision(entry, outcome, grace_end_ms=reply[1])
        case _:
            return Decision(entry, outcome)
