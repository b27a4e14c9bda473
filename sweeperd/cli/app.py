"""Defines the command `sweeperd`, which runs the daemon, `--once` or a subcommand."""

import contextlib
import dataclasses
import errno
import importlib
import os
import sys
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from sweeperd import __version__
from sweeperd.cli.moment import duration
from sweeperd.cli.options import Exit, OnceOptions, Options, fail
from sweeperd.errors import ConfigError, RedisUnavailable
from sweeperd.runtime.process import Role, hung_up, importing, in_own_process, release_hang_ups
from sweeperd.runtime.signals import end_at_once
from sweeperd.text import did_you_mean

#: Subcommand -> its line in the help. A subcommand's module is imported only when the subcommand runs.
_COMMANDS = {
    "demo": "Show the whole job live, on a temporary Redis.",
    "prove": "Prove that a configured kind loses and invents nothing.",
    "init": "Write a first config.toml and a secret.",
    "config": "Print the settings in effect, or their JSON schema.",
    "listen": "Receive webhooks, verify and print them: to try endpoints with.",
    "check": "Check the configuration, Redis and the endpoints.",
    "acl": "Print the rights in Redis that these settings need.",
    "status": "Show the backlog, undelivered events, and what needs attention.",
    "show": "Show one entry, and what a sweep would do with it.",
    "expired": "List what expired in a time span, in order.",
    "quarantine": "List quarantined entries, requeue or dismiss them.",
    "dead-letters": "List dead letters, replay or drop them.",
    "endpoints": "Manage the endpoints: list, pause, resume, skip, drop, test, attempts, keys.",
    "replay": "Deliver the events of a time span to one endpoint again.",
    "kinds": "Accept the settings of a kind whose entries are held.",
    "index": "Add existing entries to the index of a kind.",
    "reconcile": "Compare index and budgets with the reservations.",
    "ledger": "Show a budget and its holders.",
    "actions": "List what operators did.",
    "uninstall": "Remove sweeperd's own keys from Redis.",
}
#: The disk or quota is full, the file is too large, or the device fails.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _imported(module: str) -> Any:
    with importing():
        if module != "keygen":
            _import_redis()
        return importlib.import_module(f"sweeperd.cli.{module}").command


def _import_redis() -> None:
    """
    Import redis as if opentelemetry was not installed: it would import the whole SDK (a fifth of the CPU time of
    `status`), for metrics that no command has.
    """
    if "redis" in sys.modules or "opentelemetry" in sys.modules or not in_own_process():
        return
    absent: Any = None
    sys.modules["opentelemetry"] = absent  # its import fails then
    try:
        importlib.import_module("redis")
    finally:
        del sys.modules["opentelemetry"]


class _Endpoints(click.Group):
    """The commands about endpoints, of which `keygen` needs neither settings nor Redis."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted([*_imported("endpoints").list_commands(context), "keygen"])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        command: click.Command | None = (
            _imported("keygen") if name == "keygen" else _imported("endpoints").get_command(context, name)
        )
        return command


class _Commands(click.Group):
    """The subcommands, imported when they are needed."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        if name == "demo":
            return demo
        return endpoints if name == "endpoints" else _imported(name.replace("-", "_"))

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=text) for name, text in _COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, context, incomplete)]

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        meant = did_you_mean(arguments[0], _COMMANDS)
        if meant and arguments[0] not in _COMMANDS:
            context.fail(f"No such command {arguments[0]!r}{meant}")
        return super().resolve_command(context, arguments)

    def main(self, *arguments: Any, **extra: Any) -> Any:
        """As click's, but an output that cannot be written (a full disk) is one line and exit code 1."""
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
                raise click.UsageError(f"{error.option_name} goes {place}", error.ctx) from error
            raise
        except RedisUnavailable as error:
            from sweeperd.store.errors import describe_unavailable  # noqa: PLC0415  takes long

            fail(describe_unavailable(error), Exit.FAILED)


def _open_closed_streams() -> None:
    """Replace standard streams that are closed (`>&-`) by the null device, by whose name they are known."""
    # In this order, because each open takes the lowest free descriptor.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as the process
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _drop_broken_streams() -> None:
    """Drop what a stream still buffers, because Python would fail to write it at exit."""
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
@click.option("--once", is_flag=True, help="Sweep what is due, deliver the events, and exit: for cron.")
@click.option("--dry-run", is_flag=True, help="With --once: write nothing, send nothing, and say what would happen.")
@click.option("--json", "as_json", is_flag=True, help="With --once or a subcommand: print the result as JSON.")
@click.option(
    "--metrics-file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --once: write the run's metrics there, for node_exporter's textfile collector.",
)
@click.option("--metrics-push", metavar="URL", help="With --once: push the run's metrics to this Pushgateway.")
@click.option("--exit-zero-on-pending", is_flag=True, help="With --once: exit with 0 instead of 3 if events wait.")
@click.option(
    "--delivery-limit",
    metavar="DURATION",
    callback=duration,
    help="With --once: stop delivering after this time, such as 5m; the next run delivers the rest.  [default: none]",
)
@click.option(
    "--role",
    type=click.Choice(["all", "sweep", "deliver"]),
    default="all",
    envvar="SWEEPERD_ROLE",
    help="What the daemon does; deliver also maintains the event stream.  [env: SWEEPERD_ROLE]",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Overrides log.level.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Overrides log.format.")
@click.version_option(__version__, prog_name="sweeperd")
@click.pass_context
def main(
    context: click.Context,
    /,
    config_file: Path | None,
    once: bool,
    as_json: bool,
    role: str,
    log_level: Literal["debug", "info", "warning", "error"] | None,
    log_format: Literal["text", "json"] | None,
    **of_once: Any,
) -> None:
    """
    Expire overdue reservations in Redis exactly once, and never lose the event.

    Without a subcommand or --once, sweeperd runs as a daemon.

    Exit codes: 0 done, 1 failed, 2 bad option or configuration, 3 swept but events wait for delivery.
    """
    context.obj = options = Options(
        config_file, log_level, log_format, as_json, logged=context.invoked_subcommand is None
    )
    if as_json and not once and context.invoked_subcommand in (None, "demo"):
        raise click.UsageError("--json goes with --once")
    if once or context.invoked_subcommand:
        release_hang_ups()
    once_options = OnceOptions(**of_once)
    for field in () if once else dataclasses.fields(once_options):
        if getattr(once_options, field.name) != field.default:
            raise click.UsageError(f"--{field.name.replace('_', '-')} goes with --once")
    if (once or context.invoked_subcommand) and context.get_parameter_source("role") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--role goes with the daemon")
    if context.invoked_subcommand is not None:
        if once:
            raise click.UsageError("--once takes no subcommand")
        return
    if once_options.dry_run:
        others = dataclasses.replace(once_options, dry_run=False)
        if others != OnceOptions():
            raise click.UsageError("--dry-run delivers nothing and counts nothing: it takes no option but --json")
        _dry_run(options)
        return
    context.exit(_once(options, once_options) if once else _daemon(options, role))


# Each function below imports what it runs, because the imports would delay `--version` and the subcommands.


def _once(options: Options, once_options: OnceOptions) -> int:
    end_at_once(Exit.FAILED)
    from sweeperd.cli.once import run  # noqa: PLC0415

    return run(options, once_options)


def _dry_run(options: Options) -> None:
    from sweeperd.cli.dry_run import run  # noqa: PLC0415

    options.logged = False
    run(options)


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


@click.group("endpoints", cls=_Endpoints)
def endpoints() -> None:
    """Manage the receivers of webhooks."""


@click.command("demo")
@click.option(
    "--kind",
    type=click.Choice(["seat-hold", "lock", "session", "permit"]),
    help="Show this example of a configured kind.  [default: reservations]",
)
def demo(kind: str | None) -> None:
    """Show the whole job on a temporary Redis: no server, no configuration, up to half a minute."""
    if kind is not None:
        from sweeperd.demo.kind import run_kind_demo  # noqa: PLC0415

        sys.exit(run_kind_demo(kind, click.echo))
    from sweeperd.demo import run_demo  # noqa: PLC0415

    sys.exit(run_demo(click.echo))
