"""What all commands share: the global options, the exit codes, the shards that a command is about."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Never

import click

from sweeperd import logs
from sweeperd.cli import address
from sweeperd.config import Settings, load
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import ConfigError
from sweeperd.store.shard import Shard, open_shards


class Exit(IntEnum):
    """The exit codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNDELIVERED = 3


@dataclass(frozen=True)
class OnceOptions:
    """The options that go with `--once`."""

    #: Where the run's metrics are written, for node_exporter's textfile collector.
    metrics_file: Path | None = None
    #: The URL of a Pushgateway that gets the run's metrics.
    metrics_push: str | None = None
    #: Whether a run that leaves events waiting ends with 0 in place of 3.
    exit_zero_on_pending: bool = False
    #: How long to deliver; None: until nothing is left that can be delivered now.
    delivery_limit: timedelta | None = None


@dataclass(frozen=True)
class Options:
    """What stood before the subcommand."""

    config_file: Path | None
    log_level: Literal["debug", "info", "warning", "error"] | None
    log_format: Literal["text", "json"] | None
    as_json: bool = False

    def settings(self, default_level: str | None = None, *, secrets: bool = True) -> Settings:
        """
        Load the settings, the secrets of the endpoints only where `secrets`, and set the log up. Ends the process where
        they cannot be used.
        """
        try:
            settings = self.load(secrets=secrets)
        except ConfigError as error:
            fail(str(error), Exit.USAGE)
        self.apply_log(settings, default_level)
        return settings

    def load(self, *, secrets: bool = True) -> Settings:
        """The settings as they are now. Raises ConfigError."""
        return load(self.config_file, secrets=secrets)

    def apply_log(self, settings: Settings, default_level: str | None = None) -> None:
        """Set the log up."""
        logs.configure(self.log_level or default_level or settings.log.level, self.log_format or settings.log.format)

    @contextlib.contextmanager
    def shards(self, only: str | None = None, *, secrets: bool = False) -> Iterator[tuple[Settings, list[Shard]]]:
        """
        The settings and all shards, or the one of that name, closed at the end. For an operator's command: its log
        holds errors only, and files and variables with secrets of endpoints are read only where `secrets`. Ends the
        process where there is no such shard.
        """
        settings = self.settings(default_level="error", secrets=secrets)
        shards = open_shards(settings)
        try:
            known = [shard.name for shard in shards]
            if only is not None and only not in known:
                fail(f"there is no shard {only!r} in the configuration, only {', '.join(known)}", Exit.USAGE)
            chosen = [shard for shard in shards if only in (None, shard.name)]
            address.remember(chosen)
            yield settings, chosen
        finally:
            for shard in shards:
                shard.close()


def fail(problem: str, code: Exit) -> Never:
    """Say it on standard error and end the process."""
    for line in problem.splitlines():
        click.echo(f"sweeperd: {line}", err=True)
    sys.exit(code)


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: `--json`, as `as_json`; where the option stood before the subcommand, it counts as well.
json_option: Decorator = click.option(
    "--json",
    "as_json",
    is_flag=True,
    callback=lambda context, _parameter, value: value or context.find_object(Options).as_json,
    help="Print JSON.",
)
#: `--shard NAME`, as `shard`.
shard_option: Decorator = click.option("--shard", metavar="NAME", help="Only this shard.  [default: all]")
#: `--kind NAME`, as `kind`.
kind_option: Decorator = click.option("--kind", metavar="NAME", help="One of [[kinds]].  [default: reservations]")


def swept_names(settings: Settings) -> list[str]:
    """The names of all kinds that are swept."""
    built_in = ["reservations"] if settings.reservations.enabled else []
    return [*built_in, *(kind.name for kind in settings.kinds)]


def kind_of(settings: Settings, name: str | None) -> KindSettings | None:
    """The configured kind of this name; None: reservations. Ends the process where there is none."""
    if name is None:
        return None
    known = {kind.name: kind for kind in settings.kinds}
    if name not in known:
        fail(f"there is no kind {name!r} in the configuration, only {', '.join(known) or 'reservations'}", Exit.USAGE)
    return known[name]


#: `--yes`, as `yes`.
yes_option: Decorator = click.option("--yes", is_flag=True, help="Do not ask.")
