"""`python -m proof.release.cron`: the document's cron line under the real cron daemon, on a fresh Debian."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from proof.release import debian

SUITE = os.environ.get("SWEEPERD_RELEASE_DEBIAN", "bookworm")
#: How many late reservations are timed beside a slow receiver.
ROUNDS = 3
EXPECTED = (
    "cron's first sweep",
    "a sweep that went well",
    "the latest sweep beside a slow receiver with 1,200 events",
    "a Redis that is down",
    "a bad setting",
)


def main() -> int:
    """Exit code 1 if something is not as the document says. Raises subprocess.CalledProcessError without a Debian."""
    if reason := debian.missing("unshare"):
        return debian.skip("cron", reason)
    root = debian.install(SUITE, ["cron", "iproute2"])
    debian.write_blocks(root, systemd=("deploying.md", "systemd", 0), block=("deploying.md", "Cron", 0))
    shutil.copy(Path(__file__).with_suffix(".sh"), root / debian.PROOF / "cron.sh")
    line = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", f"--root={root}"]
    inside = f"mount -t proc proc /proc && sh /{debian.PROOF}/cron.sh {ROUNDS}"
    done = subprocess.run(
        [*line, "/bin/sh", "-c", inside],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return debian.judge(done.stdout, EXPECTED) or done.returncode


if __name__ == "__main__":
    sys.exit(main())
