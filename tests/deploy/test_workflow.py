"""The workflows: they parse, a release proves before it publishes, a pull request runs .ci/run, and commands exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents import ROOT, blocks


def listed(*arguments: str) -> list[str]:
    """The names of the steps that the command of a release would run."""
    command = [sys.executable, "-m", "proof.release", *arguments, "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.split()[0] for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    parsed: dict[Any, Any] = yaml.safe_load(text)
    return parsed


def test_a_tag_starts_it(workflow: dict[Any, Any]) -> None:
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true


def test_it_proves_with_the_documented_command(workflow: dict[Any, Any], tmp_path: Path) -> None:
    cluster = tmp_path / "kubeconfig"
    cluster.touch()
    (line,) = [step["run"] for step in workflow["jobs"]["prove"]["steps"] if "-m proof.release" in step.get("run", "")]
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "proof.release"]
    assert "--kubeconfig" in words, "the step for Kubernetes has a cluster"
    words[words.index("--kubeconfig") + 1] = str(cluster)
    assert "build" in listed("0.1.0", *words[4:])
    assert "--only" not in words, "all steps are run"


def test_nothing_is_published_that_was_not_proven(workflow: dict[Any, Any]) -> None:
    """One after the other: after a failure, nothing more goes out."""
    needs = {name: job.get("needs") for name, job in workflow["jobs"].items()}
    proving = ["prove", "machines"]
    assert needs == {"prove": None, "machines": None, "image": proving, "publish": ["image"], "site": ["publish"]}


def test_the_machines_run_scripts_that_exist(workflow: dict[Any, Any]) -> None:
    steps = [step for job in ("prove", "machines") for step in workflow["jobs"][job]["steps"]]
    scripts = re.findall(r"proof/release/\w+\.sh", "\n".join(step.get("run", "") for step in steps))
    assert sorted(set(scripts)) == [f"proof/release/{name}.sh" for name in ("chart", "cron", "image", "systemd")]
    for script in scripts:
        subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)


def test_the_machines_run_blocks_that_exist() -> None:
    wanted = [
        line.split("block ", 1)[1]
        for name in ("cron", "systemd")
        for line in (ROOT / "proof" / "release" / f"{name}.sh").read_text("utf-8").splitlines()
        if line.lstrip().startswith("block docs/")
    ]
    assert len(wanted) == 6
    for line in wanted:
        document, heading, number, *_ = shlex.split(line)
        assert blocks(ROOT / document, heading)[int(number)]
    assert len(re.findall(r"^python3 -m venv ", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)) == 2


def test_the_image_is_run_as_the_manifests_do() -> None:
    text = (ROOT / "proof" / "release" / "image.sh").read_text(encoding="utf-8")
    spec = yaml.safe_load((ROOT / "deploy/k8s/parts/deployment/deployment.yaml").read_text("utf-8"))["spec"]["template"]
    user, (deployed,) = spec["spec"]["securityContext"], spec["spec"]["containers"]
    (variable,) = deployed["env"]
    assert f"--user {user['runAsUser']}:{user['runAsGroup']} " in text
    assert f"--memory {deployed['resources']['limits']['memory'].removesuffix('i').lower()} " in text
    assert f"--env {variable['name']}={variable['value']} " in text
    assert all(f":{mount['mountPath']}:ro" in text for mount in deployed["volumeMounts"])
    assert f'"$1" {" ".join(deployed["args"])} ' in text


def test_publishing_is_trusted_and_needs_no_token(workflow: dict[Any, Any]) -> None:
    job = workflow["jobs"]["publish"]
    assert job["permissions"] == {"id-token": "write"}
    assert any(step["uses"].startswith("pypa/gh-action-pypi-publish@") for step in job["steps"])
    assert "secrets" not in str(job)


def test_the_image_has_its_provenance_and_its_file(workflow: dict[Any, Any]) -> None:
    uses = {step.get("uses", "").partition("@")[0]: step for step in workflow["jobs"]["image"]["steps"]}
    built = uses["docker/build-push-action"]["with"]  # the last one
    assert built["push"] is True
    assert built["provenance"] == "mode=max"
    assert built["sbom"] is True
    assert (ROOT / built["file"]).exists()
    assert "actions/attest-build-provenance" in uses


def test_the_image_is_started_before_it_is_pushed_and_its_base_is_pinned(workflow: dict[Any, Any]) -> None:
    steps = workflow["jobs"]["image"]["steps"]
    names = [step.get("id", step.get("name", "")) for step in steps]
    order = ["base", "Build the image for this machine", "Start the image before it is pushed", "push"]
    assert [name for name in names if name in order] == order
    built = [step["with"] for step in steps if "build-push-action" in step.get("uses", "")]
    assert all("BASE=${{ steps.base.outputs.name }}" in each["build-args"] for each in built)
    assert [each.get("push", False) for each in built] == [False, True]


def test_what_is_published_is_what_was_built(workflow: dict[Any, Any]) -> None:
    (kept,) = [step for step in workflow["jobs"]["prove"]["steps"] if step.get("with", {}).get("name") == "dist"]
    lines = kept["with"]["path"].splitlines()
    assert lines == [f"${{{{ runner.temp }}}}/release/build/*.{suffix}" for suffix in ("whl", "tar.gz")]
    assert "build" in listed("0.1.0")


def test_a_pull_request_runs_what_a_developer_runs() -> None:
    parsed = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert "pull_request" in parsed[True]
    assert "bash .ci/run" in [step.get("run") for job in parsed["jobs"].values() for step in job["steps"]]
    assert (ROOT / ".ci" / "run").is_file()
