"""`python -m proof.release.systemd`: the document's block for systemd on a fresh Debian, booted by systemd-nspawn."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from proof.release import debian

SUITE = os.environ.get("SWEEPERD_RELEASE_DEBIAN", "bookworm")
PACKAGES = ("systemd-sysv", "dbus", "procps", "iproute2")
#: How long one boot may take, seconds.
LIMIT = 900
#: The exit code of systemd-nspawn if the system reboots.
REBOOT = 133
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
    text = _boot(root)
    shutil.rmtree(root)
    return debian.judge(text, EXPECTED) or int("FAILED: " in text)


def _boot(root: Path) -> str:
    """Run the system until it powers off. Returns the text of its console. Raises subprocess.TimeoutExpired."""
    # Without a registration: the machine that makes a release need not run systemd itself.
    line = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "--boot"]
    text, code = "", REBOOT
    while code == REBOOT:
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
        text, code = text + done.stdout, done.returncode
    return text


if __name__ == "__main__":
    sys.exit(main())
