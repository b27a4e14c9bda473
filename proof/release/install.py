"""`python -m proof.release.install DIST VENV` installs the wheel into a new environment and runs its demo there."""

import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from proof.release.figures import keep


def main() -> int:
    """Exit code 1 if the wheel has not each file as in this clone. Raises subprocess.CalledProcessError."""
    dist, venv = Path(sys.argv[1]), Path(sys.argv[2])
    wheel = next(dist.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{wheel}[demo]"], check=True)
    if missing := differing(venv):
        print(f"the wheel was not built from this commit: {', '.join(missing)}", file=sys.stderr)
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
    """The files of the package that this environment has not as they are in the clone."""
    listed = subprocess.run(["git", "ls-files", "sweeperd"], capture_output=True, text=True, check=True).stdout.split()
    installed = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    return [name for name in listed if not same(Path(name), installed / name)]


def same(one: Path, other: Path) -> bool:
    """Whether both are there and have the same bytes."""
    return other.exists() and one.read_bytes() == other.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
