"""
`python -m proof.release.image [BASE]`: build the image, and run it as the manifests do: probes, a sweep, three commands
beside the daemon, SIGTERM. Without BASE the base is a Debian of debootstrap. Needs root, podman and redis-server.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
import yaml

from proof.release import debian
from proof.release.figures import keep
from sweeperd import __version__
from tests.support.harness import eventually, reserve
from tests.support.servers import Server, binaries, free_port

ROOT = Path(__file__).parents[2]
DEPLOYMENT = ROOT / "deploy" / "k8s" / "parts" / "deployment" / "deployment.yaml"
#: The Debian whose Python is the one of the lock file.
SUITE = "trixie"
BASE = "localhost/sweeperd-release-base"
IMAGE = f"localhost/sweeperd-release:{__version__}"
OVERDUE = 10_000
MIB = 2**20


def main() -> int:
    """Exit code 0 if all holds, or if the step cannot be run here. Raises an error for what does not hold."""
    if reason := debian.missing("podman", "redis-server"):
        return debian.skip("image", reason)
    base = sys.argv[1] if len(sys.argv) > 1 else make_base()
    build = [
        "podman",
        "build",
        "--quiet",
        "--isolation",
        "chroot",
        "--network",
        "host",
        "-f",
        "deploy/container/Containerfile",
    ]
    subprocess.run([*build, "--build-arg", f"BASE={base}", "-t", IMAGE, "."], cwd=ROOT, check=True)
    size = int(podman("image", "inspect", "--format", "{{.Size}}", IMAGE)) / MIB
    figures = {"base": base, "size of the image": f"{size:.0f} MiB"}
    tried = subprocess.run(["podman", "run", "--rm", IMAGE, "--version"], capture_output=True, text=True, check=False)
    if tried.returncode and "OCI" in tried.stderr:
        reason = tried.stderr.strip().splitlines()[-1]
        print(f"image: {reason}")
        keep({**figures, "the image as a container": f"not run: {reason}"})
        return 0
    with Server(binaries()[0]) as server, redis.Redis.from_url(server.url) as client:
        keep({**figures, **run(server.url, client)})
    return 0


def make_base() -> str:
    """A base image with `python` and `pip`, and with this machine's authorities. Returns its name."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        packages = "--include=python3,python3-venv,ca-certificates"
        subprocess.run(["debootstrap", "--variant=minbase", packages, SUITE, str(root)], check=True, stdout=sys.stderr)
        # debootstrap may leave it mounted.
        subprocess.run(["umount", "--quiet", str(root / "proc")], check=False, stderr=subprocess.DEVNULL)
        import_base(root)
    return BASE


def import_base(root: Path) -> None:
    """Make an image of an installed system."""
    # An environment in front of the system's Python: its pip can be uninstalled as the Containerfile does.
    subprocess.run(["chroot", str(root), "python3", "-m", "venv", "/usr/local"], check=True)
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    if authorities := os.environ.get("PIP_CERT"):
        shutil.copy(authorities, bundle)
    path = "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    changes = ["--change", path, "--change", f"ENV PIP_CERT=/{bundle.relative_to(root)}"]
    with subprocess.Popen(["tar", "-C", str(root), "--one-file-system", "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(["podman", "import", "--quiet", *changes, "-", BASE], stdin=tar.stdout, check=True)


def podman(*arguments: str) -> str:
    """What podman prints. Raises subprocess.CalledProcessError."""
    done = subprocess.run(["podman", *arguments], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return done.stdout.strip()


@contextlib.contextmanager
def container(directory: Path, url: str, port: int) -> Iterator[str]:
    """The daemon with the user, limits, mounts and arguments of the Deployment."""
    spec: dict[str, Any] = yaml.safe_load(DEPLOYMENT.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    (deployed,) = spec["containers"]
    text = (ROOT / "deploy" / "k8s" / "example" / "config.toml").read_text(encoding="utf-8")
    (directory / "config.toml").write_text(text.replace(":9464", f":{port}"), encoding="utf-8")
    (directory / "redis-url").write_text(url, encoding="utf-8")
    directory.chmod(0o755)
    config, secrets = (mount["mountPath"] for mount in deployed["volumeMounts"])
    user = spec["securityContext"]
    (variable,) = deployed["env"]
    name = podman(
        *("run", "--detach", "--network", "host", "--read-only", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--user", f"{user['runAsUser']}:{user['runAsGroup']}"),
        *("--memory", deployed["resources"]["limits"]["memory"].removesuffix("i").lower()),
        *("--volume", f"{directory}:{config}:ro", "--volume", f"{directory}:{secrets}:ro"),
        *("--env", f"{variable['name']}={variable['value']}", IMAGE, *deployed["args"]),
    )
    try:
        yield name
    finally:
        print(podman("logs", name))
        podman("rm", "--force", name)


def answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def run(url: str, client: redis.Redis) -> dict[str, str]:
    """Start the image, and see that it does its work. Returns the figures."""
    port = free_port()
    reserve(client, [f"r{number}" for number in range(OVERDUE)])
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        with container(Path(name), url, port) as running:
            eventually(lambda: answers(port, "/readyz"), 60)
            ready = time.monotonic() - began
            assert answers(port, "/healthz"), "the process is well"
            eventually(lambda: client.zcard("reservation:ttl") == 0, 60)
            assert client.xlen("sweeperd:events") == OVERDUE
            pid = podman("inspect", "--format", "{{.State.Pid}}", running)
            memory = used(pid)
            for _ in range(3):
                line = ["podman", "exec", running, "sweeperd", "status"]
                commands = [subprocess.Popen(line, stdout=subprocess.DEVNULL) for _ in range(3)]
                assert [each.wait(60) for each in commands] == [0, 0, 0], "three commands at once"
            assert podman("inspect", "--format", "{{.State.Pid}}", running) == pid, "the daemon lives"
            peak = used(pid, most=True)
            began = time.monotonic()
            podman("stop", "--time", "40", running)
            ended = time.monotonic() - began
            assert podman("inspect", "--format", "{{.State.ExitCode}}", running) == "0"
    return {
        "ready after": f"{ready:.1f} s, with {OVERDUE:,} overdue",
        "memory of the daemon": memory,
        "most memory, with three commands at once": peak,
        "ended after SIGTERM": f"{ended:.1f} s, exit code 0",
    }


def used(pid: str, *, most: bool = False) -> str:
    """The memory of the process's control group: now, or the most that it ever was. cgroup v2, or v1."""
    groups = Path("/sys/fs/cgroup")
    for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "memory":
            file = groups / "memory" / group.lstrip("/") / f"memory.{'max_' if most else ''}usage_in_bytes"
        elif not controllers:
            file = groups / group.lstrip("/") / f"memory.{'peak' if most else 'current'}"
        else:
            continue
        if file.exists():
            return f"{int(file.read_text()) / MIB:.0f} MiB"
    return "not measured: the kernel keeps no such figure"


if __name__ == "__main__":
    sys.exit(main())
