"""The mutants: a planted fault is caught, the product is not, and the kept verdicts fit their explanations."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT

TRIAL = """
import sys
from pathlib import Path
from proof.mutants.choice import PACKAGE
from proof.mutants.mutant import Mutant
from proof.mutants.trial import Plan, Trials

file, old, new, test, folder = sys.argv[1:]
text = (PACKAGE / file).read_text(encoding="utf-8")
assert old in text
trials = Trials(Path(folder), jobs=2)
for mutant in (Mutant(file, 1, "planted", "", "", text.replace(old, new)), None):
    trials.start(mutant, Plan([test], servers="newest"))
for trial in sorted((trials.wait(), trials.wait()), key=lambda trial: trial.mutant.file):
    print(trial.mutant.file or "nothing", trial.verdict)
"""
KEPT = """
from proof.mutants import choice, report

survivors = {name for language in ("lua", "python") for name in report.survivors(language)}
assert set(report.explanations()) <= survivors, set(report.explanations()) - survivors
for path in choice.script_files():
    assert [test for test in choice.tests_of(path) if not (choice.ROOT / test).exists()] == [], path
"""
SUMS = """
from proof.mutants import lua

for mutant in lua.mutants("some.lua", "local sum = text + 0\\nlocal rest = 1 - 0\\nreturn sum + 0.5 + 01\\n"):
    print(mutant.after)
"""


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_each_explained_mutant_is_kept_as_a_survivor_and_each_script_has_tests() -> None:
    run(KEPT)


def test_a_sum_with_0_makes_no_mutant() -> None:
    assert run(SUMS).splitlines() == ["return sum - 0.5 + 01", "return sum + 0.5 - 01"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "test"),
    [
        ("delivery/webhook.py", "sha256=", "sha512=", "tests/unit/delivery/test_signing.py"),
        (
            "scripts/include/deadline.lua",
            "at <= expires_at then",
            "at < expires_at then",
            "tests/lua/test_expire_clock.py",
        ),
    ],
)
def test_a_trial_tells_a_mutant_from_the_product(file: str, old: str, new: str, test: str, tmp_path: Path) -> None:
    assert run(TRIAL, file, old, new, test, str(tmp_path)).splitlines() == ["nothing survived", f"{file} caught"]
