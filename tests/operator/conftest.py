"""The shards that these tests look at, and the commands that they run in their own process."""

from collections.abc import Callable, Iterator, Mapping

import pytest
from click.testing import CliRunner, Result

from sweeperd.cli import main
from sweeperd.embedded import Server
from sweeperd.shard import Shard
from tests.unit.conftest import a_shard, bare_environment, log_restored

__all__ = ["bare_environment", "log_restored"]

#: Command, environment, arguments.
Cli = Callable[..., Result]


@pytest.fixture
def shard(server: Server) -> Iterator[Shard]:
    """The empty test server as a shard whose clock has been read."""
    with a_shard(server) as ready:
        yield ready


@pytest.fixture
def cli(bare_environment: None, log_restored: None) -> Cli:
    """Run a subcommand under this environment, with nobody at a terminal."""

    def invoked(command: str, env: Mapping[str, str], *arguments: str) -> Result:
        return CliRunner().invoke(main, [command, *arguments], env=dict(env))

    return invoked
