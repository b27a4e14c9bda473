"""The command line: options in, exit codes and text out."""

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal, Never

import click
from prometheus_client import write_to_textfile

from sweeperd import __version__, logs
from sweeperd.config import CONFIG_VARIABLE, Settings, load
from sweeperd.errors import ConfigError
from sweeperd.metrics import Metrics
from sweeperd.notify import Notifier
from sweeperd.once import OnceReport, Progress, Stage, run_once
from sweeperd.sweep import Outcome


class Exit(IntEnum):
    """The exit codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNDELIVERED = 3


@dataclass(frozen=True)
class _Options:
    config_file: Path | None
    log_level: Literal["debug", "info", "warning", "error"] | None
    log_format: Literal["text", "json"] | None

    def settings(self, default_level: str | None = None) -> Settings:
        """Load the settings and set the log up. Ends the process where they cannot be used."""
        try:
            settings = self.load()
        except ConfigError as error:
            _fail(str(error), Exit.USAGE)
        self.apply_log(settings, default_level)
        return settings

    def load(self) -> Settings:
        """The settings as they are now. Raises ConfigError."""
        return load(self.config_file)

    def apply_log(self, settings: Settings, default_level: str | None = None) -> None:
        """Set the log up."""
        logs.configure(self.log_level or default_level or settings.log.level, self.log_format or settings.log.format)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Settings, TOML.  [default: ${CONFIG_VARIABLE}, else ./config.toml, else /etc/sweeperd/config.toml]",
)
@click.option("--once", is_flag=True, help="Drain what is due, deliver what is in the stream, and end: for cron.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print the result as one JSON object.")
@click.option(
    "--metrics-file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --once: write the run's metrics there, for node_exporter's textfile collector.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Overrides log.level.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Overrides log.format.")
@click.version_option(__version__, prog_name="sweeperd")
@click.pass_context
def main(
    context: click.Context,
    config_file: Path | None,
    once: bool,
    as_json: bool,
    metrics_file: Path | None,
    log_level: Literal["debug", "info", "warning", "error"] | None,
    log_format: Literal["text", "json"] | None,
) -> None:
    """
    Expire overdue reservations in Redis exactly once, and never lose the event.

    Without a subcommand and without --once this is the daemon.

    Exit codes: 0 done, 1 failed, 2 bad option or configuration, 3 swept but events wait for delivery.
    """
    context.obj = options = _Options(config_file, log_level, log_format)
    if as_json and not once:
        raise click.UsageError("--json goes with --once")
    if metrics_file is not None:
        if not once:
            raise click.UsageError("--metrics-file goes with --once")
        if not os.access(metrics_file.parent, os.W_OK | os.X_OK):
            raise click.UsageError(f"--metrics-file: nothing can be written in {metrics_file.parent}")
    if context.invoked_subcommand is not None:
        if once:
            raise click.UsageError("--once takes no subcommand")
        return
    context.exit(_once(options, as_json, metrics_file) if once else _daemon(options))


@main.command(short_help="Show the whole main job, live, on a Redis of its own.")
def demo() -> None:
    """Show the whole main job on a Redis of its own: no server, no configuration, half a minute at most."""
    from sweeperd.demo import run_demo  # noqa: PLC0415 - what only the demo needs is imported only for it

    sys.exit(run_demo(click.echo))


def _daemon(options: _Options) -> int:
    from sweeperd.service import Service  # noqa: PLC0415 - --once starts without the scheduler and the HTTP server

    settings = options.settings()
    try:
        service = Service(settings, options.load, options.apply_log, Notifier())
    except OSError as error:
        _fail(f"cannot listen on {settings.http.listen}: {error.strerror or error}", Exit.FAILED)
    service.run()
    return Exit.DONE


def _once(options: _Options, as_json: bool, metrics_file: Path | None) -> int:
    show = sys.stderr.isatty() and not as_json
    # A progress bar and a line for each expiry do not go together.
    settings = options.settings(default_level="warning" if show else None)
    metrics = Metrics(tenant_label=settings.metrics.tenant_label, lasting=False)
    try:
        with _metrics_written(metrics, metrics_file), _stop_on_signals() as stop, _progress(show) as progress:
            report = run_once(settings, stop, progress, metrics)
    except Exception as error:
        logging.getLogger(__name__).exception("the run failed")
        _fail(f"the run failed: {type(error).__name__}", Exit.FAILED)
    for failure in report.failures:
        click.echo(f"sweeperd: {failure}", err=True)
    if not report.any_done:
        return Exit.FAILED
    if as_json:
        click.echo(json.dumps(report.as_dict()))
    elif sys.stdout.isatty():
        click.echo(_summary(report))
    return report.exit_code


def _fail(problem: str, code: Exit) -> Never:
    for line in problem.splitlines():
        click.echo(f"sweeperd: {line}", err=True)
    sys.exit(code)


@contextlib.contextmanager
def _metrics_written(metrics: Metrics, path: Path | None) -> Iterator[None]:
    """Write the metrics when the block has ended, well or not: a failed run must not look like one that never was."""
    try:
        yield
    finally:
        if path is not None:
            try:
                # To a file beside it that takes its place when it is complete.
                write_to_textfile(str(path), metrics.registry)
            except OSError as error:
                _fail(f"the metrics cannot be written to {path}: {error.strerror or error}", Exit.FAILED)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """The first SIGTERM or SIGINT sets the event, the second ends the process at once."""
    stop = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _progress(show: bool) -> Iterator[Progress]:
    if not show:
        yield lambda *_: None
        return
    with contextlib.ExitStack() as bars:
        open_bars = {}

        def progress(stage: Stage, done: int, total: int) -> None:
            if total == 0:
                return
            if stage not in open_bars:
                bars.close()
                bar = click.progressbar(length=total, label=stage.value.capitalize(), show_pos=True, file=sys.stderr)
                open_bars[stage] = bars.enter_context(bar)
            bar = open_bars[stage]
            bar.length = total  # more shards come in
            bar.update(min(done, total) - bar.pos)

        yield progress


def _summary(report: OnceReport) -> str:
    counts, delivery = report.counts, report.delivery
    parts = [f"{counts[outcome]} {outcome.value.replace('_', ' ')}" for outcome in Outcome if counts[outcome]]
    swept = f"{counts.total()} entries in {report.duration_seconds:.1f} s: {', '.join(parts) or 'nothing was due'}"
    sent = f"{delivery.delivered} webhooks delivered, {delivery.undelivered} waiting, {delivery.dead_lettered} given up"
    return f"{swept}\n{sent}"
