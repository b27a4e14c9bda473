"""Checks whether the Redis user may run the commands and scripts that sweeperd needs."""

from collections.abc import Iterable, Iterator, Sequence

import redis

from sweeperd.ops.acl import ANY, Duty, Grant, channels, daemon_duties, grants, ledger_duties
from sweeperd.ops.check.findings import CheckedShard, CheckResult, failure, ok, warning
from sweeperd.store.errors import describe, is_refused, is_unknown_command
from sweeperd.store.scripts import Call, Command, Script, run_commands, script_names, source
from sweeperd.store.shard import Shard

GRANT_ADVICE = "`sweeperd acl` prints the rights to grant; a command that was renamed needs its name back"
#: Command -> arguments after the key with which it has no effect: it only reads, names a field that does not exist, or
#: has an argument that Redis rejects after it has checked the rights.
_FORMS: dict[str, tuple[bytes | str | int, ...]] = {
    **dict.fromkeys(("EXISTS", "GET", "HGETALL", "HLEN", "LLEN", "PTTL", "SCARD", "SMEMBERS", "STRLEN"), ()),
    **dict.fromkeys(("TYPE", "XLEN", "ZCARD"), ()),
    **dict.fromkeys(("HDEL", "HEXISTS", "HGET", "HMGET", "SISMEMBER", "SREM", "ZMSCORE", "ZREM", "ZSCORE"), (ANY,)),
    "HINCRBY": (ANY, "none"),
    "HSET": ("a", "b", "c"),
    "INCRBY": ("none",),
    "PEXPIRE": ("none",),
    "LINDEX": (0,),
    "LPOS": (ANY,),
    "LRANGE": (0, 0),
    "SET": ("", "PX", 0),
    "SRANDMEMBER": (1,),
    "XACK": (ANY, "none"),
    "XADD": ("none", "a", "b"),
    "XCLAIM": (ANY, ANY, "none", "0-1"),
    "XDEL": ("0-0",),
    "XPENDING": (ANY,),
    "XRANGE": ("0-1", "0-1"),
    "XREVRANGE": ("0-1", "0-1"),
    "XTRIM": ("MAXLEN", "none"),
    "ZADD": ("none", ANY),
    "ZCOUNT": (0, 0),
    "ZRANGE": (0, 0),
    "ZSCAN": (0, "COUNT", 1),
    "XINFO|STREAM": (),
    "XINFO|GROUPS": (),
    "XINFO|CONSUMERS": (ANY,),
    "XGROUP|CREATE": (ANY, "none"),
    "XGROUP|SETID": (ANY, "none"),
    "XGROUP|DELCONSUMER": (ANY, ANY),
    "XGROUP|DESTROY": (ANY,),
}
#: Placeholder for the key, in commands that take none or do not begin with it.
_KEY = b"\0key"
_WHOLE: dict[str, tuple[bytes | str | int, ...]] = {
    "EVAL": ("EVAL", "return 1", 1, _KEY),
    "EVALSHA": ("EVALSHA", "0" * 40, 1, _KEY),
    "XREAD": ("XREAD", "COUNT", 1, "STREAMS", _KEY, "$"),
    "XREADGROUP": ("XREADGROUP", "GROUP", ANY, ANY, "COUNT", 1, "STREAMS", _KEY, ">"),
    "SCAN": ("SCAN", 0, "COUNT", 1),
    "DBSIZE": ("DBSIZE",),
    "INFO": ("INFO", "server"),
    "WAIT": ("WAIT", 0, 1),
}
#: These commands always have an effect, so a script asks for the right. Redis 6.2 cannot answer.
_ASKED = frozenset({"LPUSH", "RPUSH", "SADD"})
#: The daemon works without these.
_OPTIONAL = (Duty.WALK, Duty.MEMORY, Duty.SHOW, Duty.OPERATE)
_MAY = Script(
    "may run",
    "return (not redis.acl_check_cmd or redis.acl_check_cmd(unpack(ARGV))) and 1 or 0",
)


def grants_of(subject: CheckedShard, *duties: Duty) -> list[Grant]:
    return [grant for grant in grants(subject.settings, subject.shard.keys) if grant.duty in duties]


def trials(found: Iterable[Grant]) -> Iterator[tuple[bytes | str | int, ...]]:
    """The commands of these grants, each in a form without effect."""
    free: bytes | None = None  # a key that does not exist
    for grant in found:
        free = grant.key if free is None and ANY in grant.key else free
        for command in grant.commands:
            if command in _WHOLE:
                yield tuple(grant.key if word == _KEY else word for word in _WHOLE[command])
            elif command == "DEL":
                if free is not None:
                    yield "DEL", free
            elif command in _FORMS:
                yield *command.split("|"), grant.key, *_FORMS[command]


def refused(shard: Shard, found: Sequence[Grant], audible: Sequence[str] = ()) -> list[str]:
    """The commands that the user may not run, and the channels that the user may not publish to."""
    tried = list(dict.fromkeys(trials(found)))
    replies = run_commands(shard.client, tried)
    missing = [_description(trial, reply) for trial, reply in zip(tried, replies, strict=True) if is_refused(reply)]
    asked = [(name, grant.key) for grant in found for name in grant.commands if name in _ASKED]
    asked += [("PUBLISH", channel.encode()) for channel in audible]
    answers = _MAY.run_many(shard.client, [Call([], [name, key, ""]) for name, key in asked])
    missing += [
        _description(pair, answer)
        for pair, answer in zip(asked, answers, strict=True)
        if answer == 0 or is_refused(answer)
    ]
    return list(dict.fromkeys(missing))


def _description(trial: Command, reply: object) -> str:
    """The command and its key, with `*` for any text. Says so if the server does not know the command."""
    words = [
        word.replace(ANY, b"*").decode(errors="backslashreplace") if isinstance(word, bytes) else str(word)
        for word in trial
    ]
    key = next((word for word, part in zip(words, trial, strict=True) if isinstance(part, bytes) and word != "*"), "")
    two = trial[0] in ("XGROUP", "XINFO")
    why = "(the server has no command of this name)" if is_unknown_command(reply) else ""
    return " ".join(filter(None, [*words[: 2 if two else 1], key and f"{key!r}".strip("'"), why]))


def rights(subject: CheckedShard) -> CheckResult:
    """Whether the user has the rights of a daemon, and which rights of operators' commands it lacks."""
    duties = daemon_duties(subject.daemon_role) - ({Duty.DELIVER} if not subject.settings.consumers else set())
    missing = refused(subject.shard, grants_of(subject, *duties), channels(subject.settings))
    if missing:
        return failure(f"this user may not {', '.join(missing)}", GRANT_ADVICE)
    lacking = {duty: refused(subject.shard, grants_of(subject, duty)) for duty in _OPTIONAL}
    walks = subject.settings.reconcile.interval and subject.daemon_role != "deliver"
    limited = subject.settings.sweep.memory_limit is not None and subject.daemon_role != "deliver"
    features = (
        (Duty.WALK, "reconcile", walks),
        (Duty.MEMORY, "sweep.memory_limit", limited),
        (Duty.SHOW, "show, like the page of an entry,", True),
    )
    for duty, name, wanted in features:
        if lacking[duty] and wanted:
            return warning(f"this user may not {', '.join(lacking[duty])}: {name} does not work", GRANT_ADVICE)
    if not any(lacking.values()):
        return ok("all commands on all keys of the shard")
    enough = "the daemon and show" if lacking[Duty.WALK] else "the daemon, reconcile and show"
    others = dict.fromkeys([*lacking[Duty.WALK], *lacking[Duty.OPERATE]])
    return ok(f"all that {enough} need; operators' commands also need {', '.join(others)}")


def ledger_rights(subject: CheckedShard, *, cycles: bool) -> CheckResult:
    missing = refused(subject.shard, grants_of(subject, *ledger_duties(cycles=cycles)))
    if missing:
        command = f"sweeperd acl --ledger{' --cycles' if cycles else ''}"
        return failure(f"this user may not {', '.join(missing)}", f"`{command}` prints the rights to grant")
    return ok("all commands of the ledger on its keys")


def scripts(subject: CheckedShard, *, ledger: bool = False) -> CheckResult:
    """Whether the server compiles all scripts, or with `ledger` those of the ledger."""
    names = [name for name in script_names() if not ledger or name.startswith("ledger/")]
    keys, problems = subject.shard.keys, []
    key = keys.reservation_index if ledger else keys.events
    for name in names:
        # Redis compiles the whole script, but returns before its first line.
        text = "do return 1 end\n" + source(name)
        try:
            Script(name, text).run(subject.shard.client, Call([key], []))
        except redis.ResponseError as error:
            problems.append(f"{name}: {describe(error)}")
    if any("scripting engine" in problem for problem in problems):
        return failure(
            "this Valkey has no Lua, and all that sweeperd does is in Lua",
            "load its module (loadmodule in valkey.conf: libvalkeylua.so), or install a Valkey that is built with Lua",
        )
    if problems:
        return failure("; ".join(problems), "allow this user EVAL and EVALSHA on all keys of the shard")
    return ok(f"{len(names)} load")
