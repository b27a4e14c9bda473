"""`sweeperd check`."""

import sys

import click

from sweeperd.cli.options import Exit, Options, json_option, shard_option
from sweeperd.cli.output import Output
from sweeperd.config import Settings
from sweeperd.errors import ConfigError
from sweeperd.ops.check import CheckDocument, CheckFinding, CheckLevel, check_endpoint, check_shard, worst

_STYLES = {CheckLevel.OK: "green", CheckLevel.WARNING: "yellow", CheckLevel.FAILURE: "bold red"}


@click.command("check", short_help="Check the configuration, Redis and the endpoints.")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.option("--connect", is_flag=True, help="Open a connection to each endpoint, with TLS; nothing is sent.")
@click.option("--cycles", is_flag=True, help="Also check whether Redis is a Cycles installation to take over.")
@click.option("--ledger", is_flag=True, help="Check what sweeperd.ledger needs, as the user that it works as.")
@shard_option
@json_option
@click.pass_obj
def command(
    options: Options, strict: bool, connect: bool, cycles: bool, ledger: bool, shard: str | None, as_json: bool
) -> None:
    """
    Check the configuration, the Redis of each shard and the endpoints; one line for each check. Changes nothing.

    Exit codes: 0 no failure; 1 a failure, and with --strict a warning; 2 bad option or configuration.
    """
    if ledger and (connect or cycles):
        raise click.UsageError("--ledger checks nothing else: leave out --connect and --cycles")
    output = Output(as_json=as_json)
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
        note(CheckFinding(CheckLevel.OK, "configuration", "loads", loaded))
        for finding in problems:
            note(finding)
        for each in shards:
            for finding in check_shard(each, settings, cycles=cycles, ledger=ledger):
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
    """The settings with the secrets of the endpoints; a failure for each of these that cannot be read."""
    try:
        return options.load(), []
    except ConfigError as error:
        advice = "the daemon does not start so"
        lines = str(error).splitlines()
        return None, [CheckFinding(CheckLevel.FAILURE, "configuration", "secrets", line, advice) for line in lines]
