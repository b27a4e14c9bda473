"""Checks whether the Lua scripts load."""

from collections.abc import Sequence

import redis

from sweeperd.ops.check.findings import CheckResult, Subject, failure, ok
from sweeperd.store.errors import describe
from sweeperd.store.scripts import Call, Script, script_names, source


def scripts(subject: Subject) -> CheckResult:
    return _load(subject, script_names())


def ledger_scripts(subject: Subject) -> CheckResult:
    """Whether the user may load and run the scripts of the ledger."""
    return _load(subject, [name for name in script_names() if name.startswith("ledger/")])


def _load(subject: Subject, names: Sequence[str]) -> CheckResult:
    index = subject.shard.keys.reservation_index
    problems = []
    for name in names:
        # Redis compiles the whole text; the run ends before the first line of the script.
        text = "do return 1 end\n" + source(name)
        try:
            Script(name, text).run(subject.shard.client, Call([index], []))
        except redis.ResponseError as error:
            problems.append(f"{name}: {describe(error)}")
    if problems:
        return failure("; ".join(problems), "let this user run EVAL and EVALSHA on all keys of the shard")
    return ok(f"{len(names)} load")
