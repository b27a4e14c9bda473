"""
`python -m proof.release 0.1.0`: prove this version from a clean clone, and write docs/evidence/0.1.0.md.

Exit code 0 where every step that could be tried holds, 1 where one does not, 2 for a bad option or a working tree with
changes. The page names what was not tried.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import click

from proof.release.page import render
from proof.release.runner import DATA, EVIDENCE, WITHOUT_FINDINGS, Place, differing_files, run_all, step_environment
from proof.release.step import Step, read
from proof.release.steps import steps
from sweeperd import __version__

ROOT = Path(__file__).parents[2]


@click.command()
@click.argument("version")
@click.option("--resume", is_flag=True, help="Leave out the steps that held on this commit.")
@click.option("--only", multiple=True, metavar="STEP", help="Only this step; can be repeated.")
@click.option("--list", "listed", is_flag=True, help="Name the steps, and run none.")
@click.option("--chaos-seed", type=int, help="What draws the faults. [default: a new one]")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A cluster to try, for the step `kubernetes`, which is left out without one.",
)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the clone and all that the steps write lie; needed again with --resume and --only. "
    "[default: sweeperd-release-VERSION where temporary files go]",
)
def main(
    version: str,
    resume: bool,
    only: tuple[str, ...],
    listed: bool,
    chaos_seed: int | None,
    kubeconfig: Path | None,
    work: Path | None,
) -> None:
    """Prove VERSION, step by step, and stop at the first step that fails."""
    work = (work or Path(tempfile.gettempdir()) / f"sweeperd-release-{version}").resolve()
    place = Place(ROOT, work / "clone", work, ROOT / DATA / version)
    all_steps = steps(work, chaos_seed, kubeconfig)
    if listed:
        for step in all_steps:
            click.echo(f"{step.name:16} {step.shows}")
        return
    if version != __version__:
        raise click.UsageError(f"this is {__version__}, as sweeperd/__init__.py says")
    chosen = choose(all_steps, only)
    clone(place)
    env = step_environment(os.environ, work / "venv" / "bin")
    results = run_all(chosen, place, env, resume=resume, say=lambda text: click.echo(text, err=True))
    target = ROOT / EVIDENCE / f"{version}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    found = [read(place.results, step.name) for step in all_steps]
    page_text = render(version, all_steps, found, partial(differing_files, place))
    target.write_text(page_text, encoding="utf-8")
    click.echo(f"written: {target.relative_to(ROOT)}", err=True)
    if not all(result.holds for result in results):
        click.echo(results[-1].trouble, err=True)
        sys.exit(1)


def choose(all_steps: list[Step], only: tuple[str, ...]) -> list[Step]:
    """The steps that are named, or all. Raises click.UsageError for an unknown name."""
    names = [step.name for step in all_steps]
    for name in only:
        if name not in names:
            raise click.UsageError(f"there is no step {name}; there are {', '.join(names)}")
    return [step for step in all_steps if not only or step.name in only]


def clone(place: Place) -> None:
    """Clone the commit, without what is not committed. Raises click.UsageError where something is not."""
    if changed := place.git("status", "--porcelain", *WITHOUT_FINDINGS):
        raise click.UsageError(f"commit or remove these first, a clean clone would not have them:\n{changed}")
    place.work.mkdir(parents=True, exist_ok=True)
    if not place.clone.exists():
        subprocess.run(["git", "clone", "--quiet", str(place.root), str(place.clone)], check=True)
    # The remote may be gone, or be older: the commit itself is taken over.
    for line in (["fetch", "--quiet", str(place.root), place.commit], ["checkout", "--quiet", "--force", place.commit]):
        subprocess.run(["git", "-C", str(place.clone), *line], check=True)
    subprocess.run(["git", "-C", str(place.clone), "clean", "-fdxq"], check=True)


if __name__ == "__main__":
    main(prog_name="python -m proof.release")
