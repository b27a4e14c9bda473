"""Write every script as the server gets it, with what it includes, into a directory: for the Lua linter."""

import importlib.resources
import sys
from pathlib import Path

from sweeperd.lua import source

#: Text that other scripts include; a script of its own it is not.
INCLUDES = {"int64"}

if __name__ == "__main__":
    target = Path(sys.argv[1])
    for file in importlib.resources.files("sweeperd").joinpath("scripts").iterdir():
        name = Path(file.name).stem
        if name not in INCLUDES:
            (target / file.name).write_text(source(name))
