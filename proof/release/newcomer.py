"""
`python -m proof.release.newcomer`: the commands of the README, word for word, as somebody types them who has a bare
Debian, no server and no right of root. `python -m proof.release.newcomer 1` runs only the first one. Needs root.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from proof.release import debian
from proof.release.figures import keep

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
#: All that the newcomer's programs find in the environment.
ENVIRONMENT = {"HOME": "/home/newcomer", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}


def commands() -> list[str]:
    """The two commands of the README: see it, and test it."""
    found = re.findall(r"^```sh\n(python3 -m venv .+)\n```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert len(found) == 2, found
    return found


def main() -> int:
    """Exit code 0 if the commands end well, or if the step cannot be run here."""
    if reason := debian.missing("unshare", "setpriv"):
        return debian.skip("newcomer", reason)
    wanted = commands()[: int(sys.argv[1])] if len(sys.argv) > 1 else commands()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        line = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        # debootstrap may leave it mounted.
        subprocess.run(["umount", "--quiet", str(root / "proc")], check=False, stderr=subprocess.DEVNULL)
        return judge(root, wanted)


def judge(root: Path, wanted: list[str]) -> int:
    """Run the commands in an installed system. Returns the first exit code that is not 0."""
    settle(root)
    figures = {}
    for command in wanted:
        began = time.monotonic()
        code = subprocess.run(inside(root, command), env=ENVIRONMENT, stdin=subprocess.DEVNULL, check=False).returncode
        figures[command] = f"exit code {code} after {time.monotonic() - began:.0f} s"
        keep(figures)
        if code:
            return code
    return 0


def settle(root: Path) -> None:
    """Give the newcomer an account, a checkout, and this machine's way to an index."""
    subprocess.run(["chroot", str(root), "useradd", "--create-home", "newcomer"], check=True)
    for path in filter(None, ("/etc/resolv.conf", os.environ.get("PIP_CERT"))):
        shutil.copy(path, root / path.lstrip("/"))
    if authorities := os.environ.get("PIP_CERT"):
        (root / "etc/pip.conf").write_text(f"[global]\ncert = {authorities}\n", encoding="utf-8")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n", encoding="utf-8")  # as an installer does
    source = root / "home/newcomer/sweeperd"
    source.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    subprocess.run(["chroot", str(root), "chown", "-R", "newcomer:", "/home/newcomer"], check=True)


def inside(root: Path, command: str) -> list[str]:
    """The line that runs a command of a shell as the newcomer, with `/proc`, `/dev/shm` and terminals of its own."""
    mounts = (
        "mount -t proc proc /proc && mkdir -p /dev/shm /dev/pts && mount -t tmpfs shm /dev/shm"
        " && mount -t devpts -o newinstance,ptmxmode=0666 pts /dev/pts && rm -f /dev/ptmx && ln -s pts/ptmx /dev/ptmx"
    )
    become = ["setpriv", "--reuid=newcomer", "--regid=newcomer", "--init-groups", "--no-new-privs"]
    script = f'{mounts}\ncd /home/newcomer/sweeperd && exec "$@"'
    here = ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--root={root}", "/bin/sh", "-c", script, "sh"]
    return [*here, *become, "/bin/sh", "-c", command]


if __name__ == "__main__":
    sys.exit(main())
