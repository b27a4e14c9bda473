"""The steps that need a machine of their own: what they take from the documents, and how they are skipped."""

import json
import os
from pathlib import Path

import pytest
import yaml

from tools.release import image, newcomer


@pytest.mark.parametrize("step", [image, newcomer])
def test_a_step_that_cannot_be_run_here_says_why(step: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELEASE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert step.main() == 0  # type: ignore[attr-defined]
    (reason,) = json.loads((tmp_path / "figures.json").read_text()).values()
    assert reason == "not run: it needs root"


def test_the_newcomer_types_what_the_readme_says() -> None:
    demo, tests = newcomer.commands()
    assert demo.endswith("sweeperd demo")
    assert tests.endswith("-m pytest")
    line = newcomer.inside(Path("/root of it"), demo)
    assert line[-1] == demo, "word for word"
    assert "PYTHONUNBUFFERED" not in newcomer.ENVIRONMENT


def test_the_image_runs_as_the_deployment_says() -> None:
    spec = yaml.safe_load(image.DEPLOYMENT.read_text())["spec"]["template"]["spec"]
    (deployed,) = spec["containers"]
    assert [mount["name"] for mount in deployed["volumeMounts"]] == ["config", "secrets"]
    assert len(deployed["env"]) == 1
    assert deployed["securityContext"]["readOnlyRootFilesystem"] is True
    assert deployed["securityContext"]["capabilities"] == {"drop": ["ALL"]}
