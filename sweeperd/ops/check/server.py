"""Checks that a shard's server is configured for sweeperd."""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.errors import KindRefused, RedisUnavailable
from sweeperd.ops.acl import Role
from sweeperd.ops.check import keys, kinds, rights
from sweeperd.ops.check.cycles import CYCLES_CHECKS
from sweeperd.ops.check.findings import (
    CheckedShard,
    CheckFinding,
    CheckLevel,
    CheckResult,
    NotAllowed,
    failure,
    ok,
    warning,
)
from sweeperd.ops.health import ALMOST_FULL
from sweeperd.store.connect import sentinels_of
from sweeperd.store.embedded import OLDEST
from sweeperd.store.errors import describe, is_refused, is_wrong_type
from sweeperd.store.memory import memory_use
from sweeperd.store.scripts import run_commands
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.preview import PreviewDocument
from sweeperd.text import counted, mib

#: How much memory an expiry needs until its retention ends: 140 bytes with an id of 8 characters, 206 with one of 32.
EXPIRY_BYTES = 210
#: The oldest redis-py to use with Sentinel.
SENTINEL_DRIVER = (8, 1)


def reachable(subject: CheckedShard) -> CheckResult:
    shard = subject.shard
    shard.read_clock()
    if sentinels_of(shard.client) and tuple(map(int, redis.VERSION[:2])) < SENTINEL_DRIVER:
        says = "loses a place in its pool for each connection that a fail-over interrupts"
        return warning(f"{shard.address}; redis-py {redis.__version__} {says}", "install redis-py 8.1 or newer")
    return ok(shard.address)


def version(subject: CheckedShard) -> CheckResult:
    version = str(subject.info["redis_version"])
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return failure(f"Redis {version} is older than {oldest}", f"upgrade to {oldest} or later")
    name = subject.info.get("server_name", "redis")
    return ok(f"{'Valkey' if name == 'valkey' else 'Redis'} {subject.info.get('valkey_version', version)}")


def role(subject: CheckedShard) -> CheckResult:
    if subject.info["role"] != "master":
        return failure("a replica, which refuses writes", "name the primary in the URL, or use redis+sentinel://")
    return ok("primary")


def eviction_policy(subject: CheckedShard) -> CheckResult:
    policy = _figure(subject, "maxmemory_policy")
    if policy == "noeviction":
        return ok("noeviction")
    if policy.startswith("volatile-"):
        return warning(
            f"{policy} evicts keys with a TTL: leases, idempotency records, expired reservations before their audit",
            "set maxmemory-policy to noeviction",
        )
    says = f"{policy} evicts reservations, budgets and events without a trace"
    if not subject.info.get("maxmemory"):
        return warning(f"{says} once maxmemory is set", "set maxmemory-policy to noeviction")
    return failure(says, "set maxmemory-policy to noeviction")


def memory(subject: CheckedShard) -> CheckResult:
    """Whether there is room for what is in Redis, and for the expiries of all that is due now."""
    _figure(subject, "maxmemory")
    use, due = memory_use(subject.info), _due(subject)
    headroom = due * EXPIRY_BYTES
    needs = f"; {due:,} due entries need {mib(headroom)} more until their retention ends" if due else ""
    if use.limit is None:
        return ok(f"{mib(use.used)} used, no limit{needs}")
    percent = use.percent or 0
    says = f"{mib(use.used)} of {mib(use.limit)} used, {percent} %{needs}"
    if percent >= 100:
        wait = subject.settings.sweep.memory_limit
        above = f", and expiries wait above {wait} %" if wait else ""
        return failure(says, f"raise maxmemory first: new reservations and repairs are refused{above}")
    if percent >= ALMOST_FULL or use.used + headroom > use.limit:
        return warning(says, "raise maxmemory, or shorten events.retention and sweep.audit_retention")
    return ok(says)


def _due(subject: CheckedShard) -> int:
    shard = subject.shard
    kinds, now = kinds_of(subject.settings, shard).values(), shard.clock.now_ms()
    replies = run_commands(shard.client, (("ZCOUNT", kind.index, "-inf", kind.score_of(now)) for kind in kinds))
    return sum(reply for reply in replies if isinstance(reply, int))


def _figure(subject: CheckedShard, name: str) -> Any:
    """A figure of INFO that some managed services hide."""
    if name not in subject.info:
        raise NotAllowed("INFO")
    return subject.info[name]


def persistence(subject: CheckedShard) -> CheckResult:
    """What a crash of Redis loses."""
    appends, info = _figure(subject, "aof_enabled"), subject.info
    if info.get("aof_last_write_status", "ok") != "ok":
        return failure("the append-only file cannot be written", "see the log of Redis; is its disk full?")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return failure("the last snapshot failed", "see the log of Redis; is its disk full?")
    if appends:
        fsync = subject.config("appendfsync")
        if fsync == "no":
            return warning("appendonly, but the system decides when to sync", "set appendfsync to everysec or always")
        return ok(f"appendonly, appendfsync {fsync or 'unknown'}")
    save = subject.config("save")
    if save is None:
        says = "no appendonly; snapshots are unknown, because this user may not run CONFIG GET"
    elif save:
        says = "snapshots only: a crash loses what changed since the last one"
    else:
        says = "none: a restart loses every reservation, budget and event"
    return warning(says, "set appendonly to yes")


def lazy_expire(subject: CheckedShard) -> CheckResult:
    """Whether Redis frees expired hashes in a background thread."""
    value = subject.config("lazyfree-lazy-expire")
    if value is None:
        raise NotAllowed("CONFIG GET", CheckLevel.OK)  # `sweeperd acl` does not grant it
    if value == "yes":
        return ok("yes")
    return warning(
        "no: at the end of the audit retention of a mass expiry, all clients wait while Redis frees the hashes",
        "set lazyfree-lazy-expire to yes",
    )


def replication(subject: CheckedShard) -> CheckResult:
    _figure(subject, "connected_slaves")
    wanted = subject.settings.events.wait_replicas
    online = sum(
        1
        for name, value in subject.info.items()
        if name.startswith("slave") and isinstance(value, dict) and value.get("state") == "online"
    )
    says = f"{counted(online, 'replica')} connected"
    if wanted > online:
        says = f"{says}, events.wait_replicas is {wanted}: no webhook is sent"
        return failure(says, "add replicas, or lower events.wait_replicas")
    needed = int(subject.config("min-replicas-to-write") or 0)
    if needed > online:
        return failure(f"{says}, min-replicas-to-write is {needed}: writes are refused", "add replicas, or lower it")
    if online and not wanted:
        return warning(
            f"{says}, events.wait_replicas is 0: a fail-over may undo an expiry after its webhook was sent",
            "set events.wait_replicas if that must not happen",
        )
    return ok(says)


def clock(subject: CheckedShard) -> CheckResult:
    before = time.time()
    server = subject.shard.read_clock() / 1000
    after = time.time()
    offset = (before + after) / 2 - server
    return ok(f"this host is {abs(offset):.3f} s {'fast' if offset > 0 else 'slow'}; nothing depends on it")


#: The checks of a shard, in order.
CHECKS: dict[str, Callable[[CheckedShard], CheckResult]] = {
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
    "scripts": rights.scripts,
    "key types": keys.key_types,
    "streams": keys.full_streams,
    "groups": keys.other_groups,
    "filters": keys.filters,
    "keys": keys.presence,
    "other sweepers": keys.foreign_expiries,
    "deadlines": kinds.deadlines,
    "clock": clock,
}
#: The checks that the user of a ledger can make.
LEDGER_CHECKS = {
    name: CHECKS[name]
    for name in ("reachable", "version", "role", "writable", "maxmemory-policy", "memory", "persistence", "replication")
} | {
    "writable": functools.partial(keys.writable, ledger=True),
    "rights": rights.rights,
    "scripts": functools.partial(rights.scripts, ledger=True),
    "clock": clock,
}


def _advice(error: Exception) -> str:
    if is_refused(error) or is_refused(error.__cause__):
        return rights.GRANT_ADVICE
    if is_wrong_type(error):
        return "see the check of key types"
    return "check that Redis runs, and the URL, user and password"


def check_shard(
    shard: Shard,
    settings: Settings,
    *,
    cycles: bool = False,
    ledger: bool = False,
    daemon_role: Role = "all",
    sample: int = 0,
    sampled: Callable[[PreviewDocument], None] = lambda _: None,
) -> Iterator[CheckFinding]:
    """
    Runs all checks of one shard, and yields each finding as soon as it is known. `cycles` adds the checks of a Cycles
    installation. `ledger` runs only what the user of a ledger can check. With `sample`, that many entries of each kind
    are decided without a write, and `sampled` is called with the result. Raises nothing.
    """
    where = f"shard {shard.name}"
    subject = CheckedShard(shard, settings, daemon_role)
    checks = CHECKS | {f"kind {kind.name}": functools.partial(kinds.swept, kind) for kind in settings.kinds}
    if sample:
        checks |= {
            f"sample of {name}": functools.partial(kinds.sampled, kind=kind, most=sample, keep=sampled)
            for name, kind in kinds_of(settings, shard).items()
        }
    if ledger:
        checks = LEDGER_CHECKS | {"rights": functools.partial(rights.ledger_rights, cycles=cycles)}
    elif cycles:
        checks |= CYCLES_CHECKS
    for name, check in checks.items():
        try:
            with shard.reaching():
                result = check(subject)
        except NotAllowed as refusal:
            result = refusal.result
        except KindRefused as error:
            result = failure(str(error), "fix the script or grant the right; until then the kind is not swept")
        except (RedisUnavailable, redis.RedisError) as error:
            result = failure(describe(error), _advice(error))
        yield CheckFinding.of(where, name, result)
        if name == "reachable" and result[0] is CheckLevel.FAILURE:
            return
