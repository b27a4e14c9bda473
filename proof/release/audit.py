"""`python -m proof.release.audit VENV` looks for known vulnerabilities of what an environment has installed."""

import json
import subprocess
import sys
from pathlib import Path

from proof.release.figures import keep

#: How long the database may take, seconds.
LIMIT = 300
_NO_RESULT = "not checked: pip-audit gave no result, and its log says why"


def main() -> int:
    """Exit code 1 where a vulnerability is known. Without a result nothing is checked, and the figures say so."""
    (packages,) = (Path(sys.argv[1]) / "lib").glob("python*/site-packages")
    line = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json", "--path", str(packages)]
    try:
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
        figures = read(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        figures = {"known vulnerabilities": _NO_RESULT}
    keep(figures)
    return 0 if figures["known vulnerabilities"] in ("none", _NO_RESULT) else 1


def read(text: str) -> dict[str, str]:
    """What pip-audit printed. Raises ValueError if it is no result, or no package could be checked."""
    dependencies = json.loads(text)["dependencies"]
    found = [f"{one['name']} {vulnerability['id']}" for one in dependencies for vulnerability in one.get("vulns", ())]
    unknown = [one["name"] for one in dependencies if "vulns" not in one]
    checked = len(dependencies) - len(unknown)
    if not checked:
        raise ValueError("the database knows none of the packages")
    figures = {"packages checked": str(checked), "known vulnerabilities": ", ".join(found) or "none"}
    return figures | ({"packages that the database does not know": ", ".join(unknown)} if unknown else {})


if __name__ == "__main__":
    sys.exit(main())
