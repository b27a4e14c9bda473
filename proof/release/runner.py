"""Runs steps one after the other in a clean clone, keeps each result, and stops at the first that fails."""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from proof.release.step import Output, Result, Step, read, write
from tests.support.host import cpu_time
from tests.support.servers import binaries

#: How much of a failed command's output is kept, characters.
TAIL = 4000
#: The page of a version, and the data behind it, which the release workflow keeps and Git does not.
EVIDENCE, DATA = "docs/evidence", "dist/evidence"
#: Changes of these files and folders leave the product as it is, so results of a commit before them still count.
_FINDINGS = (EVIDENCE, "proof/mutants/results", "proof/mutants/explained.toml")
#: What tells git to leave them out.
WITHOUT_FINDINGS = ("--", ".", *(f":(exclude){path}*" for path in _FINDINGS))
#: Prefixes of variables that would change what a step tries, and the exceptions, which say what to try it on.
_REMOVED = ("PYTHON", "PYTEST_", "VIRTUAL_ENV", "SWEEPERD_")
_PASSED_ON = ("SWEEPERD_TEST_SERVERS", "SWEEPERD_RELEASE_")


@dataclass(frozen=True)
class Place:
    """Where a release is made."""

    #: The repository, and the clean clone of it.
    root: Path
    clone: Path
    #: What the commands write.
    work: Path
    #: What is kept of it: results, plots, data.
    kept: Path

    @property
    def results(self) -> Path:
        """The folder of the results."""
        return self.kept / "results"

    def git(self, *arguments: str) -> str:
        """What git prints in the repository. Raises subprocess.CalledProcessError."""
        line = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()

    @property
    def commit(self) -> str:
        """The commit that the repository is on."""
        return self.git("rev-parse", "HEAD")

    @property
    def cloned(self) -> str:
        """The commit that the clone is on, which is what the steps see: work in the repository may go on meanwhile."""
        return self._in_clone("rev-parse", "HEAD")

    @property
    def changed(self) -> str:
        """The files of the clone that differ from its commit."""
        return self._in_clone("status", "--porcelain", "--untracked-files=no")

    def _in_clone(self, *arguments: str) -> str:
        line = ["git", "-C", str(self.clone), *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


def step_environment(outside: Mapping[str, str], first: Path) -> dict[str, str]:
    """
    The environment of the steps, with the folder `first` first on the PATH. It has no options of pytest, no settings,
    and no PYTHONPATH, because Python would import the clone instead of the wheel that is installed.
    """
    passed = {
        name: text for name, text in outside.items() if name.startswith(_PASSED_ON) or not name.startswith(_REMOVED)
    }
    return passed | {"PATH": f"{first}{os.pathsep}{outside['PATH']}"}


def differing_files(place: Place, commits: Sequence[str]) -> list[str] | None:
    """
    The files in which these commits differ, apart from findings: evidence, and verdicts on mutants. Empty: they have
    the same product. None: one of the commits is not here.
    """
    try:
        changed = [place.git("diff", "--name-only", commits[0], each, *WITHOUT_FINDINGS) for each in commits[1:]]
    except subprocess.CalledProcessError:
        return None
    return sorted({file for files in changed for file in files.splitlines()})


def still_counts(result: Result | None, place: Place) -> bool:
    """Whether a step was tried and held on this commit, or on one from which only findings have changed."""
    if result is None or not result.holds or result.unchecked:
        return False
    return differing_files(place, [result.commit, "HEAD"]) == []


def run_all(
    steps: Sequence[Step],
    place: Place,
    env: Mapping[str, str],
    *,
    resume: bool,
    say: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Run the steps up to the first that fails; the last result says whether one has. `resume`: leave out what held."""
    results = []
    for step in steps:
        before = read(place.results, step.name)
        if resume and not step.judges_findings and before is not None and still_counts(before, place):
            say(f"{step.name}: held on {before.commit[:12]}")
            results.append(before)
            continue
        say(f"{step.name}: {step.shows}")
        result = run(step, place, env)
        write(result, place.results)
        results.append(result)
        say(f"{step.name}: {'ok' if result.holds else 'FAILED'} after {result.seconds:.0f} s")
        if not result.holds:
            break
    return results


def run(step: Step, place: Place, env: Mapping[str, str]) -> Result:
    """Run one step in the clone, and keep its files."""
    directory = place.work / step.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    commit, began, load, cpu = place.cloned, time.time(), os.getloadavg(), cpu_time()
    figures, trouble = {}, ""
    try:
        done = subprocess.run(
            step.command,
            cwd=place.clone,
            env={**env, **step.env, "RELEASE_DIR": str(directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        text, holds, trouble = "", False, str(error)
    else:
        text, holds = done.stdout, done.returncode == 0
        try:
            figures = step.read(Output(done.returncode, text, directory))
        except (ValueError, OSError, KeyError) as error:
            trouble = f"{text[-TAIL:]}\nits result cannot be read: {type(error).__name__}: {error}"
            holds = False
    if (place.cloned, place.changed) != (commit, ""):
        trouble, holds = f"the clone did not stay at {commit}:\n{place.cloned} {place.changed}", False
    (directory / "output.txt").write_text(text, encoding="utf-8")
    seconds = time.time() - began
    return Result(
        step.name,
        step.shows,
        commit,
        datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        round(seconds, 1),
        _public(" ".join(step.command), place),
        holds,
        figures,
        {
            "load average before": f"{load[0]:.1f}",
            "load average after": f"{os.getloadavg()[0]:.1f}",
            "cores": str(os.cpu_count()),
            "Python": platform.python_version(),
            "system": f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}",
            "servers": ", ".join(map(str, binaries())) or "none",
            "time that other machines took": "not known" if not cpu.total else f"{cpu_time().stolen_since(cpu):.1%}",
        },
        "" if holds else _public(trouble or text[-TAIL:], place),
        _keep(step, directory, place),
    )


def _public(text: str, place: Place) -> str:
    """Without the paths of this machine."""
    text = text.replace(sys.executable, "python")
    for path, name in ((place.clone, "CLONE"), (place.work, "WORK"), (place.root, "ROOT")):
        text = text.replace(str(path), name)
    return text


def _keep(step: Step, directory: Path, place: Place) -> tuple[str, ...]:
    """Copy the step's files to the evidence, texts as `_public`. Returns the names of those that are there."""
    names = []
    for name in step.keeps:
        if (directory / name).exists():
            place.kept.mkdir(parents=True, exist_ok=True)
            content = (directory / name).read_bytes()
            with contextlib.suppress(UnicodeDecodeError):  # a picture
                content = _public(content.decode(), place).encode()
            (place.kept / name).write_bytes(content)
            names.append(name)
    return tuple(names)
