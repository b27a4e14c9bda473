"""
Which tests run which line of the modules that are mutated, and how long each takes: a mutant of a line is tried with
these tests alone, the quick ones first.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from coverage import CoverageData

from proof.mutants import choice
from proof.mutants.choice import PACKAGE, ROOT
from proof.mutants.mutant import Mutant
from proof.mutants.recording import FILE
from proof.mutants.trial import Plan

#: The tests that run the product in their own process. What a child process runs cannot be broken without a file.
FOLDERS = ("tests/unit", "tests/integration", "tests/lua", "tests/property")

#: Stands for a test where a line runs while its module is imported.
IMPORT = ""

#: Of coverage. File names are relative to the clone, so that another clone can use them too.
_SETTINGS = """\
[run]
source =
    {sources}
relative_files = true
data_file = {data}
"""


@dataclass(frozen=True)
class Reach:
    """
    `lines`: file, as a mutant names it -> number of a line -> the tests that run it. `seconds`: test -> how long it
    took while nothing was broken. `older`: the tests that ran on another than the newest Redis.
    """

    lines: Mapping[str, Mapping[int, frozenset[str]]]
    seconds: Mapping[str, float]
    older: frozenset[str] = frozenset()

    def plan(self, budget: float, mutant: Mutant) -> Plan:
        """
        The tests of a mutant, on older servers only where none runs its line on the newest. Empty where no test does.
        `budget`: how long they may take in all, by what they took while nothing was broken; seconds.
        """
        reached = self.lines.get(mutant.file, {})
        text = (PACKAGE / mutant.file).read_text(encoding="utf-8")
        tests = set[str]().union(*(reached.get(line, ()) for line in _statement(text, mutant.line)))
        own = f"test_{Path(mutant.file).stem}"
        if IMPORT in tests:
            tests = set[str]().union(*reached.values()) - {IMPORT} | {test for test in self.seconds if own in test}
        tests = tests - self.older or tests
        chosen: dict[str, float] = {}
        for test in sorted(tests, key=lambda test: (self.seconds[test], test)):
            budget -= self.seconds[test]
            if budget < 0 and chosen:
                break
            # A machine that is busy may need a few times as long as it did.
            chosen[test] = 10 + 5 * self.seconds[test]
        return Plan(tuple(dict.fromkeys(test.partition("::")[0] for test in chosen)), chosen)


def reached(folder: Path, jobs: int) -> Reach:
    """
    What `folder` says of it. Where it says nothing yet, all tests run once in `jobs` processes, with nothing broken.
    Raises click.ClickException where one fails: a verdict would mean nothing then.
    """
    data, record, new = folder / "coverage", folder / "record.json", folder / "record.new"
    if not record.exists():
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / "coveragerc"
        sources = "\n    ".join(f"sweeperd/{name}" for name in choice.FOLDERS)
        settings.write_text(_SETTINGS.format(sources=sources, data=data), encoding="utf-8")
        options = ["-q", f"-n{jobs}", "--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
        command = [sys.executable, "-m", "pytest", "-p", "proof.mutants.recording", *options, *FOLDERS]
        env = {**os.environ, FILE: str(new)}
        if subprocess.run(command, cwd=ROOT, env=env, stdout=sys.stderr, check=False).returncode:
            raise click.ClickException("a test fails without any mutant")
        new.replace(record)
    return _read(data, json.loads(record.read_text(encoding="utf-8")))


def _read(data: Path, record: Mapping[str, Any]) -> Reach:
    """
    What coverage and the plugin have recorded, of the tests whose file is still there: pytest fails where it is not,
    which would look like a mutant that was caught. Coverage calls a test `<its name>|<phase>`.
    """
    recorded = CoverageData(str(data))
    recorded.read()
    seconds = {test: took for test, took in record["seconds"].items() if (ROOT / test.partition("::")[0]).exists()}
    lines = {
        Path(file).relative_to(PACKAGE.name).as_posix(): {
            line: frozenset({context.rpartition("|")[0] for context in contexts} & {IMPORT, *seconds})
            for line, contexts in recorded.contexts_by_lineno(file).items()
        }
        for file in recorded.measured_files()
    }
    return Reach(lines, seconds, frozenset(record["older"]))


def _statement(text: str, line: int) -> range:
    """The lines of the statement that this line belongs to; of one with a body, those before the body."""
    spans = [_span(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    return min((span for span in spans if line in span), key=len, default=range(line, line + 1))


def _span(node: ast.stmt) -> range:
    body = getattr(node, "body", None)
    end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
    return range(node.lineno, max(end, node.lineno + 1))
