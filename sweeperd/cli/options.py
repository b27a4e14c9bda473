"""Defines what all commands share on the command line: options, and the exit code of a failure."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never

import click

from sweeperd.errors import ConfigError

# Even the settings are imported late, so that `--version`, `--help` and completion answer at once.
if TYPE_CHECKING:
    from sweeperd.config import Settings
    from sweeperd.store.shard import Shard

#: The key in click's context under which a command keeps its open shards.
OPEN_SHARDS = "sweeperd.cli.options"


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    #: Two names for one code: what was asked for is not there yet, and nothing has failed.
    UNDELIVERED = NOTHING_YET = 3
    LIMIT_PASSED = 4


@dataclass(frozen=True)
class OnceOptions:
    """The options of `--once`; the help texts say what they do."""

    dry_run: bool = False
    metrics_file: Path | None = None
    metrics_push: str | None = None
    exit_zero_on_pending: bool = False
    delivery_limit: timedelta | None = None


@dataclass
class Options:
    """The options before the subcommand."""

    config_file: Path | None
    log_level: Literal["debug", "info", "warning", "error"] | None
    log_format: Literal["text", "json"] | None
    as_json: bool = False
    #: Whether fatal errors go to the log: true for the daemon and `--once`.
    logged: bool = False
    #: `log.format`, once the settings are loaded.
    _configured: str | None = None

    def settings(self, default_level: str | None = None, *, secrets: bool = True) -> "Settings":
        """Load the settings, with the endpoints' secrets if `secrets`, and configure the log. Exits if they are bad."""
        try:
            settings = self.load(secrets=secrets)
        except ConfigError as error:
            self.fail(str(error), Exit.USAGE)
        self.apply_log(settings, default_level)
        return settings

    def load(self, *, secrets: bool = True) -> "Settings":
        from sweeperd.config import load  # noqa: PLC0415

        return load(self.config_file, secrets=secrets)

    def fail(self, problem: str, code: Exit) -> Never:
        for line in problem.splitlines():
            self.report(line)
        sys.exit(code)

    def report(self, problem: str) -> None:
        """Report a fatal problem, in the log if the log is JSON, else on standard error."""
        from sweeperd import logs  # noqa: PLC0415

        if not self.logged or not logs.is_json(self._form()):
            click.echo(f"sweeperd: {problem}", err=True)
            return
        if self._configured is None:
            logs.configure("info", self._form())
        logging.getLogger("sweeperd").error(problem)

    def _form(self) -> str:
        return self.log_format or self._configured or os.environ.get("SWEEPERD_LOG__FORMAT", "auto")

    def apply_log(self, settings: "Settings", default_level: str | None = None) -> None:
        from sweeperd import logs  # noqa: PLC0415

        self._configured = settings.log.format
        logs.configure(self.log_level or default_level or settings.log.level, self._form())

    @contextlib.contextmanager
    def shards(self, only: str | None = None, *, secrets: bool = False) -> Iterator[tuple["Settings", list["Shard"]]]:
        """Open the shards of an operator's command, or `only` one. The command logs errors alone. Exits if unknown."""
        from sweeperd.store.shard import open_shards  # noqa: PLC0415

        settings = self.settings(default_level="error", secrets=secrets)
        shards = open_shards(settings)
        try:
            known = [shard.name for shard in shards]
            if only is not None and only not in known:
                fail(f"there is no shard {only!r} in the configuration, only {', '.join(known)}", Exit.USAGE)
            chosen = [shard for shard in shards if only in (None, shard.name)]
            click.get_current_context().meta[OPEN_SHARDS] = chosen
            yield settings, chosen
        finally:
            for shard in shards:
                shard.close()


def fail(problem: str, code: Exit) -> Never:
    """Print the problem on standard error and exit."""
    for line in problem.splitlines():
        click.echo(f"sweeperd: {line}", err=True)
    sys.exit(code)


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: `--json` after the subcommand, or before it.
json_option: Decorator = click.option(
    "--json",
    "as_json",
    is_flag=True,
    callback=lambda context, _parameter, value: value or context.find_object(Options).as_json,
    help="Print JSON.",
)
shard_option: Decorator = click.option("--shard", metavar="NAME", help="Only this shard.  [default: all]")
all_option: Decorator = click.option(
    "--all", "every", is_flag=True, help="List every endpoint.  [default: of more than 50, those with the most trouble]"
)
kind_option: Decorator = click.option(
    "--kind", metavar="NAME", help="This kind.  [default: reservations, or the only kind]"
)
yes_option: Decorator = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def limit_option(most: int, help: str, default: int = 100) -> Decorator:
    return click.option("--limit", type=click.IntRange(1, most), default=default, help=help)
