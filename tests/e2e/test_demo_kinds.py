"""`sweeperd demo --kind`: each example live, also from an installed package."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from sweeperd.cli import main
from sweeperd.cli.app import demo
from sweeperd.demo.kind import EXAMPLES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "seat-hold")) for kind in EXAMPLES]
)
def test_it_ends_well(kind: str, bare_environment: None, log_restored: None) -> None:
    ran = CliRunner().invoke(main, ["demo", "--kind", kind])
    assert ran.exit_code == 0, ran.output
    assert f"event {kind}.expired" in ran.output
    assert "WRONG" not in ran.output


def test_every_example_can_be_asked_for() -> None:
    (option,) = (each for each in demo.params if each.name == "kind")
    assert list(getattr(option.type, "choices", ())) == list(EXAMPLES)
    kinds = {path.parent.name for path in (ROOT / "examples").glob("*/config.toml") if "[[kinds]]" in path.read_text()}
    assert {example.folder for example in EXAMPLES.values()} <= kinds


def test_the_files_come_with_the_package(tmp_path: Path) -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    # What a wheel holds, and nothing of the checkout.
    shutil.copytree(ROOT / "sweeperd", tmp_path / "sweeperd", ignore=shutil.ignore_patterns("__pycache__"))
    for source, target in wheel["force-include"].items():
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / target)
    code = """if True:
        from sweeperd.config.example import examples, shipped
        from sweeperd.demo.kind import EXAMPLES
        assert list(examples()) and shipped("docs/schemas/config.schema.json")
        print(EXAMPLES['seat-hold'].directory)"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(tmp_path / "sweeperd" / "examples" / "seat-holds")
