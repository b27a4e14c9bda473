"""The chart: its schema, and what Helm renders of it, which is what kustomize builds but for names."""

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from sweeperd import __version__
from sweeperd.config import load
from tests.deploy.test_k8s import COMPONENTS, CUSTOM, RELEASES, Manifest, breaches, built, parsed, pod_specs
from tests.support.documents import ROOT

CHART = ROOT / "deploy" / "helm" / "sweeperd"
#: Each component of the manifests -> the values that turn it on. KEDA has its manifest in `extra.objects`.
VALUES: dict[str, Manifest] = {
    "podmonitor": {"podMonitor": {"enabled": True}},
    "prometheusrule": {"prometheusRule": {"enabled": True}},
    "dashboard": {"dashboard": {"enabled": True}},
    "network-redis": {"networkPolicy": {"redis": True}},
    "network-telemetry": {"networkPolicy": {"telemetry": True}},
    "network-receivers": {"networkPolicy": {"receivers": True}},
}
#: Labels that every chart has, and what only the components of kustomize read.
OWN = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart", "sweeperd/delivered-by"}


def helm(*arguments: str, refused: bool = False) -> str:
    if not shutil.which("helm"):
        pytest.skip("helm is not installed")
    done = subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode != 0) is refused, done.stderr
    return done.stderr if refused else done.stdout


def rendered(tmp_path: Path, values: Manifest, *, refused: bool = False) -> list[Manifest]:
    """What Helm renders for the release `shop`, without the pod of `helm test`; or its one refusal."""
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    line = ("template", "shop", str(CHART), "--kube-version", "1.33.0", "--values", str(tmp_path / "values.yaml"))
    text = helm(*line, refused=refused)
    if refused:
        return [{"refusal": text}]
    manifests = [manifest for manifest in parsed(text) if manifest]
    assert empty(manifests) == [], "an API server takes null for a mistake, or for the removal of a default"
    return manifests


def empty(part: Any, path: str = "") -> list[str]:
    """The paths of all nulls."""
    if part is None:
        return [path]
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [found for key, value in items for found in empty(value, f"{path}/{key}")]


def installed(manifests: list[Manifest]) -> list[Manifest]:
    return [each for each in manifests if "helm.sh/hook" not in each["metadata"].get("annotations", {})]


def bare(part: Any) -> Any:
    """Without the labels of a chart, without defaults of Kubernetes, and without what is empty then."""
    if isinstance(part, list):
        return [bare(each) for each in part]
    if not isinstance(part, dict):
        return part
    left = {key: bare(value) for key, value in part.items() if key not in OWN | {"namespace"}}
    if left.get("imagePullPolicy") == "IfNotPresent":
        del left["imagePullPolicy"]
    return {key: value for key, value in left.items() if value != {} or part[key] == {}}


def alike(manifests: list[Manifest]) -> list[Manifest]:
    """The same list for the chart and for kustomize if they differ in names only."""
    (settings,) = (each for each in manifests if "config.toml" in each.get("data", {}))
    text = json.dumps([bare(each) for each in manifests])
    for name, usual in ((settings["metadata"]["name"], "settings"), ("shop-sweeperd", "sweeperd")):
        text = text.replace(name, usual)
    found: list[Manifest] = sorted(json.loads(text), key=lambda each: (each["kind"], each["metadata"]["name"]))
    for each in found:
        if "config.toml" in each.get("data", {}):
            each["data"] = tomllib.loads(each["data"]["config.toml"])
    return found


@pytest.mark.parametrize(
    ("base", "values", "components"),
    [
        ("daemon", {}, ()),
        ("roles", {"roles": {"enabled": True}}, ()),
        ("cronjob", {"cronjob": {"enabled": True}}, ("podmonitor",)),
        ("daemon", {}, tuple(VALUES)),
    ],
)
def test_it_renders_what_kustomize_builds(
    base: str, values: Manifest, components: tuple[str, ...], tmp_path: Path
) -> None:
    assert set(VALUES) == set(COMPONENTS) - {"keda"}
    for component in components:
        ((section, given),) = VALUES[component].items()
        values = values | {section: values.get(section, {}) | given}
    assert alike(installed(rendered(tmp_path, values))) == alike(built(base, *components))


def test_lint() -> None:
    helm("lint", "--strict", str(CHART))


FULL: Manifest = {
    "replicaCount": None,
    "existingSecret": "redis",
    "env": [{"name": "OTEL_SERVICE_NAME", "value": "sweeperd"}],
    "envFrom": [{"configMapRef": {"name": "proxy"}}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
    "podAnnotations": {"team": "billing"},
    "serviceAccount": {"name": "known", "create": False},
    "extra": {
        "labels": {"team": "billing"},
        "deployment": {"revisionHistoryLimit": 3},
        "pod": {"nodeSelector": {"disk": "ssd"}},
        "container": {"lifecycle": {"preStop": {"sleep": {"seconds": 2}}}},
        "service": {"type": "NodePort"},
        "objects": [
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "{{ .Release.Name }}-more"}, "spec": {}},
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: text",
        ],
    },
    "config": {
        "sweep": {"batch_size": 500, "audit_spread": 0.25, "memory_limit": "90%"},
        "cycles": {"dispatch_backlog": 1_000_000},
        "http": {"hosts": ["sweeperd.example.com"]},
        "webhooks": {
            "endpoints": [{"name": "b", "url": "https://b.example.com", "headers": {"X-Team": 'a = 5.0 "b"'}}]
        },
        "kinds": [
            {
                "name": "seat",
                "index": "seats:ttl",
                "key": "seats:{id}",
                "deadline": "expires_at",
                "active": {"state": "HELD"},
                "ended": {"state": "EXPIRED"},
                "max_writes": 8,
            }
        ],
    },
}


def test_every_value_arrives(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, FULL)
    by_kind = {each["kind"]: each for each in installed(manifests) if each["metadata"]["name"].startswith("shop-swe")}
    assert "ServiceAccount" not in by_kind
    assert {each["metadata"]["name"] for each in manifests} >= {"shop-more", "text"}
    assert by_kind["Service"]["spec"]["type"] == "NodePort"
    spec = by_kind["Deployment"]["spec"]
    assert (spec.get("replicas"), spec["revisionHistoryLimit"]) == (None, 3)
    assert spec["template"]["metadata"]["annotations"] == {"team": "billing"}
    assert "team" not in spec["selector"]["matchLabels"], "selectors never change"
    (test,) = (each for each in manifests if each["kind"] == "Pod")
    for pod in (spec["template"]["spec"], test["spec"]):
        assert (pod["nodeSelector"], pod["serviceAccountName"]) == ({"disk": "ssd"}, "known")
        assert [volume["name"] for volume in pod["volumes"]] == ["config", "secrets", "ca"]
        assert pod["volumes"][1]["secret"]["secretName"] == "redis"
        (container,) = pod["containers"]
        assert [each["name"] for each in container["env"]] == ["SWEEPERD_REDIS__URL", "OTEL_SERVICE_NAME"]
        assert container["envFrom"] == FULL["envFrom"]
        assert container["volumeMounts"][-1]["mountPath"] == "/etc/ca"
        assert "lifecycle" in container
    (tmp_path / "config.toml").write_text(by_kind["ConfigMap"]["data"]["config.toml"])
    settings = load(tmp_path / "config.toml", {})
    assert (settings.sweep.batch_size, settings.sweep.audit_spread, settings.sweep.memory_limit) == (500, 0.25, 90)
    assert (settings.cycles.dispatch_backlog, settings.kinds[0].max_writes) == (1_000_000, 8)
    assert settings.http.hosts == ["sweeperd.example.com"]
    assert settings.webhooks.endpoints[0].headers["X-Team"].get_secret_value() == 'a = 5.0 "b"'


@pytest.mark.parametrize("config", [{"redis": {"url": "exec:token"}}, {"shards": [{"name": "a", "url": "exec:token"}]}])
def test_an_address_in_the_settings_is_not_overridden(config: Manifest, tmp_path: Path) -> None:
    """It needs no Secret either, unless one is named."""
    endpoint = {"name": "a", "url": "https://a", "secrets": ["file:/run/secrets/sweeperd/a"]}
    for existing, more in (("", {}), ("more", {}), ("", {"webhooks": {"endpoints": [endpoint]}})):
        manifests = rendered(tmp_path, {"config": config | more, "existingSecret": existing})
        (test,) = (each for each in manifests if each["kind"] == "Pod")
        for spec in (*pod_specs(manifests), test["spec"]):
            assert "env" not in spec["containers"][0]
            assert spec["volumes"][1]["secret"].get("optional", False) is not bool(existing or more)


@pytest.mark.parametrize("values", [{}, {"roles": {"enabled": True}}, {"cronjob": {"enabled": True}}, FULL])
def test_the_cluster_takes_it(values: Manifest, tmp_path: Path) -> None:
    """Also the pod of `helm test`, which runs `sweeperd check`."""
    manifests = rendered(tmp_path, values)
    (test,) = (each for each in manifests if each["kind"] == "Pod")
    assert test["spec"]["containers"][0]["args"][-1] == "check"
    for pod in (*pod_specs(manifests), test["spec"]):
        assert breaches(pod) == []
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM and manifest["metadata"]["name"].startswith("shop-sweeperd"):
            kubernetes_validate.validate(manifest, RELEASES[-1], strict=True)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"config": {"sweep": {"batchsize": 1}}}, "batchsize"),
        ({"config": {"sweep": {"batch_size": "many"}}}, "batch_size"),
        ({"replicas": 2}, "replicas"),
        ({"networkPolicy": {"redis": "yes"}}, "redis"),
    ],
)
def test_the_schema_names_what_is_wrong(values: Manifest, named: str, tmp_path: Path) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    usual = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.Draft202012Validator(schema).validate(usual)
    with pytest.raises(jsonschema.ValidationError, match=named):
        jsonschema.Draft202012Validator(schema).validate(values)
    assert named in rendered(tmp_path, values, refused=True)[0]["refusal"]


def test_the_versions_are_those_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
