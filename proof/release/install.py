"""`python -m proof.release.install DIST VENV` installs the wheel into a new environment and runs its demo there."""

import subprocess
import sys
import time
from pathlib import Path

from proof.release.figures import keep


def main() -> int:
    """Raises subprocess.CalledProcessError if a command of the installed package fails."""
    dist, venv = Path(sys.argv[1]), Path(sys.argv[2])
    wheel = next(dist.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{wheel}[demo]"], check=True)
    sweeperd = str(venv / "bin" / "sweeperd")
    version = subprocess.run([sweeperd, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    began = time.monotonic()
    demo = subprocess.run([sweeperd, "demo"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    print(demo.stdout, demo.stderr)
    keep(
        {
            "wheel": wheel.name,
            "version": version,
            "demo": f"exit code {demo.returncode} after {time.monotonic() - began:.0f} s",
        }
    )
    return demo.returncode


if __name__ == "__main__":
    sys.exit(main())
