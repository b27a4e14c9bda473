"""`sweeperd check` and `sweeperd acl`: the checks before the first sweep, and the rights for the settings."""

import re
import sys

import click

from sweeperd.cli.options import Exit, Options, json_option, shard_option
from sweeperd.cli.output import Output
from sweeperd.config import Settings
from sweeperd.config.secrets import NO_CREDENTIALS
from sweeperd.errors import ConfigError
from sweeperd.ops.acl import AclDocument, AclUserDocument, Role, acl_users
from sweeperd.ops.check.endpoints import check_endpoint
from sweeperd.ops.check.findings import (
    CheckDocument,
    CheckFinding,
    CheckLevel,
    CheckResult,
    failure,
    ok,
    warning,
    worst,
)
from sweeperd.ops.check.host import check_secret_files, open_files
from sweeperd.ops.check.server import check_shard

_STYLES = {CheckLevel.OK: "green", CheckLevel.WARNING: "yellow", CheckLevel.FAILURE: "bold red"}


@click.command("check")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.option("--connect", is_flag=True, help="Open a connection to each endpoint, with TLS; nothing is sent.")
@click.option(
    "--cycles",
    is_flag=True,
    help="Also check whether Redis is a Cycles installation to take over; with --ledger, the rights beside one.",
)
@click.option("--ledger", is_flag=True, help="Check what sweeperd.ledger needs, as the user that it works as.")
@shard_option
@json_option
@click.pass_obj
def command(
    options: Options, strict: bool, connect: bool, cycles: bool, ledger: bool, shard: str | None, as_json: bool
) -> None:
    """
    Check the configuration, the Redis of each shard and the endpoints; a line for each check. Changes nothing.

    Exit codes: 0 no failure; 1 a failure, and with --strict a warning; 2 bad option or configuration.
    """
    if ledger and connect:
        raise click.UsageError("--ledger checks nothing else: leave out --connect")
    output = Output(as_json=as_json)
    daemon_role = click.get_current_context().find_root().params["role"]  # of SWEEPERD_ROLE
    findings: list[CheckFinding] = []

    def note(finding: CheckFinding) -> None:
        findings.append(finding)
        if output.terminal:
            advice = f" -> {finding.advice}" if finding.advice else ""
            output.say(
                f"{finding.level.value:8}{finding.where}: {finding.check}: {finding.says}{advice}",
                _STYLES[finding.level],
            )

    with options.shards(shard) as (settings, shards):
        complete, problems = (None, []) if ledger else _with_secrets(options)
        endpoints = [] if ledger else (complete or settings).webhooks.endpoints
        loaded = f"{len(settings.all_shards)} shard(s), {len(endpoints)} endpoint(s)"
        note(CheckFinding.of("configuration", "loads", ok(loaded)))
        for finding in problems:
            note(finding)
        if not ledger:
            note(CheckFinding.of("configuration", "open files", open_files(settings)))
        for finding in check_secret_files(complete) if complete else ():
            note(finding)
        for each in shards:
            for finding in check_shard(each, settings, cycles=cycles, ledger=ledger, daemon_role=daemon_role):
                note(finding)
        limit = settings.webhooks.connect_timeout.total_seconds() if connect else None
        for endpoint in endpoints:
            for finding in check_endpoint(endpoint, connect=limit):
                note(finding)
    result = worst(findings)
    if as_json:
        output.json(CheckDocument.model_validate({"result": result, "checks": findings}))
    elif not output.terminal:
        rows = [(each.level.value, each.where, each.check, each.says, each.advice) for each in findings]
        output.table(("level", "where", "check", "says", "advice"), rows)
    failed = result is CheckLevel.FAILURE or (strict and result is CheckLevel.WARNING)
    sys.exit(Exit.FAILED if failed else Exit.DONE)


def _with_secrets(options: Options) -> tuple[Settings | None, list[CheckFinding]]:
    """The settings with the secrets of the endpoints; a failure for each secret that cannot be read."""
    try:
        return options.load(), []
    except ConfigError as error:
        return None, [CheckFinding.of("configuration", "secrets", _secret(line)) for line in str(error).splitlines()]


def _secret(problem: str) -> CheckResult:
    """The result for a secret that cannot be read: a credential of the service may be there for the service alone."""
    if problem.endswith(NO_CREDENTIALS):
        return warning(problem, "not checked here; the unit needs a LoadCredential of this name")
    return failure(problem, "the daemon does not start so")


def _user_name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[!-~]+", value):
        raise click.BadParameter("a user's name has no spaces")
    return value


@click.command("acl")
@click.option(
    "--user",
    callback=_user_name,
    metavar="NAME",
    help="The user's name.  [default: sweeperd; with --ledger: ledger]",
)
@click.option(
    "--role",
    type=click.Choice(["all", "sweep", "deliver"]),
    default="all",
    help="What the daemon does: its own --role.",
)
@click.option("--commands", is_flag=True, help="Also what the commands of operators need, such as show and quarantine.")
@click.option("--ledger", is_flag=True, help="What a service that uses sweeperd.ledger needs, and nothing else.")
@click.option("--cycles", is_flag=True, help="With --ledger: also what Ledger(cycles=True) needs.")
@click.option("--file", "as_file", is_flag=True, help="Print the line of an ACL file (aclfile) and no command.")
@shard_option
@json_option
@click.pass_obj
def acl(
    options: Options,
    user: str | None,
    role: Role,
    commands: bool,
    ledger: bool,
    cycles: bool,
    as_file: bool,
    shard: str | None,
    as_json: bool,
) -> None:
    """
    Print the ACL SETUSER command of each Redis: the keys, channels and commands for these settings, and no more.

    Nothing is sent. `sweeperd acl | redis-cli` runs the command; run this again after each change of the
    settings. The command replaces all rules of the user but no password, and sets no password.
    """
    if ledger and (commands or role != "all"):
        raise click.UsageError("--ledger is for a user of its own: leave out --role and --commands")
    if cycles and not ledger:
        raise click.UsageError("--cycles goes with --ledger: cycles.enabled gives the daemon its rights")
    user = user or ("ledger" if ledger else "sweeperd")
    output = Output(as_json=as_json)
    with options.shards(shard) as (settings, shards):
        names = [each.name for each in shards]
        wanted = [each for each in settings.all_shards if each.name in names]
        users = acl_users(settings, wanted, role, commands=commands, ledger=ledger, cycles=cycles)
    lines = [" ".join(["user" if as_file else "ACL SETUSER", user, *each.rules]) for each in users]
    if as_json:
        documents = [
            AclUserDocument.made_of(each, user=user, line=line) for each, line in zip(users, lines, strict=True)
        ]
        output.json(AclDocument(users=documents))
        return
    for each, line in zip(users, lines, strict=True):
        click.echo(f"{each.address}: {', '.join(each.shards)}", err=True)
        click.echo(line)
