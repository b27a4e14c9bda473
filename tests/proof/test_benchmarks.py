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


@pytest.mark.slow
def test_the_gate_measures_a_row() -> None:
    assert "expire" in benchmarks("gate", "expire", "--report", "--rounds", "1")
