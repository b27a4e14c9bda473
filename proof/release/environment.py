"""`python -m proof.release.environment VENV` makes the environment that the other steps run in."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from proof.release.figures import keep

#: The packages whose versions the evidence names.
NAMED = (
    "redis", "apscheduler", "requests", "urllib3", "tenacity", "pydantic", "prometheus-client", "hypothesis",
    "pytest",
)  # fmt: skip


def main() -> int:
    """Raises subprocess.CalledProcessError if it cannot be made."""
    venv = Path(sys.argv[1])
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-e", ".[dev,release]"], check=True)
    (packages,) = (venv / "lib").glob("python*/site-packages")
    keep(versions(packages))
    return 0


def versions(packages: Path) -> dict[str, str]:
    """The versions of the packages in NAMED. Raises KeyError if one is not installed there."""
    found = {canonicalize_name(one.name): one.version for one in metadata.distributions(path=[str(packages)])}
    return {name: found[canonicalize_name(name)] for name in NAMED}


if __name__ == "__main__":
    sys.exit(main())
