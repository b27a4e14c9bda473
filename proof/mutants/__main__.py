"""
`python -m proof.mutants lua|python`: break the product in one place after another and see whether the tests notice.

All mutants of the scripts take hours on a small machine; `--only` and `--sample` make it less.
"""

import functools
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

# Imported before the children are made, so that each need not do it again.
import hypothesis  # noqa: F401
import prometheus_client  # noqa: F401
import pydantic  # noqa: F401
import redis  # noqa: F401
import requests  # noqa: F401

from proof.mutants import choice, report
from proof.mutants.mutant import Mutant
from proof.mutants.reach import reached
from proof.mutants.servers import Servers
from proof.mutants.trial import Plan, Trial, Trials, Verdict


@click.command()
@click.argument("language", type=click.Choice(["lua", "python"]))
@click.option("--only", multiple=True, help="Only files whose path holds this text; can be given more than once.")
@click.option("--sample", type=int, help="This many mutants, drawn at random.")
@click.option("--seed", type=int, help="What --sample draws from; printed if it is not given.")
@click.option("--jobs", type=int, default=2, show_default=True, help="Trials at once.")
@click.option("--keep", is_flag=True, help="Keep the verdicts instead of earlier ones of the same mutants.")
@click.option(
    "--reach",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder that says which test runs which line of Python; measured and put there if it is new.",
)
@click.option(
    "--budget",
    type=float,
    default=45,
    show_default=True,
    help="How long the tests of one mutant of Python may take in all, quick ones first; seconds.",
)
@click.option("--left", is_flag=True, help="Only mutants without a kept verdict, and survivors that are not explained.")
def main(
    language: str,
    only: Sequence[str],
    sample: int | None,
    seed: int | None,
    jobs: int,
    keep: bool,
    reach: Path | None,
    budget: float,
    left: bool,
) -> None:
    """Exit code 0 if at least 95 % of the mutants were caught and each survivor is explained, else 1."""
    mutants = choice.all_mutants(language, only)
    if left:
        kept, explained = report.verdicts(language, [mutant.name for mutant in mutants]), report.explanations()
        done = {name for name, verdict in kept.items() if verdict is Verdict.CAUGHT or name in explained}
        mutants = [mutant for mutant in mutants if mutant.name not in done]
    seed = random.randrange(2**32) if seed is None else seed
    if sample is not None and sample < len(mutants):
        click.echo(f"{sample} of {len(mutants)} mutants, --seed {seed}")
        mutants = sorted(random.Random(seed).sample(mutants, sample), key=lambda one: (one.file, one.line))
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder), jobs)
        if language == "lua":
            plan_of = _script_plan
            _check_unbroken(trials, mutants)
        else:
            plan_of = functools.partial(reached(reach or Path(folder) / "reach", jobs).plan, budget)
        known = {mutant.name for mutant in choice.all_mutants(language)}
        tried: list[Trial] = []
        for trial in _try_all(trials, mutants, plan_of):
            tried.append(trial)
            if keep:
                report.keep(language, tried, known)
    report.show(sorted(tried, key=lambda trial: (trial.mutant.file, trial.mutant.line)))
    survivors = [trial.mutant.name for trial in tried if trial.verdict is Verdict.SURVIVED]
    enough = len(survivors) <= 0.05 * len(tried)
    sys.exit(0 if enough and all(name in report.explanations() for name in survivors) else 1)


def _check_unbroken(trials: Trials, mutants: Sequence[Mutant]) -> None:
    """Every test passes while nothing is broken; a verdict would mean nothing otherwise."""
    tests = dict.fromkeys(test for mutant in mutants for test in choice.tests_of(choice.PACKAGE / mutant.file))
    waiting = [*tests]
    while waiting or not trials.idle:
        while waiting and not trials.full:
            trials.start(None, Plan([waiting.pop()]))
        trial = trials.wait()
        if trial.verdict is Verdict.CAUGHT:
            raise click.ClickException(f"{trial.caught_by or 'a test'} fails without any mutant")


def _script_plan(mutant: Mutant) -> Plan:
    return Plan(choice.tests_of(choice.PACKAGE / mutant.file))


def _try_all(trials: Trials, mutants: Sequence[Mutant], plan_of: Callable[[Mutant], Plan]) -> Iterator[Trial]:
    """
    Try each mutant on the newest Redis. One that only a limit of time has caught is tried a second time; a
    script's that survived, on the older servers too. Yields each trial that decides.
    """
    waiting: list[tuple[Mutant, Servers]] = [(mutant, "newest") for mutant in reversed(mutants)]
    count, again, older = 0, set[str](), set[str]()
    while waiting or not trials.idle:
        while waiting and not trials.full:
            mutant, servers = waiting.pop()
            trials.start(mutant, replace(plan_of(mutant), servers=servers))
        trial = trials.wait()
        mutant = trial.mutant
        if trial.timed_out and mutant.name not in again:
            again.add(mutant.name)
            waiting.append((mutant, "older" if mutant.name in older else "newest"))
        elif trial.verdict is Verdict.SURVIVED and mutant.file.endswith(".lua") and mutant.name not in older:
            older.add(mutant.name)
            waiting.append((mutant, "older"))
        else:
            count += 1
            click.echo(f"{count}/{len(mutants)} {trial.verdict} {trial.seconds:.0f}s {mutant.name}", err=True)
            yield trial


if __name__ == "__main__":
    main()
