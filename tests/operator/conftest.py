"""What the operator's tests start from."""

from tests.lua.conftest import bystanders, world
from tests.unit.conftest import bare_environment, log_restored, own_shard, shard

__all__ = ["bare_environment", "bystanders", "log_restored", "own_shard", "shard", "world"]
