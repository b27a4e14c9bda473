"""What the operator's tests start from, and the commands that they run in their own process."""

from collections.abc import Callable, Mapping

import pytest
from click.testing import CliRunner, Result

from sweeperd.cli import main
from tests.lua.conftest import bystanders, world
from tests.unit.conftest import bare_environment, log_restored, own_shard, shard

__all__ = ["bare_environment", "bystanders", "log_restored", "own_shard", "shard", "world"]

#: Command, environment, arguments.
Cli = Callable[..., Result]


@pytest.fixture
def cli(bare_environment: None, log_restored: None) -> Cli:
    """Run a subcommand under this environment, with nobody at a terminal."""

    def invoked(command: str, env: Mapping[str, str], *arguments: str) -> Result:
        return CliRunner().invoke(main, [command, *arguments], env=dict(env))

    return invoked
