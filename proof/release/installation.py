"""`python -m proof.release.installation` rehearses on the Cycles installation that the environment names."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from proof.release.figures import keep

#: Option -> the variable with its value. The admin key is in CYCLES_ADMIN_KEY.
OPTIONS = {"--runtime": "CYCLES_RUNTIME_URL", "--admin": "CYCLES_ADMIN_URL", "--redis": "CYCLES_REDIS_URL"}


def main() -> int:
    """Without an installation the step holds, as not checked."""
    given = [f"{option}={os.environ[name]}" for option, name in OPTIONS.items() if os.environ.get(name)]
    if len(given) < len(OPTIONS):
        keep({"installation": f"not checked: {', '.join(OPTIONS.values())} name none"})
        return 0
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "found.json")
        command = ["python", "-m", "proof.installation", *given, "--open-webhooks", "--out", str(out)]
        code = subprocess.run(command, check=False).returncode
        if out.exists():
            keep(json.loads(out.read_text(encoding="utf-8")))
    return code


if __name__ == "__main__":
    sys.exit(main())
