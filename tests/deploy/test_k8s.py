"""The manifests: schemas of three Kubernetes releases, the restricted pod security profile, kustomize, the settings."""

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
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

EXAMPLE = K8S / "example"
#: What the example takes from the release of this version.
REMOTE = re.compile(rf"https://github\.com/sweeperd/sweeperd//deploy/k8s/([\w/-]+)\?ref=v{re.escape(__version__)}")
#: Base -> the kinds that it has, beside the ConfigMap of the settings.
_ONCE, _EACH = ["NetworkPolicy", "ServiceAccount"], ["Deployment", "PodDisruptionBudget", "Service"]
BASES = {
    "daemon": [*_ONCE, *_EACH],
    "roles": [*_ONCE, *_EACH, *_EACH, "HorizontalPodAutoscaler"],
    "cronjob": [*_ONCE, "CronJob"],
}
#: Component -> the kind that it adds.
COMPONENTS = {
    "podmonitor": "PodMonitor",
    "prometheusrule": "PrometheusRule",
    "dashboard": "ConfigMap",
    "keda": "ScaledObject",
    "network-redis": "NetworkPolicy",
    "network-telemetry": "NetworkPolicy",
    "network-receivers": "NetworkPolicy",
}

Manifest = dict[str, Any]
#: In C, if PyYAML was built with it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parsed(text: str) -> list[Manifest]:
    return list(yaml.load_all(text, LOADER))


def read(path: Path) -> list[Manifest]:
    return parsed(path.read_text())


def written() -> list[Manifest]:
    return [manifest for path in MANIFESTS for manifest in read(path)]


def of_kind(kind: str, name: str = "sweeperd") -> Manifest:
    (found,) = (each for each in written() if each["kind"] == kind and each["metadata"]["name"] == name)
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
    named = [*content.get("resources", []), *(content.get("components") or []), *files]
    named = [REMOTE.sub(r"../\1", name) for name in named]
    assert len(set(named)) == len(named)
    for name in named:
        place = path.parent / name
        assert (place / "kustomization.yaml").exists() if place.is_dir() else place.is_file(), name
    siblings = {entry.name for entry in path.parent.iterdir()} - {"kustomization.yaml"}
    assert siblings == {name for name in named if "/" not in name}, "no file is forgotten"
    assert [image["newTag"] for image in content.get("images", [])] in ([], [__version__])


def test_a_test_knows_every_base_and_component() -> None:
    assert {path.name for path in (K8S / "bases").iterdir()} == set(BASES)
    assert {path.name for path in (K8S / "components").iterdir()} == set(COMPONENTS)
    text = (EXAMPLE / "kustomization.yaml").read_text()
    places = [f"bases/{each}" for each in ["daemon"]] + [f"components/{each}" for each in COMPONENTS]
    assert sorted(REMOTE.findall(text)) == sorted(places), "the example names each, at this version"


@functools.cache
def built(base: str, *components: str) -> list[Manifest]:
    """What kustomize makes of the example with this base and these components."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(os.path.realpath(name))
        shutil.copy(EXAMPLE / "config.toml", directory)
        (content,) = read(EXAMPLE / "kustomization.yaml")
        places = {
            "resources": [os.path.relpath(K8S / "bases" / base, directory)],
            "components": [os.path.relpath(K8S / "components" / each, directory) for each in components],
        }
        (directory / "kustomization.yaml").write_text(yaml.safe_dump(content | places))
        return parsed(kubectl("kustomize", str(directory)))


def role_of(manifest: Manifest) -> str:
    role: str = manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component", "")
    return role


def test_kustomize_builds_the_example_as_it_stands(tmp_path: Path) -> None:
    manifests = built("daemon")
    assert sorted(each["kind"] for each in manifests) == sorted(["ConfigMap", *BASES["daemon"]])
    assert {each["metadata"]["namespace"] for each in manifests} == {"sweeperd"}
    check_built(manifests, tmp_path)


#: Each component alone, and all of them over each base.
SETS = [
    *(("daemon", (each,)) for each in COMPONENTS),
    ("roles", ("keda",)),
    *((base, tuple(COMPONENTS)) for base in BASES),
]


@pytest.mark.parametrize(("base", "components"), SETS, ids=[f"{base}-{'-and-'.join(more)}" for base, more in SETS])
def test_any_set_of_components_builds_over_any_base(base: str, components: tuple[str, ...], tmp_path: Path) -> None:
    if base == "cronjob":  # there is no Deployment to scale, and another test has it refused
        components = tuple(each for each in components if each != "keda")
    manifests = built(base, *components)
    expected = ["ConfigMap", *BASES[base], *(COMPONENTS[each] for each in components)]
    if "keda" in components and base == "roles":
        expected.remove("HorizontalPodAutoscaler")  # two would fight
    assert sorted(each["kind"] for each in manifests) == sorted(expected)
    assert len([each for each in manifests if each["kind"] == "Deployment"]) == {"daemon": 1, "roles": 2}.get(base, 0)
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(set(names)) == len(names)
    check_built(manifests, tmp_path)


def test_keda_is_refused_where_there_is_nothing_to_scale() -> None:
    with pytest.raises(AssertionError, match="delivered-by"):
        built("cronjob", "keda")


def test_sweep_and_delivery_apart() -> None:
    manifests = built("roles")
    for role in ("sweep", "deliver"):
        half = [manifest for manifest in manifests if role_of(manifest) == role]
        (pod,) = pod_specs(half)
        assert {"name": "SWEEPERD_ROLE", "value": role} in pod["containers"][0]["env"]
        for kind in ("Service", "PodDisruptionBudget", "Deployment"):
            (each,) = (manifest for manifest in half if manifest["kind"] == kind)
            assert each["metadata"]["name"] == f"sweeperd-{role}"
            selector = each["spec"]["selector"]
            assert selector.get("matchLabels", selector)["app.kubernetes.io/component"] == role
    (autoscaler,) = (manifest for manifest in manifests if manifest["kind"] == "HorizontalPodAutoscaler")
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "sweeperd-deliver"
    (metric,) = autoscaler["spec"]["metrics"]
    assert metric["resource"]["target"]["type"] == "AverageValue", (
        "a share of the request would be a few events a second"
    )


@pytest.mark.parametrize("base", ["daemon", "roles"])
def test_the_page_is_reached_by_each_service_while_redis_is_away(base: str) -> None:
    hosts = load(EXAMPLE / "config.toml", {}).http.hosts
    services = [manifest for manifest in built(base) if manifest["kind"] == "Service"]
    assert services
    for service in services:
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert service["metadata"]["name"] in hosts


def check_built(built: list[Manifest], tmp_path: Path) -> None:
    pods = list(pod_specs(built))
    assert pods
    (settings,) = (manifest for manifest in built if "config.toml" in manifest.get("data", {}))
    for pod in pods:
        assert breaches(pod) == []
        assert pod["containers"][0]["image"] == f"ghcr.io/sweeperd/sweeperd:{__version__}"
        mounted = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
        assert mounted == [settings["metadata"]["name"]]
    assert settings["metadata"]["name"] != "sweeperd", "its name ends in a hash, so that a change is rolled out"
    (tmp_path / "config.toml").write_text(settings["data"]["config.toml"])
    load(tmp_path / "config.toml", {})
    assert len(RELEASES) == 3
    for manifest, release in itertools.product(built, RELEASES):
        if manifest["kind"] not in CUSTOM:
            valid(json.dumps(manifest), release)


@functools.cache
def valid(text: str, release: str) -> None:
    """Most sets have the same objects: each is validated once."""
    kubernetes_validate.validate(json.loads(text), release, strict=True)


def test_the_dashboard_is_labelled_for_the_sidecar() -> None:
    (dashboard,) = (m for m in built("daemon", "dashboard") if m["metadata"]["name"] == "sweeperd-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["data"]["sweeperd.json"] == (K8S.parent / "grafana" / "sweeperd.json").read_text()


def test_the_prometheus_rule_holds_the_alert_rules() -> None:
    assert prometheusrule.MANIFEST.read_text() == prometheusrule.manifest(), "python -m tests.support.prometheusrule"
    (rule,) = read(prometheusrule.MANIFEST)
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


@pytest.mark.parametrize(("base", "name"), [("daemon", "sweeperd"), ("roles", "sweeperd-deliver")])
def test_keda_scales_what_delivers_and_decides_its_replicas_alone(base: str, name: str) -> None:
    manifests = built(base, "keda")
    (scaled,) = (manifest for manifest in manifests if manifest["kind"] == "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == name
    replicas = {
        each["metadata"]["name"]: each["spec"].get("replicas") for each in manifests if each["kind"] == "Deployment"
    }
    assert replicas == {name: None} | ({"sweeperd-sweep": 2} if base == "roles" else {})
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metricType"] == "AverageValue"
    query = trigger["metadata"]["query"]
    (metric,) = re.findall(r"sweeperd_\w+", query)
    assert metric in (K8S.parents[1] / "docs" / "reference" / "metrics.md").read_text()
    assert f'namespace="{scaled["metadata"]["namespace"]}"' in query, "and nobody else's backlog"
    assert "cooldownPeriod" not in scaled["spec"], "it means nothing unless the least is 0"


def test_what_the_network_policy_blocks_is_allowed_by_a_component() -> None:
    def ports(manifests: list[Manifest]) -> set[int]:
        rules = [rule for each in manifests if each["kind"] == "NetworkPolicy" for rule in each["spec"]["egress"]]
        return {
            number
            for rule in rules
            for port in rule.get("ports", [])
            for number in range(port["port"], port.get("endPort", port["port"]) + 1)
        }

    assert ports(built("daemon")) == {53, 443, 6379}
    assert ports(built("daemon", "network-redis")) >= {6380, 26379, *range(7000, 7006)}
    assert ports(built("cronjob", "network-telemetry")) >= {4318, 9091}
    (inside,) = of_kind("NetworkPolicy", "sweeperd-receivers")["spec"]["egress"]
    assert inside == {"to": [{"namespaceSelector": {}}]}


def test_the_settings_are_accepted_and_fit_the_pods() -> None:
    settings = load(EXAMPLE / "config.toml", {})
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
        assert (container["resources"]["requests"]["memory"], container["resources"]["limits"]["memory"]) == (
            "96Mi",
            "256Mi",
        ), "room for the daemon and three commands by `kubectl exec`"
    assert of_kind("ServiceAccount")["automountServiceAccountToken"] is False


def test_the_settings_with_the_endpoint_turned_on_are_accepted_too(tmp_path: Path) -> None:
    text = (EXAMPLE / "config.toml").read_text()
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
    assert container["startupProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["startupProbe"]["initialDelaySeconds"] >= 2, "no pod begins with a Warning event"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    (metrics,) = of_kind("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert (metrics["port"], metrics["path"]) == ("http", "/metrics")
    (ingress,) = of_kind("NetworkPolicy")["spec"]["ingress"]
    assert ingress["ports"] == [{"protocol": "TCP", "port": "http"}]


def test_a_roll_out_leaves_no_gap_and_cron_runs_one_at_a_time() -> None:
    deployment = of_kind("Deployment")["spec"]
    assert deployment["replicas"] == 3
    assert deployment["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
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
