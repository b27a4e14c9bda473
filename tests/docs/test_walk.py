"""The page about the architecture names what exists, and the walk of one id enters no file more than twice."""

import ast
import re
from collections import Counter

from tests.support.documents import ROOT

ROW = re.compile(r"^\| \d+ \| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
FILE = re.compile(r"`([\w/]+\.py)`")


def text() -> str:
    return (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")


def steps() -> list[tuple[str, str]]:
    """File and function of each step."""
    return ROW.findall(text())


def test_each_file_and_folder_exists() -> None:
    (tree,) = re.findall(r"## Folders\n+```\nsweeperd/\n(.*?)```", text(), re.DOTALL)
    named = {*FILE.findall(text()), *re.findall(r"\b[a-z_]+(?:/|\.py)", tree)}
    assert not [file for file in sorted(named - {"include/"}) if not (ROOT / "sweeperd" / file).exists()]
    top = {path.name + "/" * path.is_dir() for path in (ROOT / "sweeperd").glob("[a-z]*") if path.name != "py.typed"}
    assert top <= named


def test_each_step_is_in_the_code() -> None:
    missing = [step for step in steps() if not defined(*step)]
    assert not missing


def defined(file: str, function: str) -> bool:
    """Whether the file defines the function, or the method `Class.method`."""
    body = ast.parse((ROOT / "sweeperd" / file).read_text(encoding="utf-8")).body
    for name in function.split("."):
        found = [node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name]
        if not found:
            return False
        body = found[0].body
    return True


def test_the_walk_is_short() -> None:
    entered = Counter(file for file, _ in steps())
    assert len(entered) <= 10
    assert max(entered.values()) <= 2
