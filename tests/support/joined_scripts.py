"""Write every script as the server gets it, with what it includes, into a directory: for the Lua linter."""

import sys
from pathlib import Path

from sweeperd.store.scripts import script_names, source

if __name__ == "__main__":
    target = Path(sys.argv[1])
    for name in script_names():
        (target / f"{name.replace('/', '-')}.lua").write_text(source(name))
