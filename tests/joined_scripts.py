"""Write every script as the server gets it, with what it includes, into a directory: for the Lua linter."""

import re
import sys
from importlib import resources
from pathlib import Path

from sweeperd.lua import source

if __name__ == "__main__":
    target = Path(sys.argv[1])
    files = {Path(file.name).stem: file.read_text() for file in resources.files("sweeperd.scripts").iterdir()}
    # Text that another includes is no script of its own.
    included = {name for text in files.values() for name in re.findall(r"-- @include (\w+)", text)}
    for name in files.keys() - included:
        (target / f"{name}.lua").write_text(source(name))
