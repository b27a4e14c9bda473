"""All checks of one shard, one after the other."""

import functools
from collections.abc import Callable, Iterator

import redis

from sweeperd.config import Settings
from sweeperd.errors import RedisUnavailable
from sweeperd.ops.check import data, kinds, server
from sweeperd.ops.check.cycles import CYCLES_CHECKS
from sweeperd.ops.check.findings import CheckFinding, CheckLevel, CheckResult, failure
from sweeperd.ops.check.subject import Subject
from sweeperd.store.errors import describe
from sweeperd.store.shard import Shard

#: Every check of a shard, in the order in which they run.
CHECKS: dict[str, Callable[[Subject], CheckResult]] = {
    "reachable": server.reachable,
    "version": server.version,
    "role": server.role,
    "writable": data.writable,
    "maxmemory-policy": server.eviction_policy,
    "memory": server.memory,
    "persistence": server.persistence,
    "lazyfree-lazy-expire": server.lazy_expire,
    "replication": server.replication,
    "rights": data.rights,
    "scripts": data.scripts,
    "key types": data.key_types,
    "streams": data.full_streams,
    "keys": data.presence,
    "other sweepers": data.foreign_expiries,
    "clock": server.clock,
}
#: What the ledger needs of a server, and of its own user.
LEDGER_CHECKS = {
    name: CHECKS[name] for name in ("reachable", "version", "role", "writable", "maxmemory-policy", "memory")
} | {
    "persistence": server.persistence,
    "replication": server.replication,
    "rights": data.ledger_rights,
    "scripts": data.ledger_scripts,
    "clock": server.clock,
}


def check_shard(
    shard: Shard, settings: Settings, *, cycles: bool = False, ledger: bool = False
) -> Iterator[CheckFinding]:
    """
    All checks of one shard, with `cycles` also those of a Cycles installation; with `ledger` those that a user of the
    ledger alone can make. Each finding comes as soon as it is known. Raises nothing.
    """
    where = f"shard {shard.name}"
    subject = Subject(shard, settings)
    checks = CHECKS | {f"kind {kind.name}": functools.partial(kinds.swept, kind) for kind in settings.kinds}
    if ledger:
        checks = LEDGER_CHECKS
    if cycles:
        checks |= CYCLES_CHECKS
    for name, check in checks.items():
        try:
            with shard.reaching():
                result = check(subject)
        except (RedisUnavailable, redis.RedisError) as error:
            result = failure(describe(error), "see that Redis runs and that the URL, user and password are right")
        level, says, advice = result
        yield CheckFinding(level, where, name, says, advice)
        if name == "reachable" and level is CheckLevel.FAILURE:
            return
