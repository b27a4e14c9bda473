"""
`sweeperd check`: is the Redis behind the configuration one on which sweeperd keeps its promises?

Nothing is changed. What has to be tried because no right of an ordinary user tells it, such as whether a command may be
used on a key, is tried in a form that Redis refuses after it has looked at the rights, or on members that do not exist.
"""

import enum
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import redis

from sweeperd.config import EndpointSettings, Settings
from sweeperd.errors import RedisUnavailable
from sweeperd.store.embedded import OLDEST
from sweeperd.store.errors import REFUSED, describe
from sweeperd.store.scripts import Call, Script, script_names, source
from sweeperd.store.shard import Shard

#: From which part of maxmemory on Redis counts as close to full.
CLOSE_TO_FULL = 0.85
#: How long a name may take to be resolved, seconds.
RESOLVE_LIMIT = 5.0
#: The id of no reservation, the name of no group, nobody's member: what is tried is tried on this.
NOBODY = b"\0sweeperd check"


class CheckLevel(enum.StrEnum):
    """How it looks."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class CheckFinding:
    """One line: what was looked at, how it looks, and what to do about it where something is to be done."""

    level: CheckLevel
    #: `shard NAME` or `endpoint NAME`.
    where: str
    check: str
    says: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return {
            "level": self.level.value,
            "where": self.where,
            "check": self.check,
            "says": self.says,
            "advice": self.advice,
        }


#: What a check found: level, what it says, what to do.
Verdict = tuple[CheckLevel, str, str]


def _ok(says: str) -> Verdict:
    return CheckLevel.OK, says, ""


def _warning(says: str, advice: str) -> Verdict:
    return CheckLevel.WARNING, says, advice


def _failure(says: str, advice: str) -> Verdict:
    return CheckLevel.FAILURE, says, advice


def _unknown(command: str) -> Verdict:
    return _warning(f"unknown: this user is not allowed to look ({command})", "look as a user who may")


class Subject:
    """One shard and what its server says of itself, asked for once."""

    def __init__(self, shard: Shard, settings: Settings) -> None:
        self.shard = shard
        self.settings = settings
        self._info: Mapping[str, Any] | None = None
        self._asked = False

    @property
    def info(self) -> Mapping[str, Any] | None:
        """INFO; None where the user may not ask for it."""
        if not self._asked:
            self._info, self._asked = self._allowed(self.shard.client.info), True
        return self._info

    def config(self, name: str) -> str | None:
        """A setting of the server; None where the user may not ask, or where the server has none of that name."""
        values = self._allowed(lambda: self.shard.client.config_get(name))
        value = (values or {}).get(name)
        return value.decode() if isinstance(value, bytes) else value

    @staticmethod
    def _allowed(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except redis.ResponseError:
            return None  # refused, or taken away: managed services rename CONFIG
        except REFUSED:
            return None


def check_shard(shard: Shard, settings: Settings) -> Iterator[CheckFinding]:
    """Everything about one shard, each finding as soon as it is known. Raises nothing."""
    where = f"shard {shard.name}"
    subject = Subject(shard, settings)
    for name, look in _CHECKS.items():
        try:
            with shard.reaching():
                verdict = look(subject)
        except (RedisUnavailable, redis.RedisError) as error:
            verdict = _failure(describe(error), "see that Redis runs and that the URL, user and password are right")
        level, says, advice = verdict
        yield CheckFinding(level, where, name, says, advice)
        if name == "reachable" and level is CheckLevel.FAILURE:
            return


def check_endpoint(endpoint: EndpointSettings, *, connect: float | None = None) -> CheckFinding:
    """
    Whether the endpoint's host is known, and with `connect` (seconds) whether it takes a connection. Nothing is sent.
    """
    level, says, advice = _endpoint(endpoint, connect)
    return CheckFinding(
        level, f"endpoint {endpoint.name}", "resolvable" if connect is None else "connectable", says, advice
    )


def worst(findings: Sequence[CheckFinding]) -> CheckLevel:
    """The worst of them."""
    levels = {finding.level for finding in findings}
    return next((level for level in (CheckLevel.FAILURE, CheckLevel.WARNING) if level in levels), CheckLevel.OK)


# ---- one check each


def _reachable(subject: Subject) -> Verdict:
    subject.shard.read_clock()
    return _ok(subject.shard.address)


def _version(subject: Subject) -> Verdict:
    if subject.info is None:
        return _unknown("INFO")
    version = str(subject.info["redis_version"])
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return _failure(f"Redis {version} is older than {oldest}", f"upgrade to {oldest} or later")
    name = subject.info.get("server_name", "redis")
    return _ok(f"{'Valkey' if name == 'valkey' else 'Redis'} {subject.info.get('valkey_version', version)}")


def _role(subject: Subject) -> Verdict:
    if subject.info is None:
        return _unknown("INFO")
    if subject.info["role"] != "master":
        return _failure(
            "it is a replica, which takes no writes", "name the primary in the URL, or use redis+sentinel://"
        )
    return _ok("primary")


def _writable(subject: Subject) -> Verdict:
    """A write of nothing: a replica refuses it, and a server that lacks replicas or cannot save."""
    try:
        subject.shard.client.zrem(subject.shard.keys.reservation_index, NOBODY)
    except (redis.ResponseError, *REFUSED) as error:
        if "WRONGTYPE" in str(error):
            return _ok("it takes writes")  # but not here; see the types of the keys
        return _failure(f"it refuses writes: {describe(error)}", "nothing can expire until it takes them again")
    return _ok("it takes writes")


def _policy(subject: Subject) -> Verdict:
    if subject.info is None or "maxmemory_policy" not in subject.info:
        return _unknown("INFO")
    policy = subject.info["maxmemory_policy"]
    if policy == "noeviction":
        return _ok("noeviction")
    if policy.startswith("volatile-"):
        return _warning(
            f"{policy} evicts what has a TTL: leases, the records of retries, expired reservations before their audit",
            "set maxmemory-policy to noeviction",
        )
    says = f"{policy} evicts reservations, budgets and events without a trace"
    if not subject.info.get("maxmemory"):
        return _warning(f"{says}, as soon as maxmemory is set", "set maxmemory-policy to noeviction")
    return _failure(says, "set maxmemory-policy to noeviction")


def _memory(subject: Subject) -> Verdict:
    if subject.info is None or "maxmemory" not in subject.info:
        return _unknown("INFO")
    used, limit = int(subject.info["used_memory"]), int(subject.info["maxmemory"])
    if not limit:
        return _ok(f"{_mib(used)} used, no limit")
    says = f"{_mib(used)} of {_mib(limit)} used, {100 * used // limit} %"
    if used >= limit:
        return _failure(says, "raise maxmemory: what is to be reserved is refused; the sweep goes on")
    if used >= CLOSE_TO_FULL * limit:
        return _warning(says, "raise maxmemory, or shorten events.retention and sweep.audit_retention")
    return _ok(says)


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _persistence(subject: Subject) -> Verdict:
    info = subject.info
    if info is None or "aof_enabled" not in info:
        return _unknown("INFO")
    if info.get("aof_last_write_status", "ok") != "ok":
        return _failure("the append-only file cannot be written", "see the log of Redis; is its disk full?")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return _failure("the last snapshot failed", "see the log of Redis; is its disk full?")
    if info["aof_enabled"]:
        fsync = subject.config("appendfsync")
        if fsync == "no":
            return _warning("appendonly, synced when the system likes", "set appendfsync to everysec or always")
        return _ok(f"appendonly, appendfsync {fsync or 'unknown'}")
    save = subject.config("save")
    if save is None:
        return _warning("no appendonly; whether snapshots are taken is unknown (CONFIG)", "set appendonly to yes")
    if save:
        return _warning("snapshots only: a crash loses what changed since the last one", "set appendonly to yes")
    return _warning("none: a restart loses every reservation, budget and event", "set appendonly to yes")


def _lazy_expire(subject: Subject) -> Verdict:
    value = subject.config("lazyfree-lazy-expire")
    if value is None:
        return _unknown("CONFIG GET")
    if value == "yes":
        return _ok("yes")
    return _warning(
        "no: after a mass expiry, all clients wait while hashes are freed at the end of the audit retention",
        "set lazyfree-lazy-expire to yes",
    )


def _replication(subject: Subject) -> Verdict:
    if subject.info is None or "connected_slaves" not in subject.info:
        return _unknown("INFO")
    wanted = subject.settings.events.wait_replicas
    online = sum(
        1
        for name, value in subject.info.items()
        if name.startswith("slave") and isinstance(value, dict) and value.get("state") == "online"
    )
    says = f"{online} replica{'' if online == 1 else 's'} connected"
    if wanted > online:
        return _failure(
            f"{says}, events.wait_replicas is {wanted}: no webhook is sent",
            "add replicas, or lower events.wait_replicas",
        )
    needed = int(subject.config("min-replicas-to-write") or 0)
    if needed > online:
        return _failure(f"{says}, min-replicas-to-write is {needed}: writes are refused", "add replicas, or lower it")
    if online and not wanted:
        return _warning(
            f"{says}, events.wait_replicas is 0: a fail-over may undo an expiry that a webhook has told of",
            "set events.wait_replicas where that must not be",
        )
    return _ok(says)


def _types(subject: Subject) -> Verdict:
    keys, client = subject.shard.keys, subject.shard.client
    looks: list[tuple[bytes, str, Callable[[bytes], object]]] = [
        (keys.reservation_index, "ZSET", client.zcard),
        (keys.quarantine, "ZSET", client.zcard),
        (keys.events, "STREAM", client.xlen),
        (keys.dead_letters, "STREAM", client.xlen),
        (keys.endpoints, "HASH", lambda key: client.hget(key, "")),
        (keys.reconcile, "HASH", lambda key: client.hget(key, "")),
        (keys.lease("sweep"), "STRING", client.get),
        (keys.lease("reconcile"), "STRING", client.get),
    ]
    wrong = []
    for key, kind, look in looks:
        try:
            look(key)
        except redis.ResponseError as error:
            if "WRONGTYPE" in str(error):
                wrong.append(f"{key.decode(errors='backslashreplace')} is no {kind}")
    if wrong:
        return _failure(", ".join(wrong), "find out who writes there, and move those keys away; is keys.prefix right?")
    return _ok("every key is of its type, or not there yet")


def _scripts(subject: Subject) -> Verdict:
    names = script_names()
    index = subject.shard.keys.reservation_index
    problems = []
    for name in names:
        # It is compiled as a whole and ends before its first line.
        text = "do return 1 end\n" + source(name)
        try:
            Script(name, text).run(subject.shard.client, Call([index], []))
        except redis.ResponseError as error:
            problems.append(f"{name}: {describe(error)}")
    if problems:
        return _failure("; ".join(problems), "let this user run EVAL and EVALSHA on all keys of the shard")
    return _ok(f"{len(names)} load")


def _rights(subject: Subject) -> Verdict:
    refused = _refused(subject.shard, _needed(subject))
    if refused:
        return _failure(f"this user may not {', '.join(refused)}", "grant what deploy/redis/sweeperd.acl grants")
    refused = _refused(subject.shard, _for_walks(subject))
    if refused:
        return _warning(
            f"this user may not {', '.join(refused)}: reconcile does not work",
            "grant what deploy/redis/sweeperd.acl grants",
        )
    return _ok("all commands on all keys of the shard")


def _clock(subject: Subject) -> Verdict:
    before = time.time()
    server = subject.shard.read_clock() / 1000
    after = time.time()
    offset = (before + after) / 2 - server
    return _ok(f"this host is {abs(offset):.3f} s {'ahead' if offset > 0 else 'behind'}; nothing depends on it")


#: In the order in which they are told.
_CHECKS: Mapping[str, Callable[[Subject], Verdict]] = {
    "reachable": _reachable,
    "version": _version,
    "role": _role,
    "writable": _writable,
    "maxmemory-policy": _policy,
    "memory": _memory,
    "persistence": _persistence,
    "lazyfree-lazy-expire": _lazy_expire,
    "replication": _replication,
    "rights": _rights,
    "scripts": _scripts,
    "key types": _types,
    "clock": _clock,
}


# ---- rights

#: A command in a form that changes nothing.
TrialCommand = tuple[bytes | str | int, ...]


def trials(shard: Shard, settings: Settings) -> list[TrialCommand]:
    """Every command that is tried. For the tests, which hold it to what the ACL grants."""
    subject = Subject(shard, settings)
    return [*_needed(subject), *_for_walks(subject)]


def _needed(subject: Subject) -> list[TrialCommand]:
    keys, settings = subject.shard.keys, subject.settings
    reservation, budget = keys.reservation(NOBODY), keys.budget(NOBODY, NOBODY)
    index, events, dead, aside = keys.reservation_index, keys.events, keys.dead_letters, keys.quarantine
    board, lease = keys.endpoints, keys.lease("sweep")
    needed: list[TrialCommand] = [
        ("EVAL", "return 1", 1, index),
        ("EVALSHA", "0" * 40, 1, index),
        # The time-to-live, the number, the id or the pair that each of these has is none.
        ("SET", lease, "", "PX", 0),
        ("PEXPIRE", lease, "none"),
        ("GET", lease),
        ("DEL", reservation),
        ("EXISTS", reservation),
        ("HGET", board, ""),
        ("HSET", board, "a", "b", "c"),
        ("HMGET", reservation, "state"),
        ("HMGET", budget, "reserved"),
        ("HSET", reservation, "a", "b", "c"),
        ("HSET", budget, "a", "b", "c"),
        ("PEXPIRE", reservation, "none"),
        ("ZADD", index, "none", NOBODY),
        ("ZADD", aside, "none", NOBODY),
        ("ZCARD", aside),
        ("ZCOUNT", index, 0, 0),
        ("ZRANGE", index, 0, 0),
        ("ZREM", index, NOBODY),
        ("XADD", events, "none", "a", "b"),
        ("XADD", dead, "none", "a", "b"),
        ("XLEN", dead),
        ("XRANGE", events, "0-1", "0-1"),
        ("XTRIM", events, "MAXLEN", "none"),
        ("XINFO", "STREAM", events),
        ("XINFO", "GROUPS", events),
    ]
    if settings.webhooks.endpoints:
        needed += [
            ("XACK", events, NOBODY, "none"),
            ("XCLAIM", events, NOBODY, NOBODY, "none", "0-1"),
            ("XGROUP", "CREATE", events, NOBODY, "none"),
            ("XGROUP", "DELCONSUMER", events, NOBODY, NOBODY),
            ("XINFO", "CONSUMERS", events, NOBODY),
            ("XPENDING", events, NOBODY),
            ("XREADGROUP", "GROUP", NOBODY, NOBODY, "COUNT", 1, "STREAMS", events, ">"),
        ]
    if settings.events.wait_replicas:
        needed.append(("WAIT", 0, 1))
    return needed


def _for_walks(subject: Subject) -> list[TrialCommand]:
    keys = subject.shard.keys
    return [
        ("SCAN", 0, "COUNT", 1),
        ("DBSIZE",),
        ("INFO", "server"),
        ("ZSCAN", keys.reservation_index, 0, "COUNT", 1),
        ("ZSCORE", keys.reservation_index, NOBODY),
        ("ZSCORE", keys.quarantine, NOBODY),
        ("HSET", keys.reconcile, "a", "b", "c"),
        ("SET", keys.lease("reconcile"), "", "PX", 0),
    ]


def _refused(shard: Shard, tried: Sequence[TrialCommand]) -> list[str]:
    """What the user may not do, each said once."""
    pipeline = shard.client.pipeline(transaction=False)
    for trial in tried:
        pipeline.execute_command(*trial)  # type: ignore[no-untyped-call]
    replies = pipeline.execute(raise_on_error=False)
    found = [_said(trial) for trial, reply in zip(tried, replies, strict=True) if _is_refusal(reply)]
    return list(dict.fromkeys(found))


def _is_refusal(reply: object) -> bool:
    return isinstance(reply, REFUSED) or (isinstance(reply, redis.ResponseError) and "NOPERM" in str(reply))


def _said(trial: TrialCommand) -> str:
    """The command, and the key that it was to be used on."""
    words = [word.decode(errors="backslashreplace") if isinstance(word, bytes) else str(word) for word in trial]
    key = next((word for word, part in zip(words, trial, strict=True) if isinstance(part, bytes)), "")
    two = trial[0] in ("XGROUP", "XINFO")
    return " ".join(filter(None, [*words[: 2 if two else 1], key and f"{key!r}".strip("'")]))


# ---- endpoints


def _endpoint(endpoint: EndpointSettings, connect: float | None) -> Verdict:
    parts = urlsplit(endpoint.url.get_secret_value())
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    pool = ThreadPoolExecutor(1, thread_name_prefix="resolve")
    try:
        found = pool.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM).result(RESOLVE_LIMIT)
    except FutureTimeoutError:
        return _failure(f"{host} was not resolved within {RESOLVE_LIMIT:g} s", "see that the name server answers")
    except (OSError, UnicodeError) as error:
        return _failure(f"{host} cannot be resolved: {getattr(error, 'strerror', None) or error}", "correct its url")
    finally:
        pool.shutdown(wait=False)
    addresses = list(dict.fromkeys(str(row[4][0]) for row in found))
    says = f"{host} is {', '.join(addresses[:3])}{' and more' if len(addresses) > 3 else ''}"
    if connect is None:
        return _ok(says)
    try:
        socket.create_connection((host, port), timeout=connect).close()
    except OSError as error:
        why = getattr(error, "strerror", None) or error
        return _failure(f"{says}, which takes no connection on port {port}: {why}", "see that the receiver runs")
    return _ok(f"{says}, and takes connections on port {port}")
