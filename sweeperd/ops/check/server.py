"""Checks of a shard's server: version, role, memory, persistence, replication, clock."""

import functools
import time
from collections.abc import Callable, Iterator

import redis

from sweeperd.config import Settings
from sweeperd.errors import RedisUnavailable
from sweeperd.ops.acl import Role
from sweeperd.ops.check import keys, kinds, rights, scripts
from sweeperd.ops.check.cycles import CYCLES_CHECKS
from sweeperd.ops.check.findings import CheckFinding, CheckLevel, CheckResult, Subject, failure, ok, unknown, warning
from sweeperd.store.embedded import OLDEST
from sweeperd.store.errors import describe
from sweeperd.store.shard import Shard

#: From this part of maxmemory on, Redis counts as close to full.
CLOSE_TO_FULL = 0.85


def reachable(subject: Subject) -> CheckResult:
    subject.shard.read_clock()
    return ok(subject.shard.address)


def version(subject: Subject) -> CheckResult:
    """Whether the version is recent enough."""
    if subject.info is None:
        return unknown("INFO")
    version = str(subject.info["redis_version"])
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return failure(f"Redis {version} is older than {oldest}", f"upgrade to {oldest} or later")
    name = subject.info.get("server_name", "redis")
    return ok(f"{'Valkey' if name == 'valkey' else 'Redis'} {subject.info.get('valkey_version', version)}")


def role(subject: Subject) -> CheckResult:
    if subject.info is None:
        return unknown("INFO")
    if subject.info["role"] != "master":
        return failure(
            "it is a replica, which takes no writes", "name the primary in the URL, or use redis+sentinel://"
        )
    return ok("primary")


def eviction_policy(subject: Subject) -> CheckResult:
    """Whether Redis may evict keys."""
    if subject.info is None or "maxmemory_policy" not in subject.info:
        return unknown("INFO")
    policy = subject.info["maxmemory_policy"]
    if policy == "noeviction":
        return ok("noeviction")
    if policy.startswith("volatile-"):
        return warning(
            f"{policy} evicts what has a TTL: leases, the records of retries, expired reservations before their audit",
            "set maxmemory-policy to noeviction",
        )
    says = f"{policy} evicts reservations, budgets and events without a trace"
    if not subject.info.get("maxmemory"):
        return warning(f"{says}, as soon as maxmemory is set", "set maxmemory-policy to noeviction")
    return failure(says, "set maxmemory-policy to noeviction")


def memory(subject: Subject) -> CheckResult:
    """How much of maxmemory is used."""
    if subject.info is None or "maxmemory" not in subject.info:
        return unknown("INFO")
    used, limit = int(subject.info["used_memory"]), int(subject.info["maxmemory"])
    if not limit:
        return ok(f"{_mib(used)} used, no limit")
    says = f"{_mib(used)} of {_mib(limit)} used, {100 * used // limit} %"
    if used >= limit:
        return failure(says, "raise maxmemory: what is to be reserved is refused; the sweep goes on")
    if used >= CLOSE_TO_FULL * limit:
        return warning(says, "raise maxmemory, or shorten events.retention and sweep.audit_retention")
    return ok(says)


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def persistence(subject: Subject) -> CheckResult:
    """Which data a crash of Redis loses."""
    info = subject.info
    if info is None or "aof_enabled" not in info:
        return unknown("INFO")
    if info.get("aof_last_write_status", "ok") != "ok":
        return failure("the append-only file cannot be written", "see the log of Redis; is its disk full?")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return failure("the last snapshot failed", "see the log of Redis; is its disk full?")
    if info["aof_enabled"]:
        fsync = subject.config("appendfsync")
        if fsync == "no":
            return warning("appendonly, synced when the system likes", "set appendfsync to everysec or always")
        return ok(f"appendonly, appendfsync {fsync or 'unknown'}")
    save = subject.config("save")
    if save is None:
        return warning("no appendonly; whether snapshots are taken is unknown (CONFIG)", "set appendonly to yes")
    if save:
        return warning("snapshots only: a crash loses what changed since the last one", "set appendonly to yes")
    return warning("none: a restart loses every reservation, budget and event", "set appendonly to yes")


def lazy_expire(subject: Subject) -> CheckResult:
    """Whether Redis frees expired hashes in a separate thread."""
    value = subject.config("lazyfree-lazy-expire")
    if value is None:
        return unknown("CONFIG GET")
    if value == "yes":
        return ok("yes")
    return warning(
        "no: after a mass expiry, all clients wait while hashes are freed at the end of the audit retention",
        "set lazyfree-lazy-expire to yes",
    )


def replication(subject: Subject) -> CheckResult:
    """Whether enough replicas are connected."""
    if subject.info is None or "connected_slaves" not in subject.info:
        return unknown("INFO")
    wanted = subject.settings.events.wait_replicas
    online = sum(
        1
        for name, value in subject.info.items()
        if name.startswith("slave") and isinstance(value, dict) and value.get("state") == "online"
    )
    says = f"{online} replica{'' if online == 1 else 's'} connected"
    if wanted > online:
        return failure(
            f"{says}, events.wait_replicas is {wanted}: no webhook is sent",
            "add replicas, or lower events.wait_replicas",
        )
    needed = int(subject.config("min-replicas-to-write") or 0)
    if needed > online:
        return failure(f"{says}, min-replicas-to-write is {needed}: writes are refused", "add replicas, or lower it")
    if online and not wanted:
        return warning(
            f"{says}, events.wait_replicas is 0: a fail-over may undo an expiry after its webhook was sent",
            "set events.wait_replicas where that must not be",
        )
    return ok(says)


def clock(subject: Subject) -> CheckResult:
    """How far this host's clock is from Redis's."""
    before = time.time()
    server = subject.shard.read_clock() / 1000
    after = time.time()
    offset = (before + after) / 2 - server
    return ok(f"this host is {abs(offset):.3f} s {'fast' if offset > 0 else 'slow'}; nothing depends on it")


#: Every check of a shard, in the order in which they run.
CHECKS: dict[str, Callable[[Subject], CheckResult]] = {
    "reachable": reachable,
    "version": version,
    "role": role,
    "writable": keys.writable,
    "maxmemory-policy": eviction_policy,
    "memory": memory,
    "persistence": persistence,
    "lazyfree-lazy-expire": lazy_expire,
    "replication": replication,
    "rights": rights.rights,
    "scripts": scripts.scripts,
    "key types": keys.key_types,
    "streams": keys.full_streams,
    "groups": keys.other_groups,
    "filters": keys.filters,
    "keys": keys.presence,
    "other sweepers": keys.foreign_expiries,
    "deadlines": kinds.deadlines,
    "clock": clock,
}
#: The checks for the user of a ledger.
LEDGER_CHECKS = {
    name: CHECKS[name] for name in ("reachable", "version", "role", "writable", "maxmemory-policy", "memory")
} | {
    "persistence": persistence,
    "replication": replication,
    "rights": functools.partial(rights.ledger_rights, cycles=False),
    "scripts": scripts.ledger_scripts,
    "clock": clock,
}


def check_shard(
    shard: Shard, settings: Settings, *, cycles: bool = False, ledger: bool = False, daemon_role: Role = "all"
) -> Iterator[CheckFinding]:
    """
    All checks of one shard. `cycles`: also the checks of a Cycles installation; `ledger`: only the checks that the user
    of a ledger can make, and with `cycles` also the rights beside a Cycles service. Each finding comes as soon as the
    check has ended. Raises nothing.
    """
    where = f"shard {shard.name}"
    subject = Subject(shard, settings, daemon_role)
    checks = CHECKS | {f"kind {kind.name}": functools.partial(kinds.swept, kind) for kind in settings.kinds}
    if ledger:
        checks = LEDGER_CHECKS | {"rights": functools.partial(rights.ledger_rights, cycles=cycles)}
    elif cycles:
        checks |= CYCLES_CHECKS
    for name, check in checks.items():
        try:
            with shard.reaching():
                result = check(subject)
        except (RedisUnavailable, redis.RedisError) as error:
            result = failure(describe(error), "see that Redis runs and that the URL, user and password are right")
        yield CheckFinding.of(where, name, result)
        if name == "reachable" and result[0] is CheckLevel.FAILURE:
            return
