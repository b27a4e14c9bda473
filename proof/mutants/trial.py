"""
Tries a mutant: the tests run in their own process, in which the product's file reads as the mutant does. No file
changes, so several trials can run at once.
"""

import contextlib
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from proof.mutants.mutant import Mutant
from proof.mutants.servers import Servers, on_servers

#: How long the tests of one mutant may take. A mutant that makes them hang is noticed by that.
LIMIT_SECONDS = 400
#: How long a single test may take, if the plan does not say.
TEST_SECONDS = 60


class Verdict(StrEnum):
    """What the tests said of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "survived"


@dataclass(frozen=True)
class Plan:
    """
    What a mutant is tried with: the tests below `paths` on `servers`, or only the ones that `limits` names, in its
    order: test -> how long it may take, in seconds. Without paths there is nothing to try: the mutant survives.
    """

    paths: Sequence[str]
    limits: Mapping[str, float] = field(default_factory=dict)
    servers: Servers = "newest"


@dataclass(frozen=True)
class Trial:
    """
    A mutant's verdict, the test that caught it (empty if the tests ran out of time or none failed), and the seconds.
    `timed_out`: a limit of time caught it, which a busy machine may have passed without a mutant as well.
    """

    mutant: Mutant
    verdict: Verdict
    caught_by: str
    seconds: float
    timed_out: bool = False


@dataclass(frozen=True)
class _Running:
    mutant: Mutant
    output: Path
    started: float


class Trials:
    """Up to `jobs` trials at once, each a child process with a session of its own: its servers end with it."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder = folder
        self.jobs = jobs
        self._running: dict[int, _Running] = {}
        self._count = 0

    def start(self, mutant: Mutant | None, plan: Plan) -> None:
        """Begin one trial; of the product as it is if there is no mutant. There must be room."""
        self._count += 1
        output = self.folder / f"{self._count}.txt"
        sys.stdout.flush()
        child = os.fork()
        if not child:
            code = 1
            try:
                code = _run(mutant, plan, output)
            finally:  # whatever the mutant raises: the rest of this program is the parent's
                os._exit(code)
        self._running[child] = _Running(mutant or _AS_IT_IS, output, time.monotonic())

    @property
    def full(self) -> bool:
        return len(self._running) >= self.jobs

    @property
    def idle(self) -> bool:
        return not self._running

    def wait(self) -> Trial:
        """The next trial that ends, or runs out of time."""
        while True:
            for child, trial in self._running.items():
                ended, status = os.waitpid(child, os.WNOHANG)
                late = time.monotonic() - trial.started > LIMIT_SECONDS
                if ended or late:
                    return self._finished(child, trial, survived=bool(ended) and status == 0, reap=not ended)
            time.sleep(0.02)

    def _finished(self, child: int, trial: _Running, *, survived: bool, reap: bool) -> Trial:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if reap:
            os.waitpid(child, 0)
        del self._running[child]
        verdict = Verdict.SURVIVED if survived else Verdict.CAUGHT
        text = trial.output.read_text(encoding="utf-8", errors="replace")
        timed_out = not survived and (reap or any(words in text for words in _TIME_LIMITS))
        return Trial(trial.mutant, verdict, _failed_test(text), time.monotonic() - trial.started, timed_out)


_AS_IT_IS = Mutant("", 0, "", "", "", "")


#: What a test prints that has waited for too long: for anything, for a condition, for requests.
_TIME_LIMITS = ("Failed: Timeout", "AssertionError: not so within", "AssertionError: after ")


def _failed_test(output: str) -> str:
    """The first test that the run names as failed."""
    for line in output.splitlines():
        if line.startswith(("FAILED tests/", "ERROR tests/")):
            return line.split(" ")[1]
    return ""


def _run(mutant: Mutant | None, plan: Plan, output: Path) -> int:
    """In the child: all tests, up to the first that fails. Returns 0 if none does."""
    os.setsid()
    if not plan.paths:
        output.touch()
        return 0
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if mutant is not None and mutant.file.endswith(".py"):
        sys.meta_path.insert(0, _Finder(mutant))
    elif mutant is not None:
        _read_instead(mutant)
    if plan.servers == "older":
        os.environ["SWEEPERD_TEST_ALL_SERVERS"] = "1"
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--timeout", str(TEST_SECONDS), "--hypothesis-seed=1"]
    code = int(pytest.main([*options, *plan.paths], plugins=[_Chooser(plan)]))
    # The child ends without Python's own end, which would write these buffers again.
    sys.stdout.flush()
    sys.stderr.flush()
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


class _Chooser:
    """Leaves of the tests that were found those of the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @pytest.hookimpl(trylast=True)  # after what puts tests on a time limit or leaves some out
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        limits = self._plan.limits
        if not limits:
            items[:] = on_servers(self._plan.servers, items)
            return
        order = {test: place for place, test in enumerate(limits)}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
        for item in items:
            item.add_marker(pytest.mark.timeout(limits[item.nodeid]), append=False)


def _read_instead(mutant: Mutant) -> None:
    """From now on, a script of this name is the mutant."""
    from sweeperd.store import scripts  # noqa: PLC0415  the parent must not import it: it may be a mutant itself

    name, ordinary = mutant.file.removeprefix("scripts/").removesuffix(".lua"), scripts.own_text
    scripts.own_text = lambda other: mutant.text if other == name else ordinary(other)  # type: ignore[assignment]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the mutant instead of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.module = "sweeperd." + mutant.file.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(self.mutant, spec.loader)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads the mutant's text under the path of its module."""

    def __init__(self, mutant: Mutant, ordinary: importlib.machinery.SourceFileLoader) -> None:
        super().__init__(ordinary.name, ordinary.path)
        self.mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.mutant.text, self.get_filename(fullname), "exec")
