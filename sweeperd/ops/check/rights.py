"""Which commands the user of a shard may run on its keys, each tried in a form that changes nothing."""

from collections.abc import Sequence

from sweeperd.config import Settings
from sweeperd.ops.check.subject import Subject
from sweeperd.store.errors import is_refused
from sweeperd.store.shard import Shard

#: No reservation has this id, and no group or member this name: commands are tried on it.
TRIAL_NAME = b"\0sweeperd check"
#: A command in a form that changes nothing.
TrialCommand = tuple[bytes | str | int, ...]


def trials(shard: Shard, settings: Settings) -> list[TrialCommand]:
    """Every command that is tried. The tests compare this list with the rights in deploy/redis/sweeperd.acl."""
    subject = Subject(shard, settings)
    return [*needed(subject), *for_walks(subject)]


def needed(subject: Subject) -> list[TrialCommand]:
    """What the daemon and `--once` run."""
    keys, settings = subject.shard.keys, subject.settings
    reservation, budget = keys.reservation(TRIAL_NAME), keys.budget(TRIAL_NAME, TRIAL_NAME)
    index, events, dead, aside = keys.reservation_index, keys.events, keys.dead_letters, keys.quarantine
    board, lease = keys.endpoints, keys.lease("sweep")
    commands: list[TrialCommand] = [
        ("EVAL", "return 1", 1, index),
        ("EVALSHA", "0" * 40, 1, index),
        # From here on, Redis refuses what would change anything: a TTL, number, id or argument is not valid.
        ("SET", lease, "", "PX", 0),
        ("PEXPIRE", lease, "none"),
        ("GET", lease),
        ("DEL", reservation),
        ("EXISTS", reservation),
        ("HGET", board, ""),
        ("HSET", board, "a", "b", "c"),
        ("HDEL", board, TRIAL_NAME),
        ("HGETALL", keys.circuits),
        ("HMGET", reservation, "state"),
        ("HMGET", budget, "reserved"),
        ("HSET", reservation, "a", "b", "c"),
        ("HSET", budget, "a", "b", "c"),
        ("PEXPIRE", reservation, "none"),
        ("ZADD", index, "none", TRIAL_NAME),
        ("ZADD", aside, "none", TRIAL_NAME),
        ("ZCARD", aside),
        ("ZCOUNT", index, 0, 0),
        ("ZRANGE", index, 0, 0),
        ("ZREM", index, TRIAL_NAME),
        ("XADD", events, "none", "a", "b"),
        ("XADD", dead, "none", "a", "b"),
        ("XLEN", dead),
        ("XRANGE", events, "0-1", "0-1"),
        ("XREVRANGE", events, "0-1", "0-1"),
        ("XTRIM", events, "MAXLEN", "none"),
        ("XADD", keys.actions, "none", "a", "b"),
        ("HSET", keys.action_counts, "a", "b", "c"),
        ("XINFO", "STREAM", events),
        ("XINFO", "GROUPS", events),
    ]
    if settings.webhooks.endpoints:
        commands += [
            ("XACK", events, TRIAL_NAME, "none"),
            ("XCLAIM", events, TRIAL_NAME, TRIAL_NAME, "none", "0-1"),
            ("XGROUP", "CREATE", events, TRIAL_NAME, "none"),
            ("XGROUP", "DELCONSUMER", events, TRIAL_NAME, TRIAL_NAME),
            ("XINFO", "CONSUMERS", events, TRIAL_NAME),
            ("XPENDING", events, TRIAL_NAME),
            ("XREADGROUP", "GROUP", TRIAL_NAME, TRIAL_NAME, "COUNT", 1, "STREAMS", events, ">"),
        ]
    if settings.events.wait_replicas:
        commands.append(("WAIT", 0, 1))
    return commands


def for_walks(subject: Subject) -> list[TrialCommand]:
    """What `reconcile` runs in addition."""
    keys = subject.shard.keys
    return [
        ("SCAN", 0, "COUNT", 1),
        ("DBSIZE",),
        ("INFO", "server"),
        ("ZSCAN", keys.reservation_index, 0, "COUNT", 1),
        ("ZSCORE", keys.reservation_index, TRIAL_NAME),
        ("ZSCORE", keys.quarantine, TRIAL_NAME),
        ("HSET", keys.reconcile, "a", "b", "c"),
        ("SET", keys.lease("reconcile"), "", "PX", 0),
    ]


def refused(shard: Shard, tried: Sequence[TrialCommand]) -> list[str]:
    """What the user may not run, without duplicates. Raises redis.RedisError."""
    pipeline = shard.client.pipeline(transaction=False)
    for trial in tried:
        pipeline.execute_command(*trial)
    replies = pipeline.execute(raise_on_error=False)
    found = [_description(trial) for trial, reply in zip(tried, replies, strict=True) if is_refused(reply)]
    return list(dict.fromkeys(found))


def _description(trial: TrialCommand) -> str:
    """The command and its key."""
    words = [word.decode(errors="backslashreplace") if isinstance(word, bytes) else str(word) for word in trial]
    key = next((word for word, part in zip(words, trial, strict=True) if isinstance(part, bytes)), "")
    two = trial[0] in ("XGROUP", "XINFO")
    return " ".join(filter(None, [*words[: 2 if two else 1], key and f"{key!r}".strip("'")]))
