"""`sweeperd verify-archive`."""

import re
import sys
from typing import BinaryIO

import click

from sweeperd.cli.options import Exit, fail, json_option
from sweeperd.cli.output import Output, printable
from sweeperd.ops.archive import START, verify


def sha256(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The callback of an option: a SHA-256 in hex. Raises click.BadParameter."""
    if value is None or re.fullmatch("[0-9a-f]{64}", value.lower()):
        return value and value.lower()
    raise click.BadParameter(f"{value[:80]!r} is no SHA-256: 64 hexadecimal digits", context, parameter)


@click.command("verify-archive", short_help="Verify an archive that `expired --json --chain` wrote.")
@click.argument("file", type=click.File("rb"))
@click.option("--head", metavar="SHA256", callback=sha256, help="What the last line must hash to; finds a cut-off end.")
@click.option(
    "--chain-from",
    metavar="SHA256",
    callback=sha256,
    help="The head of the archive that this one continues.  [default: it continues none]",
)
@json_option
def command(file: BinaryIO, head: str | None, chain_from: str | None, as_json: bool) -> None:
    """
    Verify that no line of an archive was changed, removed, added or moved, and name the first broken line.

    FILE is what `sweeperd expired --json --chain` wrote; - is standard input. Several archives, each of which continues
    the one before, may stand in one FILE. Without --head, a changed last line or a missing end cannot be noticed.

    Exit codes: 0 the chain is whole; 1 it is broken; 2 bad option, or FILE cannot be read.
    """
    output = Output(as_json=as_json)
    try:
        verdict = verify(file, chain_from or START, head)
    except OSError as error:
        fail(f"{printable(file.name)}: cannot be read: {error.strerror}", Exit.USAGE)
    whole = verdict.broken_line is None
    if as_json:
        output.json(
            {
                "file": file.name,
                "whole": whole,
                "lines": verdict.lines,
                "head": verdict.head,
                "broken_line": verdict.broken_line,
                "problem": verdict.problem,
            }
        )
    elif whole:
        output.say(f"{file.name}: the chain is whole: {verdict.lines} lines, head {verdict.head}", "green")
    if not whole:
        fail(f"{printable(file.name)}: line {verdict.broken_line}: {printable(verdict.problem)}", Exit.FAILED)
    sys.exit(Exit.DONE)
