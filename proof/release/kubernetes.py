"""
`python -m proof.release.kubernetes --kubeconfig FILE` proves on a cluster what docs/how-to/kubernetes.md says:
admission under Pod Security `restricted`, a roll-out and a forced delete under load, commands in a pod, bad settings, a
rotated password. Needs kubectl. The cluster has the images or can pull them, and has no namespace `sweeperd`.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import redis
import yaml

from proof.release.figures import keep, skip
from sweeperd import __version__
from tests.support import books
from tests.support.documents import blocks
from tests.support.harness import IN_HAND, eventually, reserve

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
DEPLOYING = ROOT / "docs" / "how-to" / "kubernetes.md"
#: The namespace of the documents, and the one of Redis and the receiver.
OURS, HELPERS = "sweeperd", "sweeperd-tried"
PASSWORD, ROTATED = "first-password", "second-password"
RESERVATIONS = 20_000
#: How many reservations are made together, and how far apart their deadlines are, ms.
SLICE, APART = 1000, 3000
#: How long a roll-out may take, and until the pods have a changed Secret, seconds.
ROLLED, HEALED = 240, 240
#: Counts each event in Redis, by its id.
RECEIVER = """
import os, redis
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
seen = redis.Redis.from_url(os.environ["REDIS"])
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        seen.hincrby("received", self.headers["webhook-id"], 1)
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
#: Prints a digest of the package's modules and scripts. A wheel has the examples beside them.
DIGEST = """
import hashlib, pathlib, sweeperd
root, digest = pathlib.Path(sweeperd.__file__).parent, hashlib.sha256()
for path in sorted(root.rglob("*")):
    name = path.relative_to(root).as_posix()
    if path.suffix in (".py", ".lua") and not name.startswith("examples/"):
        digest.update(name.encode() + path.read_bytes())
print(digest.hexdigest())
"""
#: `redis-cli` of the documents, in the pod of Redis.
REDIS_CLI = f"""#!/bin/sh
exec kubectl -n {HELPERS} exec -i redis -- redis-cli "$@"
"""

Manifest = dict[str, Any]


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="The cluster. Without it the step is left out.")
@click.option("--image", default=f"sweeperd:{__version__}", envvar="SWEEPERD_RELEASE_IMAGE", show_default=True)
@click.option("--redis", "redis_image", default="redis:8-alpine", envvar="SWEEPERD_RELEASE_REDIS", show_default=True)
def main(kubeconfig: Path | None, image: str, redis_image: str) -> None:
    """Exit code 0 if all holds, or if the step cannot be run here. Raises an error for what does not hold."""
    if kubeconfig is None:
        sys.exit(skip("kubernetes", "no cluster is named by --kubeconfig"))
    if shutil.which("kubectl") is None:
        sys.exit(skip("kubernetes", "kubectl not installed"))
    os.environ["KUBECONFIG"] = str(kubeconfig.resolve())
    if kubectl("get", "namespaces", OURS, HELPERS, "--ignore-not-found", "-o", "name"):
        raise click.ClickException(
            f"the cluster has a namespace {OURS} or {HELPERS}: this step is for a cluster to try"
        )
    with tempfile.TemporaryDirectory() as name:
        try:
            run(Path(name).resolve(), image, redis_image)
        except BaseException:
            explain()
            raise
        finally:
            kubectl("delete", "namespaces", OURS, HELPERS, "--ignore-not-found", "--wait=false")


def run(directory: Path, image: str, redis_image: str) -> None:
    """Do all of it, with a copy of the manifests in this directory, and keep the figures as they come."""
    version = yaml.safe_load(kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    nodes = len(kubectl("get", "nodes", "-o", "name").split())
    figures = {"cluster": f"Kubernetes {version}, {nodes} node{'s' * (nodes > 1)}"}
    example = copy(directory, image)
    create_namespace(HELPERS)
    figures["restricted admits"] = admit(example)
    address = start_redis(redis_image)
    receiver = start_receiver(image, address)
    endpoint = f'\n[[webhooks.endpoints]]\nname = "tried"\nurl = "http://{receiver}:8080/"\n'
    write(example / "config.toml", endpoint, append=True)
    began = time.monotonic()
    install(directory, address)
    figures["the document's blocks"] = f"all replicas ready {time.monotonic() - began:.0f} s after the first command"
    figures["the image"] = compare_code(image)
    with forwarded() as url, redis.Redis.from_url(url) as client, redis.Redis.from_url(f"{url}/1") as received:
        figures |= roll_out(client, received)
        figures["three commands at once"] = execute_three()
        figures["a bad ConfigMap"] = break_settings(example)
        figures["a rotated password"] = rotate(client, address)
    keep(figures)


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """What kubectl prints. Raises RuntimeError with what kubectl says of an error."""
    done = subprocess.run(
        ["kubectl", *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=ROLLED + 60
    )
    if done.returncode:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def pods(namespace: str = OURS) -> list[Manifest]:
    """The pods that are not being deleted."""
    found: list[Manifest] = yaml.safe_load(kubectl("-n", namespace, "get", "pods", "-o", "json"))["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def ready(pod: Manifest) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def restarts() -> int:
    """How often containers of the pods that are there were started again."""
    return sum(each["restartCount"] for pod in pods() for each in pod["status"].get("containerStatuses", []))


def write(path: Path, text: str, *, append: bool = False) -> None:
    path.write_text((path.read_text(encoding="utf-8") if append else "") + text, encoding="utf-8")


def copy(directory: Path, image: str) -> Path:
    """Copy the manifests, and name the image as the documents say. Returns the folder of the example."""
    shutil.copytree(K8S.parent, directory / "deploy")
    example = directory / "deploy" / "k8s" / "example"
    name, _, tag = image.rpartition(":")
    settle(example, images=[{"name": "sweeperd", "newName": name, "newTag": tag}])
    settle(example, resources=["../bases/daemon"], components=["../components/network-receivers"])
    return example


def settle(example: Path, **values: object) -> None:
    """Change the example's kustomization."""
    path = example / "kustomization.yaml"
    write(path, yaml.safe_dump(yaml.safe_load(path.read_text(encoding="utf-8")) | values))


def create_namespace(name: str) -> None:
    kubectl("create", "namespace", name)
    restrict(name)


def restrict(name: str) -> None:
    """Have the cluster enforce Pod Security `restricted`, and warn of templates that go against it."""
    modes = ("enforce", "warn")
    kubectl("label", "namespace", name, *(f"pod-security.kubernetes.io/{mode}=restricted" for mode in modes))


def admit(example: Path) -> str:
    """
    Dry-run every base with every component on the API server, which warns of pod templates that violate `restricted`.
    A pod with the host's network must be refused.
    """
    known = set(kubectl("api-versions").split())
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sweeperd", "namespace": HELPERS}}
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(account))
    components = sorted(path.name for path in (K8S / "components").iterdir())
    taken, left = set[tuple[str, str, str]](), set[str]()
    before = yaml.safe_load((example / "kustomization.yaml").read_text(encoding="utf-8"))
    for base in sorted(path.name for path in (K8S / "bases").iterdir()):
        for component in ["", *components]:
            if (base, component) == ("cronjob", "keda"):  # there is nothing to scale
                continue
            added = [f"../components/{component}"] if component else []
            settle(example, namespace=HELPERS, resources=[f"../bases/{base}"], components=added)
            for manifest in yaml.safe_load_all(kubectl("kustomize", str(example))):
                if manifest["apiVersion"] not in known:
                    left.add(manifest["kind"])
                    continue
                dry_run(manifest)
                taken.add((base, manifest["kind"], manifest["metadata"]["name"]))
    settle(example, **before)
    refuse_host_network()
    kubectl("-n", HELPERS, "delete", "serviceaccount", "sweeperd")
    unknown = f"; not known here: {', '.join(sorted(left))}" if left else ""
    return f"{len(taken)} objects of the bases, with each component{unknown}"


def dry_run(manifest: Manifest) -> None:
    """Raises RuntimeError if the API server refuses it or warns of it."""
    line = ["kubectl", "-n", HELPERS, "apply", "--dry-run=server", "-f", "-"]
    done = subprocess.run(
        line, input=yaml.safe_dump(manifest), capture_output=True, text=True, check=False, timeout=ROLLED
    )
    if done.returncode or "Warning" in done.stderr:
        raise RuntimeError(f"{manifest['kind']} {manifest['metadata']['name']}: {done.stderr.strip()}")


def refuse_host_network() -> None:
    hostile = pod("hostile", "sweeperd", ["true"])
    hostile["spec"]["hostNetwork"] = True
    refusal = ""
    try:
        dry_run(hostile)
    except RuntimeError as error:
        refusal = str(error)
    assert "violates PodSecurity" in refusal, f"the cluster does not enforce Pod Security: {refusal}"


def pod(name: str, image: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Manifest:
    """A pod of one container, as `restricted` wants it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": HELPERS},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": name,
                    "image": image,
                    "command": list(command),
                    "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def start(manifest: Manifest) -> str:
    """Start a pod, and wait until it is ready. Returns its address."""
    name = manifest["metadata"]["name"]
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    kubectl("-n", HELPERS, "wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={ROLLED}s")
    (running,) = (each for each in pods(HELPERS) if each["metadata"]["name"] == name)
    address: str = running["status"]["podIP"]
    return f"[{address}]" if ":" in address else address


def start_redis(image: str) -> str:
    return start(pod("redis", image, ["redis-server", "--save", "", "--protected-mode", "no"]))


def start_receiver(image: str, address: str) -> str:
    command = ["python", "-c", RECEIVER]
    return start(pod("receiver", image, command, {"REDIS": f"redis://{address}:6379/1"}))


def install(directory: Path, address: str) -> None:
    """Run the document's blocks: namespace, Secret and manifests; then the rights in Redis, from a pod that runs."""
    first, second = blocks(DEPLOYING, "Run it on Kubernetes")[:2]
    namespace, _, rest = first.partition("\n")
    typed(directory, namespace, address)
    restrict(OURS)
    typed(directory, rest, address)
    eventually(lambda: [each for each in pods() if each["status"]["phase"] == "Running"], ROLLED)
    typed(directory, second, address)
    rolled_out()


def typed(directory: Path, block: str, address: str) -> None:
    """Run a block of the document with the values of this cluster. Raises subprocess.CalledProcessError."""
    client = directory / "redis-cli"
    write(client, REDIS_CLI)
    client.chmod(0o755)
    for word, value in (("PASSWORD", PASSWORD), ("@redis:", f"@{address}:"), ("-h REDIS", "-h 127.0.0.1")):
        block = block.replace(word, value)
    env = os.environ | {"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["sh", "-eux", "-c", block], cwd=directory, env=env, check=True)


def rolled_out() -> None:
    kubectl("-n", OURS, "rollout", "status", "deployment/sweeperd", f"--timeout={ROLLED}s")


@contextlib.contextmanager
def forwarded() -> Iterator[str]:
    """The URL of the cluster's Redis on this machine."""
    line = ["kubectl", "-n", HELPERS, "port-forward", "pod/redis", ":6379", "--address", "127.0.0.1"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found, "kubectl forwards no port"
            yield f"redis://127.0.0.1:{found[1]}"
        finally:
            process.terminate()


def compare_code(image: str) -> str:
    """The pods have to run what is proven: an image of an earlier commit has the same version."""
    here = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True).stdout.strip()
    for each in pods():
        there = kubectl("-n", OURS, "exec", each["metadata"]["name"], "--", "python", "-c", DIGEST)
        assert there == here, f"the image {image} was not built from this commit"
    return "modules and scripts are those of this commit, in each pod"


def roll_out(client: redis.Redis, received: redis.Redis) -> dict[str, str]:
    """Under load: a roll-out, and a pod that is gone at once. Each reservation ends once, and each event comes."""
    reserve_half(client, "rolled", after_ms=10_000)
    old = {each["metadata"]["uid"] for each in pods()}
    kubectl("-n", OURS, "rollout", "restart", "deployment/sweeperd")
    rolled_out()
    assert not old & {each["metadata"]["uid"] for each in pods() if ready(each)}, "all replicas are new"
    victim = next(each["metadata"]["name"] for each in pods() if ready(each))
    reserve_half(client, "forced", after_ms=0)
    kubectl("-n", OURS, "delete", "pod", victim, "--force", "--grace-period=0")
    left = client.zcard("reservation:ttl")
    assert left, "the last reservation had expired before the pod was deleted"
    eventually(lambda: client.zcard("reservation:ttl") == 0 and received.hlen("received") == RESERVATIONS, 180)
    rolled_out()
    books.check(books.read(client), [*books.ALWAYS, books.Property.ENDED])
    times = [int(count) for count in received.hvals("received")]
    twice = sum(times) - RESERVATIONS
    assert twice <= IN_HAND, f"{twice} events came twice"
    assert restarts() == 0
    return {
        "over a roll-out and a forced delete": f"{RESERVATIONS:,} reservations expired exactly once, {left:,} of them "
        "after the forced delete; the books are balanced",
        "webhooks": f"all {RESERVATIONS:,} events came, {twice} of them twice (at most {IN_HAND} after a kill)",
    }


def reserve_half(client: redis.Redis, name: str, after_ms: int) -> None:
    """Half of the reservations; the first are due after so many ms."""
    for number in range(0, RESERVATIONS // 2, SLICE):
        ids = [f"{name}{each}" for each in range(number, number + SLICE)]
        reserve(client, ids, overdue_by=-after_ms - number // SLICE * APART)


def execute_three() -> str:
    """Three commands at once in each pod, three times. No container may be started again."""
    commands, names = 0, set()
    for _ in range(3):
        for each in pods():
            line = ["kubectl", "-n", OURS, "exec", each["metadata"]["name"], "--", "sweeperd", "status"]
            started = [subprocess.Popen(line, stdout=subprocess.DEVNULL) for _ in range(3)]
            assert [command.wait(120) for command in started] == [0, 0, 0]
            commands += len(started)
            names.add(each["metadata"]["name"])
    assert restarts() == 0
    return f"{commands} commands in {len(names)} pods, restarts: 0"


def break_settings(example: Path) -> str:
    """Apply settings that are wrong: the pods before go on. Then the right ones again."""
    path = example / "config.toml"
    good = path.read_text(encoding="utf-8")
    before = {each["metadata"]["uid"] for each in pods()}
    write(path, f"nonsense = 1\n{good}")
    kubectl("apply", "-k", str(example))
    eventually(lambda: restarts() > 0, ROLLED)
    (broken,) = (each for each in pods() if each["metadata"]["uid"] not in before)
    eventually(lambda: "nonsense" in logs(broken["metadata"]["name"]), ROLLED)
    kept = [each for each in pods() if each["metadata"]["uid"] in before and ready(each)]
    write(path, good)
    kubectl("apply", "-k", str(example))
    rolled_out()
    eventually(lambda: {each["metadata"]["uid"] for each in pods()} == before, ROLLED)
    assert len(kept) == len(before)
    return f"{len(kept)} pods of before went on, and the new one named the setting"


def logs(pod: str) -> str:
    """What the container says and the one before said. Either may be gone by now."""
    line = ["kubectl", "-n", OURS, "logs", pod]
    both = [
        subprocess.run([*line, *more], capture_output=True, text=True, check=False) for more in ([], ["--previous"])
    ]
    return "".join(each.stdout for each in both)


def rotate(client: redis.Redis, address: str) -> str:
    """Give Redis another password first, and break the connections: the pods heal when the Secret has changed."""
    client.execute_command("ACL", "SETUSER", OURS, "resetpass", f">{ROTATED}")
    for kind in ("normal", "pubsub"):
        client.execute_command("CLIENT", "KILL", "TYPE", kind)
    eventually(lambda: not any(map(ready, pods())), 60)
    url = f"redis://sweeperd:{ROTATED}@{address}:6379/0"
    began = time.monotonic()
    kubectl("-n", OURS, "patch", "secret", OURS, "-p", yaml.safe_dump({"stringData": {"redis-url": url}}))
    eventually(lambda: all(map(ready, pods())), HEALED)
    assert restarts() == 0
    return f"all pods ready again {time.monotonic() - began:.0f} s after the Secret, restarts: 0"


def explain() -> None:
    """Print what a person would look at first."""
    for namespace in (OURS, HELPERS):
        for line in (
            ["get", "pods", "-o", "wide"],
            ["get", "events"],
            ["logs", "-l", "app.kubernetes.io/name=sweeperd"],
        ):
            subprocess.run(["kubectl", "-n", namespace, *line], check=False)


if __name__ == "__main__":
    main()
