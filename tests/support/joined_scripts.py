"""Writes every script as the server gets it, and those of example kinds, into a directory: for the Lua linter."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sweeperd.config import Settings, load
from sweeperd.store import scripts
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import script_names, source
from sweeperd.sweep.configured import configured
from tests.support.documents import ROOT

#: The linter's options.
LUACHECK = ["--quiet", "--std", "lua51", "--read-globals", "redis", "KEYS", "ARGV", "cjson", "--max-line-length", "120"]
#: Generated lines are long, use a part of the shared functions, and give names again. A user's file sets its arguments.
GENERATED = "-- luacheck: no max line length, ignore 2 312 4 581"
#: A kind of the form that no example has.
JSON = {
    "name": "json",
    "index": "carts:ttl",
    "entry": "json",
    "key": "carts:{id}",
    "deadline": "expires.at",
    "active": {"state": ["HELD", "PAYING"]},
    "retention": "0s",
    "each": "order.items",
    "give_back": ["HINCRBY stock:{order.items.sku} free {order.items.qty:1}", "INCRBY carts:given 1"],
    "event": ["user", "points:0"],
}


def write_joined(target: Path) -> list[Path]:
    """One file for each script, and for each of the example kinds. Returns the files."""
    texts = {name: source(name) for name in script_names()} | dict(_of_kinds())
    files = {target / f"{name.replace('/', '-')}.lua": text for name, text in texts.items()}
    for file, text in files.items():
        file.write_text(text)
    return list(files)


def _of_kinds() -> Iterator[tuple[str, str]]:
    """The scripts that are generated for kinds: what sweeps, explains and walks."""
    examples = [load(path, {}) for path in sorted((ROOT / "examples").glob("*/config.toml"))]
    for settings in [*examples, Settings.model_validate({"kinds": [JSON]})]:
        for kind in (configured(each, settings, Keys("")) for each in settings.kinds):
            for script in (kind.script, kind.explainer, kind.index_check):
                yield script.name.replace(" ", "/"), f"{GENERATED}\n{script.source}\n"


@contextlib.contextmanager
def changed_scripts(change: Callable[[str, str], str]) -> Iterator[None]:
    """While the block lasts, a script that is loaded has the text that `change` makes of its name and its text."""
    original = scripts.source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "source", lambda name: change(name, original(name)))
        yield


if __name__ == "__main__":
    print(*LUACHECK, "--", *write_joined(Path(sys.argv[1])))
