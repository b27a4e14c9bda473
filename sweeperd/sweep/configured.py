"""Builds the kinds of a shard from the settings, each with the checks that precede its first sweep on a server."""

import functools
import hashlib
import json
import random
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import KindRefused
from sweeperd.store.connect import ClusterClient
from sweeperd.store.errors import is_refused
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call, Script, expand, own_text, source
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Breakage, Kind, Labels, Sums
from sweeperd.sweep.kind_script import (
    BASIC_GLOBALS,
    FILE_FAILED,
    HIDDEN_GLOBALS,
    LIBRARIES,
    json_deadline,
    kind_script,
    lua_key,
    more_keys,
    sums_script,
)
from sweeperd.sweep.reservations import RESERVATIONS, reservations

#: The kinds of each shard, and the settings that the kinds were built from.
_built: "weakref.WeakKeyDictionary[Shard, tuple[Settings, Mapping[str, Kind]]]" = weakref.WeakKeyDictionary()
#: By the keys, which a shard shares with its twins: the breakage of each kind.
_broken: "weakref.WeakKeyDictionary[Keys, tuple[Settings, Mapping[str, Breakage]]]" = weakref.WeakKeyDictionary()
_COMPILES = Script("sweep/kind_compiles")
#: The reasons for a quarantine in any kind, with their meaning for the operator.
_REASONS = {
    "WRONG_TYPE": "the entry's key is of another type",
    "INVALID_EXPIRY": "the field of the deadline is not a plain whole number of milliseconds, or is in seconds",
    "INVALID_PLAN": "a write would fail or is not allowed; `show` names the write",
}
_FORMS_OF_ENTRIES = {
    "hash": {},
    "json": {"INVALID_JSON": "the string is not a JSON object of up to 64 KiB"},
    "member": {"INVALID_MEMBER": "the member of the index does not fit `member`"},
}
_MISSING_FIELD = {"MISSING_FIELD": "a template needs a field that is missing or empty"}
_DECLARED = {"INVALID_STATE": "a field of `active` is missing"} | _MISSING_FIELD
_SCRIPTED = {"SCRIPT_ERROR": "the script failed or gave no valid answer; `show` names the line"}
_TOO_MANY_FIELDS = {"TOO_MANY_FIELDS": "the hash has more than 256 fields, and `fields` names none"}
_PROTECTED_TOO_LONG = {"PROTECTED_TOO_LONG": "`unless` has protected the entry for longer than `unless_max`"}
#: A harmless form of each command, without its key.
_FORMS = (
    "HSET f v/HDEL f/HINCRBY f 1/INCRBY 1/SET v/DEL/PERSIST/ZADD 1 m/ZREM m/SADD m/SREM m/LPUSH v/RPUSH v/PEXPIRE 1/"
    "PUBLISH m/XADD * f v"
)
_ARGUMENTS = {name: words for name, *words in map(str.split, _FORMS.split("/"))}


def kind_names(settings: Settings) -> list[str]:
    return [*([RESERVATIONS] if settings.reservations.enabled else []), *(kind.name for kind in settings.kinds)]


def kinds_of(settings: Settings, shard: Shard) -> Mapping[str, Kind]:
    """All kinds that are swept on the shard, by name. Built once per shard, so that each script is generated once."""
    known, kinds = _built.get(shard, (None, {}))
    if known is not settings:
        balances = settings.events.balances
        enabled = settings.reservations.enabled
        built_in = [reservations(shard.keys, settings.sweep, balances=balances)] if enabled else []
        declared = [configured(kind, settings, shard.keys) for kind in settings.kinds]
        broken = _breakages(settings, shard)
        kinds = {kind.name: replace(kind, breakage=broken[kind.name]) for kind in [*built_in, *declared]}
        _built[shard] = settings, kinds
    return kinds


def _breakages(settings: Settings, shard: Shard) -> Mapping[str, Breakage]:
    known, broken = _broken.get(shard.keys, (None, {}))
    if known is not settings:
        broken = {name: Breakage() for name in kind_names(settings)}
        _broken[shard.keys] = settings, broken
    return broken


def configured(kind: KindSettings, settings: Settings, keys: Keys) -> Kind:
    """The kind of one table of `[[kinds]]`."""
    index, events, quarantine = keys.kind_index(kind.index), keys.events, keys.kind_quarantine(kind.name)
    # Hashes that expired together must not all end at the same moment, when Redis would free them at once.
    retention_ms, spread_ms = kind.retention_ms, int(kind.retention_ms * settings.sweep.audit_spread)
    stem, end = (keys.prefix + kind.key_parts[0].encode(), kind.key_parts[1].encode())
    made = {"protected": keys.kind_protected, "notes": keys.kind_notes, "marks": keys.kind_marks}
    more = {name: made[name](kind.name) for name in more_keys(kind)}
    wait_ms = 0 if kind.script is None else kind.max_wait_ms
    more_globals = set[str]()
    text = functools.partial(kind_script, kind, settings.kinds, settings.reservations.enabled, more_globals)
    script = Script(f"kind {kind.name}", text)
    sums = Script(f"sums {kind.name}", lambda: deciding(script.source, sums_script(kind)))
    end_of_explain = "return {reply, writes, writes.changes}\n"
    explainer = Script(f"explain {kind.name}", lambda: deciding(script.source, end_of_explain))
    checker = Script(f"check {kind.name}", lambda: deciding(script.source, index_check(kind)))

    def check(client: "redis.Redis") -> None:
        """Raises KindRefused if the kind cannot be swept on this server, or redis.RedisError."""
        if kind.script is not None and (found := _globals(kind, script, index, client) - more_globals):
            more_globals.update(found)
            for each in (script, sums, explainer, checker):
                each.forget()
            _globals(kind, script, index, client)
        if refused := list(_refused_commands(kind, index, client)):
            raise KindRefused(f"{kind.name}: this user of Redis has no right to {', '.join(refused)}")

    def call(entry: bytes, trace_id: str, proven: bool = False, defers: bool = False, /) -> Call:
        retention = retention_ms + int(random.random() * spread_ms)  # noqa: S311
        args: list[bytes | str | int] = [entry, keys.prefix, retention, trace_id, "1" if proven else ""]
        args.append("1" if defers else "")
        return Call(
            [index if kind.key is None else stem + entry + end, index, events, quarantine, *more.values()], args
        )

    return Kind(
        name=kind.name,
        labels=Labels(kind.name),
        index=index,
        quarantine=quarantine,
        ticks=keys.kind_ticks(kind.name),
        stem=stem,
        end=end,
        form=kind.entry,
        parts=kind.parts,
        unit_ms=kind.unit_ms,
        deadline=kind.deadline,
        tenant=kind.tenant or "tenant",
        active=kind.active,
        proof=f"{kind.name}:{_digest(kind)}".encode(),
        lease_job=f"sweep:{kind.name}",
        walk_suffix=f":{kind.name}",
        log_fields={"kind": kind.name},
        counters=Sums(kind.sums, sums),
        max_wait_ms=wait_ms if kind.unless is None else max(wait_ms, kind.unless_recheck_ms),
        grace_ms=kind.grace_ms,
        protected=more.get("protected"),
        notes=more.get("notes"),
        marks=more.get("marks"),
        reasons=_reasons(kind),
        more_reasons=kind.script is not None,
        script=script,
        explainer=explainer,
        index_check=checker,
        call=call,
        check=check,
        # The user's file fails before its functions are called, or an operator killed the script.
        is_broken_by=lambda error: FILE_FAILED in str(error) or "SCRIPT KILL" in str(error),
    )


def index_check(kind: KindSettings) -> str:
    """Lua that follows the kind's script: reconcile_entry.lua, with its keys and arguments."""
    notes, marks = lua_key(kind, "notes"), lua_key(kind, "marks")
    due, read = "nil", ""
    if kind.entry == "json" and kind.deadline is not None:
        due, read = "due or ''", expand(json_deadline(kind.deadline))
    return (
        f"{read}"
        f"local KEYS, ARGV = {{KEYS[2], KEYS[4], KEYS[1], {notes} or '', {marks} or ''}}, "
        f"{{ARGV[1], ARGV[7], ARGV[8], ARGV[9], ARGV[10], reply[1], reply[3] or '', {kind.unit_ms}, {due}, "
        "reply[2] or ''}\n"
    ) + source("ops/reconcile_entry")


def _digest(kind: KindSettings) -> str:
    """A digest of the settings that decide whether an entry is seen alive."""
    active = [(name, values[0] if len(values) == 1 else values) for name, values in sorted(kind.active.items())]
    chosen: list[object] = [kind.key, kind.deadline, active, kind.index, kind.script, kind.fields]
    if kind.script is not None:
        chosen.append(sorted(kind.ended.items()))
    if kind.entry != "hash" or kind.unit != "ms":
        chosen += [kind.entry, kind.member, kind.unit]
    return hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:16]


def _reasons(kind: KindSettings) -> dict[str, str]:
    """The reasons for a quarantine, apart from those that the user's own script gives."""
    found = _REASONS | _FORMS_OF_ENTRIES[kind.entry] | (_DECLARED if kind.script is None else _SCRIPTED)
    if kind.script is not None and kind.fields is None:
        found |= _TOO_MANY_FIELDS
    if kind.script is not None and kind.unless_key is not None:
        found |= _MISSING_FIELD
    return found | (_PROTECTED_TOO_LONG if kind.unless_max is not None and kind.protected == "quarantine" else {})


def deciding(script: str, then: str, *, reads: bool = False) -> str:
    """The script with a `redis` that records the writes, and `reads` if wanted, before the Lua `then` about `reply`."""
    # The code before the user's script is one line, so that errors name the lines of the user's file.
    lines = (line.strip() for line in own_text("include/recorder").splitlines())
    recorder = " ".join(line for line in lines if line and not line.startswith("--"))
    noted = "{}" if reads else "nil"
    return (
        f"{recorder} local reads, reply, writes = {noted} do local redis, kept = recorder(redis, KEYS[1], reads) "
        f"writes = kept reply = (function() {script}\nend)() end\n"
        f"if reply.err then\n  return reply\nend\n{then}"
    )


def _globals(kind: KindSettings, script: Script, index: bytes, client: "redis.Redis") -> set[str]:
    """The globals of this server that no list here has. Raises KindRefused if the script cannot run here."""
    known = [*HIDDEN_GLOBALS, *BASIC_GLOBALS, *LIBRARIES]
    for text in (kind.script or "", script.source):
        reply: Any = _COMPILES.run(client, Call([index], [text, *known]))
        problem, asked, *unknown = reply
        if problem:
            line = problem.decode(errors="replace").removeprefix(index.decode(errors="replace") + ":")
            raise KindRefused(f"{kind.name}: the script does not compile, line {line}")
        if not asked and kind.commands is None:
            raise KindRefused(
                f"{kind.name}: Redis 6.2 cannot be asked for rights, so a kind with a script has to name the commands"
                ' of its plans there, such as commands = ["HINCRBY"]'
            )
    # A script reaches no global whose name is no word of Lua.
    return {name.decode() for name in unknown if re.fullmatch(rb"[A-Za-z_]\w*", name)}


def _refused_commands(kind: KindSettings, index: bytes, client: "redis.Redis") -> Iterator[str]:
    """
    The commands that the user may not run, before Redis 7.0, where no script can check before a write. Each command is
    queued in a transaction that is discarded, so nothing runs.
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
        # What every entry may need, then the plan's commands. A sum is written with HSET.
        planned = [command.name for command in kind.given_back] + (kind.commands or [])
        used = ["ZREM", "ZADD", "HSET", "XADD", "PEXPIRE" if kind.retention_ms else "DEL", *planned]
        used += ["HDEL"] if kind.deadline is None else []
        used += ["PERSIST"] if kind.deadline is None and kind.key is not None else []
        for name in dict.fromkeys("HSET" if name == "HINCRBY" else name for name in used):
            key = kind.channels[0].encode() if name == "PUBLISH" else index
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
