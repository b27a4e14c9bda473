"""
`sweeperd check`: does the Redis of each shard let sweeperd keep its promises?

A check changes nothing. Whether a user may run a command on a key is not reported by any command that an ordinary user
may run. So the command is tried: in a form that Redis refuses after it has checked the rights, or on members that do
not exist.
"""

from sweeperd.ops.check.endpoints import check_endpoint
from sweeperd.ops.check.findings import CheckDocument, CheckFinding, CheckLevel, worst
from sweeperd.ops.check.server import check_shard

__all__ = ["CheckDocument", "CheckFinding", "CheckLevel", "check_endpoint", "check_shard", "worst"]
