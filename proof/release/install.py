"""`python -m proof.release.install DIST VENV` installs the wheel into a new environment and runs its demo there."""

import filecmp
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from proof.release.figures import keep


def main() -> int:
    """
    Exit code 1 if the wheel was not built from this clone. Raises subprocess.CalledProcessError if a command of the
    installed package fails.
    """
    dist, venv = Path(sys.argv[1]), Path(sys.argv[2])
    wheel = next(dist.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{wheel}[demo]"], check=True)
    if files := differing(venv):
        print(f"the wheel was not built from this commit: {', '.join(files)}", file=sys.stderr)
        return 1
    sweeperd = str(venv / "bin" / "sweeperd")
    version = subprocess.run([sweeperd, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    began = time.monotonic()
    demo = subprocess.run([sweeperd, "demo"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    print(demo.stdout, demo.stderr)
    keep(
        {
            "wheel": f"{wheel.name}, each file as in this commit",
            "version": version,
            "demo": f"exit code {demo.returncode} after {time.monotonic() - began:.0f} s",
        }
    )
    return demo.returncode


def differing(venv: Path) -> list[str]:
    """The files of the package that are missing in this environment, or differ from those of the clone."""
    listed = subprocess.run(["git", "ls-files", "sweeperd"], capture_output=True, text=True, check=True).stdout.split()
    installed = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    _, different, missing = filecmp.cmpfiles(".", installed, listed, shallow=False)
    return different + missing


if __name__ == "__main__":
    sys.exit(main())
