"""The unit files, checked by systemd itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICES = ["sweeperd.service", "sweeperd-once.service"]
#: The greatest exposure that is let through, in tenths.
EXPOSURE = 15

pytestmark = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with the command where it is on this machine: systemd checks that it can be run."""
    ours = str(Path(sys.executable).parent / "sweeperd")
    for unit in (path for path in UNITS.iterdir() if path.is_file()):
        text = unit.read_text()
        assert (unit.suffix == ".timer") == ("/opt/sweeperd/bin/sweeperd" not in text)
        (tmp_path / unit.name).write_text(text.replace("/opt/sweeperd/bin/sweeperd", ours))
    shutil.copy(tmp_path / "sweeperd.service", tmp_path / "sweeperd@.service")
    shutil.copytree(UNITS / "sweeperd@deliver.service.d", tmp_path / "sweeperd@deliver.service.d")
    return tmp_path


def analyze(units: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        env=os.environ | {"SYSTEMD_UNIT_PATH": f"{units}:", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""},
        cwd=units,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    "unit", [*SERVICES, "sweeperd-once.timer", "sweeperd@sweep.service", "sweeperd@deliver.service"]
)
def test_systemd_understands_every_line(unit: str, units: Path) -> None:
    done = analyze(units, "verify", "--man=no", unit)
    # Other units of the machine are loaded with it, and may have problems of their own.
    assert "sweeperd" not in done.stdout
    assert done.returncode == 0, done.stdout


def test_a_line_that_it_does_not_understand_is_noticed(units: Path) -> None:
    unit = units / "sweeperd.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSeconds="))
    assert "WatchdogSeconds" in analyze(units, "verify", "--man=no", unit.name).stdout


@pytest.mark.parametrize("unit", SERVICES)
def test_the_exposure_is_small(unit: str, units: Path) -> None:
    done = analyze(units, "security", "--offline=true", f"--threshold={EXPOSURE}", str(units / unit))
    assert "Overall exposure level" in done.stdout
    assert done.returncode == 0, done.stdout
