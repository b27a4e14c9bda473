"""`sweeperd check`: checks settings, Redis and endpoints before the first sweep."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from sweeperd.cli.dry_run import show_previews
from sweeperd.cli.options import Exit, Options, all_option
from sweeperd.cli.shards import Run, on_shards, warn
from sweeperd.config import EndpointSettings
from sweeperd.config.secrets import NO_CREDENTIALS
from sweeperd.errors import ConfigError
from sweeperd.ops.check.endpoints import check_endpoints, check_settings
from sweeperd.ops.check.findings import CheckDocument, CheckFinding, CheckLevel, failure, ok, warning, worst
from sweeperd.ops.check.host import check_secret_files, open_files
from sweeperd.ops.check.server import check_shard
from sweeperd.ops.endpoint_health import LISTED
from sweeperd.sweep.preview import PreviewDocument
from sweeperd.text import counted

#: The largest sample.
MOST_SAMPLED = 10_000
_STYLES = {CheckLevel.OK: "green", CheckLevel.WARNING: "yellow", CheckLevel.FAILURE: "bold red"}


@click.command("check")
@click.option(
    "--strict",
    is_flag=True,
    help="Exit 1 for warnings too. Settings of Redis that this user may not read are no warning.",
)
@click.option("--connect", is_flag=True, help="Connect to each endpoint, with TLS, without sending a request.")
@click.option("--cycles", is_flag=True, help="Also check a Cycles installation; with --ledger, the rights beside one.")
@click.option("--ledger", is_flag=True, help="Check what sweeperd.ledger needs, as its own Redis user.")
@all_option
@click.option(
    "--sample",
    type=click.IntRange(1, MOST_SAMPLED),
    metavar="N",
    help="Also say what a sweep would do with N entries of each kind, due or not.",
)
@on_shards()
def command(run: Run, strict: bool, connect: bool, cycles: bool, ledger: bool, every: bool, sample: int | None) -> None:
    """
    Check the configuration, the Redis of each shard and the endpoints, one line per check. Changes nothing.

    Exit codes: 0 no failure; 1 a failure, or with --strict a warning; 2 bad option or configuration.
    """
    if ledger and connect:
        raise click.UsageError("--ledger checks no endpoints: remove --connect")
    if ledger and sample:
        raise click.UsageError("--ledger checks no kinds: remove --sample")
    output, findings, previews = run.output, list[CheckFinding](), list[PreviewDocument]()
    listed, endpoints = list[CheckFinding](), set[str]()
    of_shard = {"cycles": cycles, "ledger": ledger, "sample": sample or 0, "sampled": previews.append}
    for finding in _check(run, connect=connect, ledger=ledger, of_shard=of_shard):
        findings.append(finding)
        if finding.where.startswith("endpoint "):
            endpoints.add(finding.where)
        if not every and finding.level is CheckLevel.OK and finding.where in endpoints and len(endpoints) > LISTED:
            continue
        listed.append(finding)
        if output.terminal:
            advice = f" -> {finding.advice}" if finding.advice else ""
            line = f"{finding.level.value:8}{finding.where}: {finding.check}: {finding.says}{advice}"
            output.say(line, _STYLES[finding.level])
    result = worst(findings)
    if output.as_json:
        samples = {"samples": previews} if sample else {}
        output.json(CheckDocument.model_validate({"result": result, "checks": findings, **samples}))
    elif not output.terminal:
        rows = [(each.level.value, each.where, each.check, each.says, each.advice) for each in listed]
        output.table(("level", "where", "check", "says", "advice"), rows)
    if not output.as_json:
        if rest := len(endpoints - {each.where for each in listed}):
            warn(f"{rest:,} more endpoints are ok; --all lists them")
        show_previews(output, previews)
    failed = result is CheckLevel.FAILURE or (strict and result is CheckLevel.WARNING)
    sys.exit(Exit.FAILED if failed else Exit.DONE)


def _check(run: Run, *, connect: bool, ledger: bool, of_shard: Mapping[str, Any]) -> Iterator[CheckFinding]:
    """`of_shard`: the options of `check_shard`."""
    context, settings = click.get_current_context(), run.settings
    problems: list[str] = []
    complete, endpoints = None, list[EndpointSettings]()
    if not ledger:
        try:
            complete = context.ensure_object(Options).load()
        except ConfigError as error:
            problems = str(error).splitlines()
        endpoints = (complete or settings).webhooks.endpoints
    loaded = f"{counted(len(settings.all_shards), 'shard')}, {counted(len(endpoints), 'endpoint')}"
    yield CheckFinding.of("configuration", "loads", ok(loaded))
    for problem in problems:
        # Only the service itself can read its systemd credentials.
        found = (
            warning(problem, "not checked here; the unit needs a LoadCredential of this name")
            if problem.endswith(NO_CREDENTIALS)
            else failure(problem, "the daemon will not start")
        )
        yield CheckFinding.of("configuration", "secrets", found)
    if not ledger:
        yield CheckFinding.of("configuration", "open files", open_files(settings))
        yield from check_settings(complete or settings)
    if complete:
        yield from check_secret_files(complete)
    daemon_role = context.find_root().params["role"]  # from SWEEPERD_ROLE
    for shard in run.shards:
        yield from check_shard(shard, settings, daemon_role=daemon_role, **of_shard)
    yield from check_endpoints(
        endpoints, connect=settings.webhooks.connect_timeout.total_seconds() if connect else None
    )
