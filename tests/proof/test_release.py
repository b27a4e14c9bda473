"""The release command: it names its steps, and writes the page from kept results."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
results = run_all([good, bad, later], place, {}, resume=False)
kept = [read(place.results, step.name) for step in (good, bad, later)]
page = render("0.1.0", [good, bad, later], kept)
print(json.dumps([[(result.step, result.holds) for result in results], place.commit, page]))
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
    results, commit, page = json.loads(done.stdout)
    assert results == [["good", True], ["bad", False]]
    assert f"`{commit[:12]}`" in page
    assert "said: one" in page
    assert "so it is" in page
    assert "| later | what comes after | not run |" in page


def test_without_a_cluster_kubernetes_is_left_out(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proof.release.kubernetes"]
    environment = os.environ | {"RELEASE_DIR": str(tmp_path)}
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    assert json.loads((tmp_path / "figures.json").read_text())["kubernetes"].startswith("not run: ")
