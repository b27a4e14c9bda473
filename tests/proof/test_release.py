"""The release command: it names its steps, and writes the page from kept results."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import ROOT

#: Runs steps in a repository of its own, and prints what became of them.
PROGRAM = """
import json, subprocess, sys
from pathlib import Path
from proof.release.__main__ import clone
from proof.release.page import render
from proof.release.runner import Place, run_all
from proof.release.step import Step, read

root, work = Path(sys.argv[1]), Path(sys.argv[2])
place = Place(root, work / "clone", work, root / "dist" / "evidence" / "0.1.0")
clone(place)
good = Step("good", "that it works", (sys.executable, "-c", "print('one')"), lambda output: {"said": output.text})
bad = Step("bad", "that it fails", (sys.executable, "-c", "raise SystemExit('so it is')"))
later = Step("later", "what comes after", (sys.executable, "-c", ""))
skipped = Step("skipped", "that it is left out", good.command, lambda _: {"all": "not run: there is no cluster"})
edits = Step("edits", "that it holds", (sys.executable, "-c", "open('.gitignore', 'w')"))
results = run_all([good, skipped, bad, later], place, {}, resume=False)
kept = [read(place.results, step.name) for step in (good, bad, later)]
page = render("0.1.0", [good, bad, later], kept)
judge = Step("judge", "what may change", good.command, judges_findings=True)
run_all([judge], place, {}, resume=False)
said = []
run_all([good, skipped, judge], place, {}, resume=True, say=said.append)
(edited,) = run_all([edits], place, {}, resume=False)
print(json.dumps([[(result.step, result.holds) for result in results], place.commit, page, said, edited.trouble]))
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_failing_step_stops_the_release_and_is_told(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / ".gitignore").write_text("dist/\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for line in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(root), *line], check=True)
    command = [sys.executable, "-c", PROGRAM, str(root), str(tmp_path / "work")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    results, commit, page, said, trouble = json.loads(done.stdout)
    assert results == [["good", True], ["skipped", True], ["bad", False]]
    assert f"`{commit[:12]}`" in page
    assert "said: one" in page
    assert "so it is" in page
    assert "| later | what comes after | not run |" in page
    assert said[0] == f"good: held on {commit[:12]}"
    assert said[1] == "skipped: that it is left out", "what was left out is tried again"
    assert "judge: what may change" in said, "what judges the findings judges them anew"
    assert ".gitignore" in trouble, "a step that changes the clone proves another product"


def called(module: str, call: str) -> Any:
    """What a function of the release returns."""
    program = f"import json\nfrom pathlib import Path\nfrom {module} import *\nprint(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_step_tries_what_is_installed() -> None:
    """A path of modules would come before the wheel."""
    outside = {"PATH": "/bin", "HOME": "/root", "PYTHONPATH": "/clone", "PYTEST_ADDOPTS": "-x", "SWEEPERD_SWEEP": "{}"}
    servers = {"SWEEPERD_TEST_SERVERS": "/redis-server", "SWEEPERD_RELEASE_IMAGE": "sweeperd:1"}
    inside = called("proof.release.runner", f"step_environment({outside | servers}, Path('/venv'))")
    assert inside == servers | {"PATH": "/venv:/bin", "HOME": "/root"}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
def test_a_wheel_of_another_commit_is_refused(tmp_path: Path) -> None:
    """Its version may be the same."""
    call = f"differing(Path({str(tmp_path)!r}))"
    assert "sweeperd/scripts/sweep/expire.lua" in called("proof.release.install", call)
    installed = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    shutil.copytree(ROOT / "sweeperd", installed / "sweeperd", ignore=shutil.ignore_patterns("__pycache__"))
    assert called("proof.release.install", call) == []
    (installed / "sweeperd" / "__main__.py").write_text("")
    assert called("proof.release.install", call) == ["sweeperd/__main__.py"]


def test_the_page_names_what_finds_a_planted_bug() -> None:
    rows = (
        "| no-grace | no grace | 7 | nothing expires early: r-1 |\n| lost | one is lost | - | not within 200 seeds |\n"
    )
    text = f"{rows}1 of 2 planted bugs found; missed: lost\n"
    figures = called("proof.release.readers", f"bugs(Output(1, {text!r}, Path()))")
    assert figures["by seed"] == "no-grace 7 (nothing expires early)"
    assert figures["missed"] == "lost"


@pytest.mark.parametrize("verdict", ["no baseline", "yes"])
def test_a_planted_slowdown_is_refused_by_its_ratio(verdict: str) -> None:
    """Without a baseline the exit code is the same."""
    table = f"| throughput limit | Redis 8.2 | 0.8 | 0.6 | 25% worse | 20% worse | {verdict} |\n"
    program = f"from pathlib import Path\nfrom proof.release.readers import *\nplanted(Output(1, {table!r}, Path()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "the gate has refused no ratio" in done.stderr
    assert called("proof.release.readers", f"planted(Output(1, {table.replace(verdict, 'no')!r}, Path()))")


def test_an_audit_names_the_packages_that_its_database_does_not_know() -> None:
    known = {"name": "redis", "vulns": [{"id": "PYSEC-1"}]}
    figures = called("proof.release.audit", f"read({json.dumps({'dependencies': [known, {'name': 'ours'}]})!r})")
    assert figures == {
        "packages checked": "1",
        "known vulnerabilities": "redis PYSEC-1",
        "packages that the database does not know": "ours",
    }


def test_an_audit_without_a_result_is_not_checked_and_its_log_says_why(tmp_path: Path) -> None:
    (tmp_path / "lib" / "python3" / "site-packages").mkdir(parents=True)
    (tmp_path / "pip_audit.py").write_text("raise SystemExit('the index refused')")
    environment = os.environ | {"RELEASE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "proof.release.audit", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "the index refused" in done.stderr
    assert json.loads((tmp_path / "figures.json").read_text()) == {
        "known vulnerabilities": "not checked: pip-audit gave no result, and its log says why"
    }


def test_another_version_cannot_be_proven() -> None:
    command = [sys.executable, "-m", "proof.release", "9.9.9"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "as sweeperd/__init__.py says" in done.stderr


def test_without_a_cluster_kubernetes_is_left_out(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proof.release.kubernetes"]
    environment = os.environ | {"RELEASE_DIR": str(tmp_path)}
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    assert json.loads((tmp_path / "figures.json").read_text())["kubernetes"].startswith("not run: ")
