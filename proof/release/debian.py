"""A Debian from nothing, in a directory: what the steps `cron` and `systemd` run the documents' blocks on."""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

from proof.release.figures import directory, keep
from tests.support.documents import ROOT, blocks

#: What every step needs, beside what `debootstrap` brings.
PACKAGES = ("ca-certificates", "python3", "python3-venv", "redis-server")
#: Of the installed system: the clone, the wheels of everything that sweeperd needs, and the scripts of a step.
SOURCE, WHEELS, PROOF = "root/sweeperd", "root/wheels", "root/proof"
#: A line of a script: `PROOF name: value`.
MARK = "PROOF "


def missing(*programs: str) -> str:
    """Why the step cannot be run here; empty if the step can."""
    if os.geteuid() != 0:
        return "it needs root"
    absent = [program for program in ("debootstrap", *programs) if shutil.which(program) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


def skip(step: str, reason: str) -> int:
    """Keep the reason in place of figures. Returns the exit code."""
    print(f"{step}: not run: {reason}")
    keep({step: f"not run: {reason}"})
    return 0


def install(suite: str, packages: Sequence[str]) -> Path:
    """
    A Debian of this suite with these packages, the clone and its wheels. Its `pip` finds the wheels and no index, so
    that the blocks run without a network. Raises subprocess.CalledProcessError.
    """
    root = directory() / "debian"
    shutil.rmtree(root, ignore_errors=True)
    wanted = ",".join([*PACKAGES, *packages])
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={wanted}", suite, str(root)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    prepare(root)
    return root


def prepare(root: Path) -> None:
    """Put the commit, the wheels and a place for scripts into an installed system. Raises CalledProcessError."""
    (root / SOURCE).mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "archive", "HEAD"], check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(root / SOURCE)], input=archive.stdout, check=True)
    (root / WHEELS).mkdir()
    _download_wheels(root)
    (root / "etc" / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = /{WHEELS}\n")
    (root / PROOF).mkdir()


def _download_wheels(root: Path) -> None:
    """By the system's own pip, which knows its Python best, with this machine's way to an index."""
    for path in filter(None, ("/etc/resolv.conf", os.environ.get("PIP_CERT"))):
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.lstrip("/"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    inside = ["chroot", str(root), "/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
    subprocess.run([*inside, "python3", "-m", "venv", "/tmp/pip"], check=True)
    subprocess.run([*inside, "/tmp/pip/bin/pip", "download", "-q", "-d", f"/{WHEELS}", *requirements], check=True)


def write_blocks(root: Path, **named: tuple[str, str, int]) -> None:
    """
    Write blocks of the documents as scripts, as they stand: `name=(document, heading, number)`. Each is run in the
    clone by `sh -eu`.
    """
    for name, (document, heading, number) in named.items():
        text = blocks(ROOT / "docs" / document, heading)[number]
        (root / PROOF / f"{name}.sh").write_text(text, encoding="utf-8")


def judge(output: str, expected: Sequence[str]) -> int:
    """Keep what a script found. Exit code 1 if one of the `expected` names is not there."""
    print(output)
    lines = [line.strip().partition(MARK)[2] for line in output.splitlines() if MARK in line]
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    keep(found)
    absent = [name for name in expected if name not in found]
    print(f"not shown: {', '.join(absent)}" if absent else "all shown")
    return 1 if absent else 0
