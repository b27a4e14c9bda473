"""`python -m proof.release.build` builds wheel and sdist twice into RELEASE_DIR and compares them byte by byte."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from proof.release.figures import directory, keep


def main() -> int:
    """Exit code 1 where the two builds differ."""
    # The moment of the commit stands for the moment of the build, so that a build of another day is the same.
    epoch = subprocess.run(["git", "log", "-1", "--format=%ct"], capture_output=True, text=True, check=True).stdout
    env = os.environ | {"SOURCE_DATE_EPOCH": epoch.strip()}
    builds = []
    for name in ("first", "second"):
        out = directory() / name
        subprocess.run([sys.executable, "-m", "build", "--outdir", str(out)], env=env, check=True)
        builds.append(hashes(out))
    for file in (directory() / "first").iterdir():
        shutil.copyfile(file, directory() / file.name)
    same = builds[0] == builds[1]
    digests = {f"sha256 of {name}": digest for name, digest in builds[0].items()}
    keep(digests | {"reproducible": "yes, built twice and compared" if same else "no"})
    if not same:
        print(f"the two builds differ: {builds[0]} and {builds[1]}", file=sys.stderr)
        return 1
    return 0


def hashes(folder: Path) -> dict[str, str]:
    """File -> its SHA-256."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


if __name__ == "__main__":
    sys.exit(main())
