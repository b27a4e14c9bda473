"""What the operator's tests start from, and the commands that they run in their own process."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sweeperd.cli import main
from sweeperd.ops.reconcile import throttle
from sweeperd.ops.reconcile.throttle import Throttle
from tests.lua.conftest import bystanders, world
from tests.support.address import drop_address
from tests.support.builders import UNSETTLED
from tests.support.servers import Server

__all__ = ["bystanders", "world"]

#: What a tenant may be called, and what no terminal must obey: a line break, colours, right to left, HTML, a lot.
HOSTILE = b"\x1b[31mevil\x07\r\n\t\xe2\x80\xae<script>alert(1)</script>\xff" + b"x" * 10_000


@pytest.fixture(autouse=True)
def _quick_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks confirm what they find at once, if the test names no timing, and hardly rest for others."""
    monkeypatch.setattr(Throttle.__init__, "__defaults__", (None, None, UNSETTLED))
    monkeypatch.setattr(throttle, "REST", 0.01)


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document that it printed."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of its first table of tab-separated values, by column."""
        lines = self.out.partition("\n\n")[0].splitlines()
        columns = lines[0].split("\t")
        return [dict(zip(columns, line.split("\t"), strict=True)) for line in lines[1:]]


Sweeperd = Callable[..., Ran]


@pytest.fixture
def sweeperd(bare_environment: None, log_restored: None, server: Server) -> Sweeperd:
    """Run the command on the test's server, in this process; `environment` on top of that."""

    def run(*arguments: str, url: str = server.url, **environment: str) -> Ran:
        place = {"SWEEPERD_REDIS__URL": url} if url else {}
        env = {"SWEEPERD_CONFIG": "/dev/null"} | place | environment
        result = drop_address(CliRunner().invoke(main, arguments, env=env))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        if result.exit_code:
            assert result.output, "a failure says something"
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


#: Command, environment, arguments.
Cli = Callable[..., Result]


@pytest.fixture
def cli(bare_environment: None, log_restored: None) -> Cli:
    """Run a subcommand under this environment, without a terminal."""

    def invoked(command: str, env: Mapping[str, str], *arguments: str) -> Result:
        return drop_address(CliRunner().invoke(main, [command, *arguments], env=dict(env)))

    return invoked


def only_printable(text: str) -> None:
    """Nothing in it that a terminal would obey, but the ends of lines and the tabs of columns."""
    odd = {character for character in text if not character.isprintable()} - {"\n", "\t"}
    assert not odd
