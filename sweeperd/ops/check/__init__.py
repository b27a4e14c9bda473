"""
`sweeperd check`: does the Redis of each shard let sweeperd keep its promises?

A check changes nothing. No command tells an ordinary user whether the user may run a command on a key. So the command
is tried: with an argument that Redis refuses after the check of the rights, or on members that do not exist.
"""

from sweeperd.ops.check.endpoints import check_endpoint, check_secret_files, open_files
from sweeperd.ops.check.findings import (
    CheckDocument,
    CheckFinding,
    CheckLevel,
    CheckResult,
    failure,
    ok,
    warning,
    worst,
)
from sweeperd.ops.check.server import check_shard

__all__ = [
    "CheckDocument",
    "CheckFinding",
    "CheckLevel",
    "CheckResult",
    "check_endpoint",
    "check_secret_files",
    "check_shard",
    "failure",
    "ok",
    "open_files",
    "warning",
    "worst",
]
