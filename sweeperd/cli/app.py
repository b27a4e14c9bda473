"""The command `sweeperd`: the daemon, `--once`, and the list of the subcommands."""

import contextlib
import dataclasses
import difflib
import errno
import importlib
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from sweeperd import __version__
from sweeperd.cli.options import Exit, OnceOptions, Options, duration, end_at_once, fail
from sweeperd.errors import ConfigError, RedisUnavailable
from sweeperd.runtime.process import Role, hung_up, release_hang_ups

#: Subcommand -> a module of this folder and a name in the module, and the line of the help. The module is imported when
#: the subcommand runs, or says its own help.
_COMMANDS = {
    "demo": ("app:demo", "Show the whole main job, live, on a Redis of its own."),
    "prove": ("prove:command", "Prove that a configured kind loses and invents nothing."),
    "check": ("check:command", "Check the configuration, Redis and the endpoints."),
    "acl": ("check:acl", "Print the rights in Redis that these settings need."),
    "status": ("status:command", "Are we keeping up, is anyone not getting their events?"),
    "show": ("show:command", "Everything about one entry, and what a sweep would do with it."),
    "expired": ("expired:command", "What expired in a span of time, in order."),
    "quarantine": ("quarantine:command", "What was set aside: list it, put it back after a repair, or dismiss it."),
    "dead-letters": ("dead_letters:command", "Deliveries that were given up on: list, replay, drop."),
    "endpoints": ("endpoints:command", "The receivers: list, pause, resume, skip, drop, test, attempts; their keys."),
    "replay": ("replay:command", "Deliver the events of a span of time to one endpoint again."),
    "kinds": ("kinds:command", "The configured kinds: accept the settings of a kind whose entries are held."),
    "reconcile": ("reconcile:command", "Compare index and budgets with the reservations."),
    "ledger": ("ledger:command", "The budgets: the holders of a budget."),
    "actions": ("actions:command", "What operators did: who, when, what, how many."),
}
#: A full disk, a full quota, a file of the greatest size, a device that fails.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Commands(click.Group):
    """The subcommands. If Redis is away, each subcommand says so in a line."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[name][0].split(":")
        command: click.Command = getattr(importlib.import_module(f"sweeperd.cli.{module}"), attribute)
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help, without an import of the subcommands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """The subcommands and the options, without an import of the subcommands."""
        found = [
            CompletionItem(name, help=text) for name, (_, text) in _COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, context, incomplete)]

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        close = difflib.get_close_matches(arguments[0], _COMMANDS, 1)
        if close and arguments[0] not in _COMMANDS:
            context.fail(f"No such command {arguments[0]!r}; did you mean {close[0]}?")
        return super().resolve_command(context, arguments)

    def main(self, *arguments: Any, **extra: Any) -> Any:
        """As click's. If the output takes nothing more (a full disk), print a line and end with exit code 1."""
        _open_closed_streams()
        try:
            return super().main(*arguments, **extra)
        except OSError as error:
            if error.errno not in _UNWRITABLE or error.filename is not None:
                raise
            with contextlib.suppress(OSError):
                click.echo(f"sweeperd: the output cannot be written: {error.strerror}", err=True)
            _drop_broken_streams()
            sys.exit(Exit.FAILED)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except click.NoSuchOption as error:
            if error.option_name in {option for parameter in self.params for option in parameter.opts}:
                subcommand = error.ctx.command_path.partition(" ")[2] if error.ctx else ""
                place = f"before the subcommand: sweeperd {error.option_name} ... {subcommand}"
                raise click.UsageError(f"{error.option_name} stands {place}", error.ctx) from error
            raise
        except RedisUnavailable as error:
            fail(f"redis is not available: {error}", Exit.FAILED)


def _open_closed_streams() -> None:
    """If the process starts without standard streams (`>&-`), drop their text."""
    # In this order, because each open takes the lowest free descriptor.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as the process
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _drop_broken_streams() -> None:
    """Drop what a stream still holds, or Python would try to write the rest when the process ends, and fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings, TOML.  [default: $SWEEPERD_CONFIG, else ./config.toml, else /etc/sweeperd/config.toml]",
)
@click.option("--once", is_flag=True, help="Drain what is due, deliver what is in the stream, and end: for cron.")
@click.option("--json", "as_json", is_flag=True, help="With --once and the subcommands: print the result as JSON.")
@click.option(
    "--metrics-file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --once: write the run's metrics there, for node_exporter's textfile collector.",
)
@click.option(
    "--metrics-push",
    metavar="URL",
    help="With --once: push the run's metrics to this Pushgateway, for a CronJob.",
)
@click.option(
    "--exit-zero-on-pending",
    is_flag=True,
    help="With --once: exit with 0 in place of 3 if events wait for delivery.",
)
@click.option(
    "--delivery-limit",
    metavar="DURATION",
    callback=duration,
    help="With --once: stop delivering after so long, such as 5m; the rest waits for the next run.  [default: none]",
)
@click.option(
    "--role",
    type=click.Choice(["all", "sweep", "deliver"]),
    default="all",
    envvar="SWEEPERD_ROLE",
    help="What the daemon does. The maintenance of the event stream belongs to deliver.  [env: SWEEPERD_ROLE]",
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
    metrics_push: str | None,
    exit_zero_on_pending: bool,
    role: str,
    delivery_limit: timedelta | None,
    log_level: Literal["debug", "info", "warning", "error"] | None,
    log_format: Literal["text", "json"] | None,
) -> None:
    """
    Expire overdue reservations in Redis exactly once, and never lose the event.

    Without a subcommand and without --once this is the daemon.

    Exit codes: 0 done, 1 failed, 2 bad option or configuration, 3 swept but events wait for delivery.
    """
    context.obj = options = Options(
        config_file, log_level, log_format, as_json, logged=context.invoked_subcommand is None
    )
    if as_json and not once and context.invoked_subcommand in (None, "demo"):
        raise click.UsageError("--json goes with --once")
    if once or context.invoked_subcommand:
        release_hang_ups()
    once_options = OnceOptions(metrics_file, metrics_push, exit_zero_on_pending, delivery_limit)
    if not once:
        _refuse_without_once(once_options)
    if (once or context.invoked_subcommand) and context.get_parameter_source("role") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--role is for the daemon")
    if context.invoked_subcommand is not None:
        if once:
            raise click.UsageError("--once takes no subcommand")
        return
    context.exit(_once(options, once_options) if once else _daemon(options, role))


def _refuse_without_once(given: OnceOptions) -> None:
    for field in dataclasses.fields(given):
        if getattr(given, field.name) != field.default:
            raise click.UsageError(f"--{field.name.replace('_', '-')} goes with --once")


# Each function below imports what it runs, so that `--version` and the subcommands do not wait for the imports.


def _once(options: Options, once_options: OnceOptions) -> int:
    end_at_once(Exit.FAILED)
    from sweeperd.cli.once import run  # noqa: PLC0415

    return run(options, once_options)


def _daemon(options: Options, role: str) -> int:
    end_at_once(Exit.DONE)
    from sweeperd.runtime.service import Service  # noqa: PLC0415
    from sweeperd.runtime.systemd import SystemdNotifier  # noqa: PLC0415
    from sweeperd.tracing import tracing  # noqa: PLC0415

    settings = options.settings()
    try:
        service = Service(settings, options.load, options.apply_log, SystemdNotifier(), Role(role))
    except ConfigError as error:
        options.fail(str(error), Exit.FAILED)
    with tracing():
        return Exit.DONE if service.run(hung_up) else Exit.FAILED


@click.command("demo")
@click.option(
    "--kind",
    type=click.Choice(["seat-hold", "lock", "session", "permit"]),
    help="Show this example of a configured kind.  [default: reservations]",
)
def demo(kind: str | None) -> None:
    """Show the whole main job on a Redis of its own: no server, no configuration, half a minute at most."""
    if kind is not None:
        from sweeperd.demo.kind import run_kind_demo  # noqa: PLC0415

        sys.exit(run_kind_demo(kind, click.echo))
    from sweeperd.demo import run_demo  # noqa: PLC0415

    sys.exit(run_demo(click.echo))
