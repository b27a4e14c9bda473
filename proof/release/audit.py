"""`python -m proof.release.audit VENV` looks for known vulnerabilities of what an environment has installed."""

import json
import subprocess
import sys
from pathlib import Path

from proof.release.figures import keep

#: How long the database may take, seconds.
LIMIT = 300


def main() -> int:
    """Exit code 1 where a vulnerability is known. Without a database nothing is checked, and the figures say so."""
    (packages,) = (Path(sys.argv[1]) / "lib").glob("python*/site-packages")
    line = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json", "--path", str(packages)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False)
        figures = read(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        figures = {"known vulnerabilities": "not checked: no database"}
    keep(figures)
    return 0 if figures["known vulnerabilities"] in ("none", "not checked: no database") else 1


def read(text: str) -> dict[str, str]:
    """What pip-audit printed. Raises ValueError if it is no result, or no package could be checked."""
    dependencies = json.loads(text)["dependencies"]
    found = [f"{one['name']} {vulnerability['id']}" for one in dependencies for vulnerability in one.get("vulns", ())]
    checked = sum("vulns" in one for one in dependencies)
    if not checked:
        raise ValueError("the database knows none of the packages")
    return {"packages checked": str(checked), "known vulnerabilities": ", ".join(found) or "none"}


if __name__ == "__main__":
    sys.exit(main())
