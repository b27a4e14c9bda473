"""`python -m tools.release.systemd`: the document's block for systemd on a fresh Debian, booted by systemd-nspawn."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.release import debian

SUITE = os.environ.get("SWEEPERD_RELEASE_DEBIAN", "bookworm")
PACKAGES = ("systemd-sysv", "dbus", "procps", "iproute2")
#: How long both boots may take, seconds.
LIMIT = 1800
UNIT = """[Unit]
After=multi-user.target redis-server.service
[Service]
Type=idle
ExecStart=/bin/sh /root/proof/systemd.sh
[Install]
WantedBy=multi-user.target
"""
EXPECTED = (
    "the block",
    "exposure",
    "memory",
    "kill -9",
    "SIGSTOP",
    "reload",
    "a missing secret",
    "a missing credential of a drop-in",
    "reboot",
    "roles",
    "the timer",
    "uninstalled",
)


def main() -> int:
    """Exit code 1 if something is not as the document says. Raises subprocess.CalledProcessError without a Debian."""
    if reason := debian.missing("systemd-nspawn"):
        return debian.skip("systemd", reason)
    root = debian.install(SUITE, PACKAGES)
    deploying = "deploying.md"
    debian.write_blocks(
        root,
        install=(deploying, "systemd", 0),
        roles=(deploying, "systemd", 1),
        timer=(deploying, "systemd", 2),
        uninstall=("install.md", "Uninstall the systemd units", 0),
    )
    shutil.copy(Path(__file__).with_suffix(".sh"), root / debian.PROOF / "systemd.sh")
    (root / "etc/systemd/system/proof.service").write_text(UNIT)
    subprocess.run(["chroot", str(root), "systemctl", "enable", "--quiet", "proof", "redis-server"], check=True)
    # Without a registration: the machine that makes a release need not run systemd itself.
    line = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "--boot"]
    done = subprocess.run(
        [*line, f"--directory={root}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT,
        check=False,
    )
    shutil.rmtree(root)
    return debian.judge(done.stdout, EXPECTED) or int("FAILED: " in done.stdout)


if __name__ == "__main__":
    sys.exit(main())
