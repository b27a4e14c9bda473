"""
The options and exit codes of all commands, the shards of a command, moments as operators type them, and signals.
"""

import contextlib
import logging
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never

import click

from sweeperd.errors import ConfigError
from sweeperd.runtime.process import in_own_process

# Not even the settings are imported before they are read: `--version`, `--help` and completion answer at once.
if TYPE_CHECKING:
    from sweeperd.config import Settings
    from sweeperd.store.shard import Shard

#: In the context of click: the shards of the running command.
_KEY = "sweeperd.cli.options"


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    UNDELIVERED = 3


@dataclass(frozen=True)
class OnceOptions:
    #: The file for the run's metrics, for node_exporter's textfile collector.
    metrics_file: Path | None = None
    #: The URL of a Pushgateway for the run's metrics.
    metrics_push: str | None = None
    #: Whether the run ends with 0 in place of 3 if events wait for delivery.
    exit_zero_on_pending: bool = False
    #: How long to deliver; None: until nothing more can be delivered now.
    delivery_limit: timedelta | None = None


@dataclass
class Options:
    """What stood before the subcommand."""

    config_file: Path | None
    log_level: Literal["debug", "info", "warning", "error"] | None
    log_format: Literal["text", "json"] | None
    as_json: bool = False
    #: Whether what ends the process belongs into the log: of the daemon and of `--once`.
    logged: bool = False
    #: `log.format`, when the settings have been read.
    _configured: str | None = None

    def settings(self, default_level: str | None = None, *, secrets: bool = True) -> "Settings":
        """
        Load the settings, the secrets of the endpoints only if `secrets`, and set the log up. Ends the process if the
        settings cannot be used.
        """
        try:
            settings = self.load(secrets=secrets)
        except ConfigError as error:
            self.fail(str(error), Exit.USAGE)
        self.apply_log(settings, default_level)
        return settings

    def load(self, *, secrets: bool = True) -> "Settings":
        """The settings as they are now. Raises ConfigError."""
        from sweeperd.config import load  # noqa: PLC0415

        return load(self.config_file, secrets=secrets)

    def fail(self, problem: str, code: Exit) -> Never:
        """Say the problem, as `say`, and end the process."""
        for line in problem.splitlines():
            self.say(line)
        sys.exit(code)

    def say(self, problem: str) -> None:
        """Write a problem that ends the process: into the log if the log is JSON, else as a line on standard error."""
        from sweeperd import logs  # noqa: PLC0415

        if not self.logged or not logs.is_json(self._form()):
            click.echo(f"sweeperd: {problem}", err=True)
            return
        if self._configured is None:
            logs.configure("info", self._form())
        logging.getLogger("sweeperd").error(problem)

    def _form(self) -> str:
        """The format of the log: before the settings are known, as the command line and the environment say."""
        return self.log_format or self._configured or os.environ.get("SWEEPERD_LOG__FORMAT", "auto")

    def apply_log(self, settings: "Settings", default_level: str | None = None) -> None:
        """Set the log up."""
        from sweeperd import logs  # noqa: PLC0415

        self._configured = settings.log.format
        logs.configure(self.log_level or default_level or settings.log.level, self._form())

    @contextlib.contextmanager
    def shards(self, only: str | None = None, *, secrets: bool = False) -> Iterator[tuple["Settings", list["Shard"]]]:
        """
        The settings and all shards, or only the shard of this name, closed at the end. For an operator's command: the
        log holds errors only, and the secrets of endpoints are read only if `secrets`. Ends the process if there is no
        such shard.
        """
        from sweeperd.store.shard import open_shards  # noqa: PLC0415

        settings = self.settings(default_level="error", secrets=secrets)
        shards = open_shards(settings)
        try:
            known = [shard.name for shard in shards]
            if only is not None and only not in known:
                fail(f"there is no shard {only!r} in the configuration, only {', '.join(known)}", Exit.USAGE)
            chosen = [shard for shard in shards if only in (None, shard.name)]
            click.get_current_context().meta[_KEY] = chosen
            yield settings, chosen
        finally:
            for shard in shards:
                shard.close()


def fail(problem: str, code: Exit) -> Never:
    """Print the problem on standard error and end the process."""
    for line in problem.splitlines():
        click.echo(f"sweeperd: {line}", err=True)
    sys.exit(code)


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: `--json`, as `as_json`; also if the option stands before the subcommand.
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
kind_option: Decorator = click.option(
    "--kind", metavar="NAME", help="This kind.  [default: reservations, or the only kind]"
)
#: `--yes`, as `yes`.
yes_option: Decorator = click.option("--yes", is_flag=True, help="Do not ask.")


def json_address() -> str | None:
    """The addresses of the shards, joined by a comma and a space. None: the command uses no Redis of the settings."""
    return ", ".join(shard.address for shard in _remembered()) or None


def text_address() -> str:
    """The same for people: with the names if there are several shards, and with the prefix of the keys if any."""
    shards = _remembered()
    return ", ".join((f"{shard.name} " if len(shards) > 1 else "") + _place(shard) for shard in shards)


def _place(shard: "Shard") -> str:
    prefix = shard.keys.prefix.decode("utf-8", "backslashreplace")
    return f"{shard.address} prefix {prefix}" if prefix else shard.address


def _remembered() -> list["Shard"]:
    context = click.get_current_context(silent=True)
    return context.meta.get(_KEY, []) if context else []


_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII | re.IGNORECASE
)
_TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
#: Several durations in a row, such as 1h30m.
_PARTS = re.compile(r"(?:\d{1,9}(?:ms|s|m|h|d))+", re.ASCII)
_PART = re.compile(r"\d+[a-z]+", re.ASCII)
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Moment:
    """A fixed moment, so long before now, or the latest time of day: `now` is Redis's. ms."""

    at_ms: int = 0
    ago_ms: int | None = None
    #: Since midnight, UTC.
    of_day_ms: int | None = None

    def on(self, now_ms: int) -> int:
        """The moment in ms since the epoch, if Redis's clock says `now_ms`."""
        if self.of_day_ms is not None:
            today = now_ms - now_ms % _DAY_MS + self.of_day_ms
            return today if today <= now_ms else today - _DAY_MS
        return self.at_ms if self.ago_ms is None else max(0, now_ms - self.ago_ms)


def moment(context: click.Context, parameter: click.Parameter, value: str | None) -> Moment | None:
    """
    The callback of an option: a time as in RFC 3339, a duration (so long ago), or a time of day (the latest). A
    time without an offset is UTC. Raises click.BadParameter.
    """
    if value is None:
        return None
    if _PARTS.fullmatch(value):
        from sweeperd.config.types import milliseconds, parse_duration  # noqa: PLC0415

        with contextlib.suppress(ValueError, OverflowError):
            return Moment(ago_ms=sum(milliseconds(parse_duration(part)) for part in _PART.findall(value)))
    if found_time := _TIME_OF_DAY.fullmatch(value):
        hours, minutes, seconds = (int(part or 0) for part in found_time.groups())
        return Moment(of_day_ms=((hours * 60 + minutes) * 60 + seconds) * 1000)
    if _RFC3339.fullmatch(value):
        with contextlib.suppress(ValueError, OverflowError):
            found = datetime.fromisoformat(value.upper())
            # All times are whole milliseconds, so a fraction counts as the next millisecond.
            since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
            return Moment(at_ms=max(0, math.ceil(since / timedelta(milliseconds=1))))
    raise click.BadParameter(
        f"{value[:60]!r} is neither a time such as 2026-11-21T12:00:05Z or 2026-11-21T13:00:05.250+01:00 "
        "nor a time of day such as 12:00 nor a duration such as 15m or 1h30m",
        context,
        parameter,
    )


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    """The callback of an option: a duration as in the settings, longer than nothing. Raises click.BadParameter."""
    if value is None:
        return None
    from sweeperd.config.types import parse_duration  # noqa: PLC0415

    with contextlib.suppress(ValueError, OverflowError):
        if found := parse_duration(value):
            return found
    raise click.BadParameter(f"{value[:60]!r} is no duration such as 30s or 10m", context, parameter)


def end_at_once(code: int) -> None:
    """
    SIGTERM and SIGINT end the process with this code: nothing has begun that needs an end. If the process
    is the first of a container, the kernel ignores a signal that has no handler.
    """

    def end(_number: int, _frame: object) -> None:
        sys.exit(code)

    if in_own_process():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)


@contextlib.contextmanager
def stop_on_signals(*, last: bool = False) -> Iterator[threading.Event]:
    """
    The first SIGTERM, SIGINT or SIGHUP sets the event, the second ends the process at once. `last`: the process ends
    after the block, and no such signal changes the exit code any more, if the command has a process of its own.
    """
    stop = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        stop.set()

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if last and in_own_process() else handler)
