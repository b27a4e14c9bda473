"""The steps that need a machine of their own: what they take from the documents, and how they are skipped."""

import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.docs.documents import blocks
from tools.release import image, kubernetes, newcomer


@pytest.mark.parametrize("step", [image, newcomer])
def test_a_step_that_cannot_be_run_here_says_why(step: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELEASE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert step.main() == 0  # type: ignore[attr-defined]
    (reason,) = json.loads((tmp_path / "figures.json").read_text()).values()
    assert reason == "not run: it needs root"


def test_without_a_cluster_the_step_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELEASE_DIR", str(tmp_path))
    assert CliRunner().invoke(kubernetes.main, []).exit_code == 0
    assert json.loads((tmp_path / "figures.json").read_text()) == {
        "kubernetes": "not run: no cluster is named by --kubeconfig"
    }


def test_the_step_for_kubernetes_types_what_the_document_says() -> None:
    first, second = blocks(kubernetes.DEPLOYING, "Kubernetes")[:2]
    assert first.splitlines()[0] == f"kubectl create namespace {kubernetes.OURS}"
    assert "apply -k deploy/k8s/example" in first
    for word in ("PASSWORD", "@redis:"):
        assert word in first
    for word in ("-h REDIS", "PASSWORD", "sweeperd acl"):
        assert word in second


def test_the_step_for_kubernetes_tries_every_workload_as_a_pod() -> None:
    workloads = [
        manifest
        for path in sorted(kubernetes.K8S.rglob("*.yaml"))
        for manifest in yaml.safe_load_all(path.read_text())
        if manifest["kind"] in ("Deployment", "CronJob")
    ]
    made = [pod for manifest in workloads for pod in kubernetes.of_template(manifest)]
    assert len(made) == len(workloads) == 2
    assert all(pod["spec"]["containers"] for pod in made)


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
