"""The manifests: schemas of three Kubernetes releases, the restricted pod security profile, kustomize, the settings."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from kubernetes_validate.utils import all_versions, major_minor

from sweeperd import __version__
from sweeperd.cli import main
from sweeperd.config import load
from tests.support import prometheusrule
from tests.support.eyes.deployed import RULES

K8S = Path(__file__).parents[2] / "deploy" / "k8s"
KUSTOMIZATIONS = sorted(K8S.glob("**/kustomization.yaml"))
MANIFESTS = sorted(set(K8S.glob("**/*.yaml")) - set(KUSTOMIZATIONS))
#: The newest three that there are schemas of.
RELEASES = sorted({major_minor(version) for version in all_versions()}, key=lambda v: int(v.split(".")[1]))[-3:]
#: The volumes that the restricted profile lets a pod have.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
#: What has a schema of its own elsewhere.
CUSTOM = {"PodMonitor", "PrometheusRule", "ScaledObject"}

#: The kinds of every overlay that runs the daemons.
DAEMONS = ["ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"]

Manifest = dict[str, Any]


def read(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text()))


def written() -> list[Manifest]:
    return [manifest for path in MANIFESTS for manifest in read(path)]


def of_kind(kind: str) -> Manifest:
    (found,) = (manifest for manifest in written() if manifest["kind"] == kind)
    return found


def pod_specs(manifests: list[Manifest]) -> Iterator[Manifest]:
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            yield manifest["spec"]["template"]["spec"]
        elif manifest["kind"] == "CronJob":
            yield manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def breaches(pod: Manifest) -> list[str]:
    """Where a pod's spec goes against the restricted pod security profile, and its other rules that it keeps."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    of_pod = pod.get("securityContext", {})
    found += [f"volume {key}" for volume in pod.get("volumes", []) for key in set(volume) - {"name"} - VOLUMES]
    if of_pod.get("sysctls"):
        found.append("sysctls")
    for container in [*pod.get("containers", []), *pod.get("initContainers", []), *pod.get("ephemeralContainers", [])]:
        own = container.get("securityContext", {})
        both = of_pod | own
        capabilities = own.get("capabilities", {})
        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": both.get("runAsNonRoot") is True,
            "runAsUser": both.get("runAsUser", 1) != 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "drop": "ALL" in capabilities.get("drop", []),
            "add": set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
            "procMount": own.get("procMount", "Default") == "Default",
            "hostPort": not any(port.get("hostPort") for port in container.get("ports", [])),
            "seLinuxOptions": not both.get("seLinuxOptions"),
            # Beyond the profile.
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        }
        found += [name for name, kept in checks.items() if not kept]
    return found


def kubectl(*arguments: str) -> str:
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("release", RELEASES)
def test_the_schemas_take_every_manifest(release: str) -> None:
    assert len(RELEASES) == 3
    for manifest in written():
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, release, strict=True)


def test_the_schemas_notice_a_key_that_does_not_exist() -> None:
    manifest = of_kind("PodDisruptionBudget")
    manifest["spec"]["minimumAvailable"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, RELEASES[-1], strict=True)


def test_every_pod_keeps_to_the_restricted_profile() -> None:
    pods = list(pod_specs(written()))
    assert [breaches(pod) for pod in pods] == [[], []]


def test_a_breach_of_the_profile_is_noticed() -> None:
    pod = {"hostPID": True, "volumes": [{"name": "a", "hostPath": {}}], "containers": [{"name": "a"}]}
    assert breaches(pod) == [
        "hostPID",
        "volume hostPath",
        "allowPrivilegeEscalation",
        "runAsNonRoot",
        "seccompProfile",
        "drop",
        "readOnlyRootFilesystem",
    ]


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_kustomizations_name_what_there_is(path: Path) -> None:
    (content,) = read(path)
    files = [file for generator in content.get("configMapGenerator", []) for file in generator["files"]]
    named = [*content.get("resources", []), *content.get("components", []), *files]
    for name in named:
        place = path.parent / name
        assert (place / "kustomization.yaml").exists() if place.is_dir() else place.is_file(), name
    siblings = {entry.name for entry in path.parent.iterdir()} - {"kustomization.yaml"}
    assert siblings == {name for name in named if "/" not in name}, "no file is forgotten"
    assert [image["newTag"] for image in content.get("images", [])] in ([], [__version__])


@pytest.mark.parametrize(
    ("directory", "further"),
    [
        ("overlays/daemon", []),
        ("overlays/podmonitor", ["PodMonitor"]),
        ("overlays/prometheusrule", ["PrometheusRule"]),
        ("overlays/dashboard", ["ConfigMap"]),
        ("overlays/keda", ["ScaledObject"]),
    ],
)
def test_kustomize_builds_an_overlay_of_the_daemons(directory: str, further: list[str], tmp_path: Path) -> None:
    built = built_by(directory)
    assert sorted(manifest["kind"] for manifest in built) == sorted([*DAEMONS, *further])
    check_built(built, tmp_path)


def test_kustomize_builds_the_cron_job(tmp_path: Path) -> None:
    built = built_by("overlays/cronjob")
    assert sorted(manifest["kind"] for manifest in built) == ["ConfigMap", "CronJob", "NetworkPolicy", "ServiceAccount"]
    check_built(built, tmp_path)


def test_kustomize_builds_sweep_and_delivery_apart(tmp_path: Path) -> None:
    built = built_by("overlays/roles")
    assert sorted(manifest["kind"] for manifest in built) == sorted([*DAEMONS, *DAEMONS, "HorizontalPodAutoscaler"])
    for role in ("sweep", "deliver"):
        half = [manifest for manifest in built if manifest["metadata"]["labels"]["app.kubernetes.io/component"] == role]
        check_built(half, tmp_path)
        (pod,) = pod_specs(half)
        assert {"name": "SWEEPERD_ROLE", "value": role} in pod["containers"][0]["env"]
        (service,) = (manifest for manifest in half if manifest["kind"] == "Service")
        assert service["spec"]["selector"]["app.kubernetes.io/component"] == role
    (autoscaler,) = (manifest for manifest in built if manifest["kind"] == "HorizontalPodAutoscaler")
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "sweeperd-deliver"


def built_by(directory: str) -> list[Manifest]:
    return list(yaml.safe_load_all(kubectl("kustomize", str(K8S / directory))))


def check_built(built: list[Manifest], tmp_path: Path) -> None:
    (pod,) = pod_specs(built)
    assert breaches(pod) == []
    assert pod["containers"][0]["image"] == f"sweeperd:{__version__}"
    (settings,) = (manifest for manifest in built if "config.toml" in manifest.get("data", {}))
    assert [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume] == [
        settings["metadata"]["name"]
    ]
    assert settings["metadata"]["name"] != "sweeperd", "its name ends in a hash, so that a change is rolled out"
    (tmp_path / "config.toml").write_text(settings["data"]["config.toml"])
    load(tmp_path / "config.toml", {})
    for manifest in built:
        for release in RELEASES:
            if manifest["kind"] not in CUSTOM:
                kubernetes_validate.validate(manifest, release, strict=True)


def test_the_dashboard_is_labelled_for_the_sidecar() -> None:
    (dashboard,) = (m for m in built_by("overlays/dashboard") if m["metadata"]["name"] == "sweeperd-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["data"]["sweeperd.json"] == (K8S.parent / "grafana" / "sweeperd.json").read_text()


def test_the_prometheus_rule_holds_the_alert_rules() -> None:
    assert prometheusrule.MANIFEST.read_text() == prometheusrule.manifest(), "python -m tests.support.prometheusrule"
    (rule,) = read(prometheusrule.MANIFEST)
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


def test_keda_scales_the_deployment_and_decides_its_replicas_alone() -> None:
    (scaled,) = read(K8S / "overlays" / "keda" / "scaledobject.yaml")
    assert scaled["spec"]["scaleTargetRef"]["name"] == of_kind("Deployment")["metadata"]["name"]
    assert "sweeperd_webhook_pending_events" in scaled["spec"]["triggers"][0]["metadata"]["query"]
    (deployment,) = (manifest for manifest in built_by("overlays/keda") if manifest["kind"] == "Deployment")
    assert "replicas" not in deployment["spec"]


def test_the_settings_are_accepted_and_fit_the_pods() -> None:
    settings = load(K8S / "settings" / "config.toml", {})
    assert settings.http.listen == ":9464"
    for pod in pod_specs(written()):
        assert pod["terminationGracePeriodSeconds"] > settings.shutdown_grace.total_seconds()
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] == of_kind("ServiceAccount")["metadata"]["name"]
        (container,) = pod["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {"/etc/sweeperd": "config", "/run/secrets/sweeperd": "secrets"}
        (variable,) = container["env"]
        assert variable == {"name": "SWEEPERD_REDIS__URL", "value": "file:/run/secrets/sweeperd/redis-url"}
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert of_kind("ServiceAccount")["automountServiceAccountToken"] is False


def test_the_settings_with_the_endpoint_turned_on_are_accepted_too(tmp_path: Path) -> None:
    text = (K8S / "settings" / "config.toml").read_text()
    (tmp_path / "billing").write_text("secret")
    text = "\n".join(
        line.removeprefix("#") if line.startswith("#[[") or "= " in line else line for line in text.splitlines()
    )
    text = text.replace("/run/secrets/sweeperd", str(tmp_path))
    (tmp_path / "config.toml").write_text(text)
    assert [endpoint.name for endpoint in load(tmp_path / "config.toml", {}).webhooks.endpoints] == ["billing"]


def test_names_and_labels_fit_together() -> None:
    deployment = of_kind("Deployment")["spec"]
    labels = {"app.kubernetes.io/name": "sweeperd"}
    assert deployment["template"]["metadata"]["labels"] == labels
    assert deployment["selector"]["matchLabels"] == labels
    for kind, path in (
        ("PodDisruptionBudget", "selector"),
        ("NetworkPolicy", "podSelector"),
        ("PodMonitor", "selector"),
    ):
        assert of_kind(kind)["spec"][path]["matchLabels"] == labels
    for spread in deployment["template"]["spec"]["topologySpreadConstraints"]:
        assert spread["labelSelector"]["matchLabels"] == labels
    (container,) = deployment["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 9464}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    (metrics,) = of_kind("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert (metrics["port"], metrics["path"]) == ("http", "/metrics")
    (ingress,) = of_kind("NetworkPolicy")["spec"]["ingress"]
    assert ingress["ports"] == [{"protocol": "TCP", "port": "http"}]


def test_a_roll_out_leaves_no_gap_and_cron_runs_one_at_a_time() -> None:
    deployment = of_kind("Deployment")["spec"]
    assert deployment["replicas"] == 3
    assert deployment["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }
    cron = of_kind("CronJob")["spec"]
    assert cron["concurrencyPolicy"] == "Forbid"
    job = cron["jobTemplate"]["spec"]
    assert job["activeDeadlineSeconds"] > 0
    arguments = job["template"]["spec"]["containers"][0]["args"]
    assert {"--once", "--exit-zero-on-pending", "--delivery-limit=5m"} <= set(arguments)
    assert job["activeDeadlineSeconds"] > 2 * 300
    assert CliRunner().invoke(main, [*arguments, "--version"]).exit_code == 0


def test_the_image_sets_no_setting() -> None:
    """A variable would silently beat the configuration file."""
    assert "SWEEPERD_" not in (K8S.parent / "container" / "Containerfile").read_text()
