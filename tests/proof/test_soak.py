"""The soak and the chaos run for half a minute each; CONTRIBUTING.md has the long runs."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import binaries

#: Draws the faults. It is printed, and SWEEPERD_CHAOS_SEED gives it again.
SEED = os.environ.get("SWEEPERD_CHAOS_SEED", str(random.randrange(2**32)))

pytestmark = [
    pytest.mark.timeout(900),  # the load, and the limits of the waits after it
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the state of a process is read on Linux only"),
    pytest.mark.skipif(not binaries(), reason="there is no Redis server"),
]


def soak(directory: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "proof.soak", "--out", str(directory), "--beside-others", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.release
def test_half_a_minute_of_load_leaves_the_books_in_order(tmp_path: Path) -> None:
    soak(tmp_path, "--minutes", "0.5")
    assert (tmp_path / "soak.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed")
def test_half_a_minute_of_faults_loses_and_doubles_nothing(tmp_path: Path) -> None:
    print(f"SWEEPERD_CHAOS_SEED={SEED}")
    soak(tmp_path, "--chaos", "--minutes", "0.6", "--rate", "55", "--seed", SEED)
    assert (tmp_path / "chaos.json").exists()
