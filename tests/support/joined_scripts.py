"""Write every script as the server gets it, with what it includes, into a directory: for the Lua linter."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sweeperd.store import scripts
from sweeperd.store.scripts import script_names, source

#: The linter's options.
LUACHECK = ["--quiet", "--std", "lua51", "--read-globals", "redis", "KEYS", "ARGV", "cjson", "--max-line-length", "120"]


def write_joined(target: Path) -> list[Path]:
    """One file for each script. Returns the files."""
    files = [target / f"{name.replace('/', '-')}.lua" for name in script_names()]
    for name, file in zip(script_names(), files, strict=True):
        file.write_text(source(name))
    return files


@contextlib.contextmanager
def changed_scripts(change: Callable[[str, str], str]) -> Iterator[None]:
    """While the block lasts, a script that is loaded has the text that `change` makes of its name and its text."""
    original = scripts.source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "source", lambda name: change(name, original(name)))
        yield


if __name__ == "__main__":
    print(*LUACHECK, "--", *write_joined(Path(sys.argv[1])))
