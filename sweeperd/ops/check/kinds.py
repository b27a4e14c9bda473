"""Whether a configured kind can be swept on the server of a shard."""

from typing import cast

from sweeperd.config.kinds import KindSettings
from sweeperd.errors import KindRefused
from sweeperd.ops.check.findings import CheckResult, failure, ok
from sweeperd.ops.check.subject import Subject
from sweeperd.sweep.configured_kinds import configured


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
