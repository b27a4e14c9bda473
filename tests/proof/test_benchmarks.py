"""The benchmarks: the committed results make a table, and the gate measures a row."""

import subprocess
import sys

import pytest

from tests.support.documents import ROOT


def benchmarks(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_results_in_git_are_of_rows_that_exist() -> None:
    rows = {line.split()[0] for line in benchmarks("--list").splitlines()}
    measured = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert measured <= rows
    assert len(rows) == 23


def test_a_ratio_that_is_measured_no_more_does_not_hold() -> None:
    program = """
from types import SimpleNamespace
from benchmarks.gate import ROWS, judge, table

row = ROWS[0]
found = SimpleNamespace(server="Redis 8", samples=[SimpleNamespace(ratios={})])
judgements = judge([row], {row.name: [found]}, {"Redis 8": {row.name: dict.fromkeys(row.goals, 0.5)}})
print([one.holds for one in judgements], table(judgements).lines[0][-1])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[False] not measured\n"


@pytest.mark.slow
def test_the_gate_measures_a_row() -> None:
    assert "expire" in benchmarks("gate", "expire", "--report", "--rounds", "1")
