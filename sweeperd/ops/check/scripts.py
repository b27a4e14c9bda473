"""Checks whether the Lua scripts load."""

from collections.abc import Sequence

import redis

from sweeperd.ops.check.findings import CheckedShard, CheckResult, failure, ok
from sweeperd.store.errors import describe
from sweeperd.store.scripts import Call, Script, script_names, source


def scripts(subject: CheckedShard) -> CheckResult:
    return _load(subject, script_names())


def ledger_scripts(subject: CheckedShard) -> CheckResult:
    return _load(subject, [name for name in script_names() if name.startswith("ledger/")])


def _load(subject: CheckedShard, names: Sequence[str]) -> CheckResult:
    index = subject.shard.keys.reservation_index
    problems = []
    for name in names:
        # Redis compiles the whole script, but returns before its first line.
        text = "do return 1 end\n" + source(name)
        try:
            Script(name, text).run(subject.shard.client, Call([index], []))
        except redis.ResponseError as error:
            problems.append(f"{name}: {describe(error)}")
    if problems:
        return failure("; ".join(problems), "allow this user EVAL and EVALSHA on all keys of the shard")
    return ok(f"{len(names)} load")
