"""`sweeperd prove`: proves a configured kind on a temporary Redis."""

import sys
from pathlib import Path

import click

from sweeperd.cli.options import Exit, Options, fail, json_option
from sweeperd.cli.output import Output
from sweeperd.cli.shards import check_name
from sweeperd.errors import ConfigError
from sweeperd.kit.judge import Failure
from sweeperd.kit.prove import Proof, prove
from sweeperd.kit.samples import derived_samples, read_samples, without_after


@click.command("prove")
@click.option("--kind", "name", metavar="NAME", required=True, help="The name of the kind in [[kinds]].")
@click.option(
    "--samples",
    "file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON with entries to prove it with; required for a kind with a script.",
)
@json_option
@click.pass_obj
def command(options: Options, name: str, file: Path | None, as_json: bool) -> None:
    """
    Prove a configured kind on a temporary Redis: check each property against every sample, one line per property.

    Exit codes: 0 every property holds; 1 a property fails; 2 bad option, configuration or samples.
    """
    proofs: list[Proof] = []
    settings = options.settings(default_level="error", secrets=False)
    kinds = {kind.name: kind for kind in settings.kinds}
    check_name("kind", name, kinds)
    try:
        kind = kinds[name]
        samples = read_samples(file, kind) if file else derived_samples(kind)
        if warning := without_after(samples):
            click.echo(f"warning: {warning}", err=True)
        for proof in prove(settings, kind, samples):
            proofs.append(proof)
            if not as_json:
                click.echo(f"{'ok' if proof.holds else 'FAILED':8}{proof.name}")
                if proof.failure:
                    click.echo("\n".join(f"        {line}" for line in proof.failure.report))
    except ConfigError as error:
        fail(str(error), Exit.USAGE)
    holds = all(proof.holds for proof in proofs)
    if as_json:
        rows = [{"property": proof.name, "holds": proof.holds} | _as_dict(proof.failure) for proof in proofs]
        warnings = [warning] if warning else []
        Output(as_json=True).json({"kind": name, "holds": holds, "warnings": warnings, "properties": rows})
    sys.exit(Exit.DONE if holds else Exit.FAILED)


def _as_dict(failure: Failure | None) -> dict[str, str]:
    if failure is None:
        return {}
    found = {"input": failure.sample, "problem": failure.problem, "entry": failure.entry, "line": failure.line}
    return {name: text for name, text in found.items() if text}
