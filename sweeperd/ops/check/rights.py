"""Which commands the user of a shard may run on its keys, each tried in a form that changes nothing."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import cast

from sweeperd.config.kinds import KindSettings
from sweeperd.errors import KindRefused
from sweeperd.ops.acl import ANY, Duty, Grant, grants
from sweeperd.ops.check.findings import CheckResult, Subject, failure, ok
from sweeperd.store.errors import is_refused, is_unknown_command
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import configured

#: A command in a form that changes nothing.
TrialCommand = tuple[bytes | str | int, ...]

#: Command -> its arguments after the key, such that it changes nothing: it only reads, or names a field that does not
#: exist, or Redis refuses an argument, which happens after the check of the rights.
_FORMS: dict[str, tuple[bytes | str | int, ...]] = {
    **dict.fromkeys(("EXISTS", "GET", "HGETALL", "HLEN", "LLEN", "PTTL", "SCARD", "SMEMBERS", "STRLEN"), ()),
    **dict.fromkeys(("TYPE", "XLEN", "ZCARD"), ()),
    **dict.fromkeys(("HDEL", "HEXISTS", "HGET", "HMGET", "SISMEMBER", "SREM", "ZREM", "ZSCORE"), (ANY,)),
    "HINCRBY": (ANY, "none"),
    "HSET": ("a", "b", "c"),
    "INCRBY": ("none",),
    "PEXPIRE": ("none",),
    "SET": ("", "PX", 0),
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
    "XGROUP|DELCONSUMER": (ANY, ANY),
    "XGROUP|DESTROY": (ANY,),
}
#: Stands for the key in the forms below.
_KEY = b"\0key"
#: The commands whose key is not the first word, or that have none.
_WHOLE: dict[str, tuple[bytes | str | int, ...]] = {
    "EVAL": ("EVAL", "return 1", 1, _KEY),
    "EVALSHA": ("EVALSHA", "0" * 40, 1, _KEY),
    "XREADGROUP": ("XREADGROUP", "GROUP", ANY, ANY, "COUNT", 1, "STREAMS", _KEY, ">"),
    "SCAN": ("SCAN", 0, "COUNT", 1),
    "DBSIZE": ("DBSIZE",),
    "INFO": ("INFO", "server"),
    "WAIT": ("WAIT", 0, 1),
}
#: No form of these changes nothing, so the server is asked. Redis 6.2 cannot be.
_ASKED = frozenset({"LPUSH", "RPUSH", "SADD"})
_MAY = Script(
    "may run",
    "return (not redis.acl_check_cmd or redis.acl_check_cmd(unpack(ARGV))) and 1 or 0",
)


def needed(subject: Subject) -> list[Grant]:
    """What the daemon and `--once` run."""
    duties = {Duty.STATUS, Duty.SWEEP, *([Duty.DELIVER] if subject.settings.consumers else [])}
    return _of(subject, duties)


def for_walks(subject: Subject) -> list[Grant]:
    """What `reconcile` runs in addition."""
    return _of(subject, {Duty.WALK})


def for_ledger(subject: Subject) -> list[Grant]:
    """What `sweeperd.ledger` runs."""
    return _of(subject, {Duty.LEDGER})


def _of(subject: Subject, duties: Collection[Duty]) -> list[Grant]:
    return [grant for grant in grants(subject.settings, subject.shard.keys) if grant.duty in duties]


def trials(found: Iterable[Grant]) -> Iterator[TrialCommand]:
    """A form of each command of these grants that has one."""
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
    """
    What the user may not run of these grants, and to which of these channels it may not publish, without duplicates.
    Raises redis.RedisError.
    """
    tried = list(dict.fromkeys(trials(found)))
    pipeline = shard.client.pipeline(transaction=False)
    for trial in tried:
        pipeline.execute_command(*trial)
    replies = pipeline.execute(raise_on_error=False)
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


def _description(trial: TrialCommand, reply: object) -> str:
    """The command and its key, with `*` for any text, and why it is refused if that is no missing right."""
    words = [
        word.replace(ANY, b"*").decode(errors="backslashreplace") if isinstance(word, bytes) else str(word)
        for word in trial
    ]
    key = next((word for word, part in zip(words, trial, strict=True) if isinstance(part, bytes) and word != "*"), "")
    two = trial[0] in ("XGROUP", "XINFO")
    why = "(the server has no command of this name)" if is_unknown_command(reply) else ""
    return " ".join(filter(None, [*words[: 2 if two else 1], key and f"{key!r}".strip("'"), why]))


# ---- whether a configured kind can be swept on the server of a shard


def swept(kind: KindSettings, subject: Subject) -> CheckResult:
    """The script compiles, the index is a sorted set, and on Redis 6.2 the rights suffice."""
    shard = subject.shard
    made = configured(kind, subject.settings, shard.keys)
    try:
        made.check(shard.client)
    except KindRefused as error:
        return failure(str(error), "repair the script, or give the user the right; until then the kind is not swept")
    type_ = cast(bytes, shard.client.type(made.index)).decode()
    if type_ not in ("zset", "none"):
        return failure(f"{kind.index} is a {type_}", "the index of a kind is a sorted set: name it in kinds.index")
    return ok(f"{kind.index}: {shard.client.zcard(made.index)} entries")
