"""`sweeperd prove`: proves a configured kind on a temporary Redis."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from sweeperd.cli.options import Exit, Options, fail, json_option, shard_option
from sweeperd.cli.output import Output, printable
from sweeperd.cli.shards import check_name
from sweeperd.errors import ConfigError
from sweeperd.kit.judge import Failure
from sweeperd.kit.live import live_samples
from sweeperd.kit.prove import Proof, prove
from sweeperd.kit.samples import Sample, derived_samples, read_samples, without_after
from sweeperd.ops.trouble import ShardTrouble, working_on
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Decision
from sweeperd.text import counted, decode

#: The most live samples: each is tried with every property.
MOST_LIVE = 100


@click.command("prove")
@click.option("--kind", "name", metavar="NAME", required=True, help="The name of the kind in [[kinds]].")
@click.option(
    "--samples",
    "file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON with entries to prove it with; required for a kind with a script.",
)
@click.option(
    "--live",
    type=click.IntRange(1, MOST_LIVE),
    metavar="N",
    help="Also prove it with copies of N entries of the Redis in the settings, which is only read.",
)
@shard_option
@json_option
@click.pass_obj
def command(options: Options, name: str, file: Path | None, live: int | None, shard: str | None, as_json: bool) -> None:
    """
    Prove a configured kind on a temporary Redis: check each property against every sample, one line per property.

    Exit codes: 0 every property holds; 1 a property fails; 2 bad option, configuration or samples.
    """
    if shard is not None and live is None:
        raise click.UsageError("--shard goes with --live")
    output, proofs, warnings = Output(as_json=as_json), list[Proof](), list[str]()
    settings = options.settings(default_level="error", secrets=False)
    kinds = {kind.name: kind for kind in settings.kinds}
    check_name("kind", name, kinds)
    kind, samples = kinds[name], list[Sample]()
    try:
        if live is not None:
            samples = _live(options, name, live, shard, warnings)
        if file or kind.script is None or not samples:
            samples = [*(read_samples(file, kind) if file else derived_samples(kind)), *samples]
        warnings += filter(None, [without_after(samples)])
        for warning in warnings:
            click.echo(f"warning: {printable(warning)}", err=True)
        for proof in prove(settings, kind, samples):
            proofs.append(proof)
            if not as_json:
                _show(output, proof)
    except ConfigError as error:
        fail(str(error), Exit.USAGE)
    failed = sum(not proof.holds for proof in proofs)
    if as_json:
        rows = [{"property": proof.name, "holds": proof.holds} | _as_dict(proof.failure) for proof in proofs]
        document = {"kind": name, "holds": not failed, "warnings": warnings, "samples": len(samples)}
        output.json(document | {"properties": rows})
    else:
        output.say(_verdict(name, proofs, samples), "bold red" if failed else "bold green")
    sys.exit(Exit.FAILED if failed else Exit.DONE)


def _verdict(name: str, proofs: Sequence[Proof], samples: Sequence[Sample]) -> str:
    failed, copies = sum(not proof.holds for proof in proofs), sum(sample.live for sample in samples)
    verdict = f"{failed} of {len(proofs)} properties FAILED" if failed else f"all {len(proofs)} properties hold"
    return f"{name}: {verdict}, tried with {counted(len(samples), 'sample')}" + (
        f", {copies} of them live" if copies else ""
    )


def _live(options: Options, name: str, most: int, only: str | None, warnings: list[str]) -> list[Sample]:
    """Copies of `most` entries in all. Exits if a shard cannot be read, or if no entry is alive."""
    samples, left_out = list[Sample](), list[Decision]()
    with options.shards(only) as (settings, shards):
        (kind,) = (kind for kind in settings.kinds if kind.name == name)
        for number, shard in enumerate(shards):
            share = (most - len(samples)) // (len(shards) - number)
            try:
                with working_on(shard):
                    found = live_samples(shard, kind, kinds_of(settings, shard)[name], share)
            except ShardTrouble as trouble:
                fail(str(trouble), Exit.FAILED)
            samples, left_out = [*samples, *found.samples], [*left_out, *found.left_out]
    note = f"{len(left_out)} live entries have ended or cannot be copied"
    note += "".join(f": {decode(each.id)} is {each.outcome} {each.detail}".rstrip() for each in left_out[:1])
    if not samples:
        fail(f"there is no live entry of {name}; {note}", Exit.FAILED)
    if left_out:
        warnings.append(f"left out: {note}")
    return samples


def _show(output: Output, proof: Proof) -> None:
    output.say(f"{'ok' if proof.holds else 'FAILED':8}{proof.name}", "green" if proof.holds else "bold red")
    for line in proof.failure.report if proof.failure else ():
        output.say(f"        {line}")


def _as_dict(failure: Failure | None) -> dict[str, str]:
    if failure is None:
        return {}
    found = {"input": failure.sample, "problem": failure.problem, "entry": failure.entry, "line": failure.line}
    return {name: text for name, text in found.items() if text}
