"""The house: where files lie, how large a class is, which words the comments use. `docs/architecture.md` says why."""

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sweeperd"
TESTS = ROOT / "tests"
#: The folders below tests/: what each holds is in docs/architecture.md.
FOLDERS = {
    "mutants": "the product broken in one place after another",
    "deploy": "what lies in deploy/",
    "docs": "what the documents say",
    "examples": "the receivers of the documents, run",
    "e2e": "the installed command on real processes",
    "faults": "processes and networks that fail",
    "fixture": "recorded data",
    "integration": "several modules on one real Redis",
    "lua": "scripts on real servers",
    "property": "random work, and what must hold after it",
    "release": "the command that proves a version",
    "soak": "a long run under load",
    "support": "what tests share",
    "topology": "Sentinel and Cluster",
    "unit": "a mirror of the package, without a server",
}
#: Commands that only read: they send no webhook, and so need no HTTP library.
READ_ONLY = [
    ["status"],
    ["show"],
    ["expired"],
    ["check"],
    ["reconcile"],
    ["quarantine", "list"],
    ["dead-letters", "list"],
]

MOST_FILES, MOST_ATTRIBUTES = 10, 20
#: In 1,000 words of comment and docstring.
MOST_RIDDLES = 5.0
#: Words that stand for something that the sentence does not name.
RIDDLES = re.compile(
    r"\b(tell|tells|told|look|looks|looked|whoever|whatever|wherever|nobody|behind|meanwhile|beside|besides)\b",
    re.IGNORECASE,
)


@functools.cache
def classes() -> list[tuple[Path, ast.ClassDef]]:
    """Every class of the package, with its file."""
    return [
        (path.relative_to(PACKAGE), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]


def attributes(node: ast.ClassDef) -> set[str]:
    """What an instance has: the fields of the class's body, and all that its methods set on self."""
    fields = {
        line.target.id
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and not ast.unparse(line.annotation).startswith("ClassVar")
    }
    return fields | {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }


def prose(path: Path) -> str:
    """The comments and docstrings of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".lua":
        return " ".join(re.findall(r"--(.*)", text))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = (ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, documented))
    return " ".join([*comments, *filter(None, docstrings)])


def test_the_top_level_is_small() -> None:
    files = sorted(path.name for path in PACKAGE.iterdir() if path.is_file())
    assert len(files) <= MOST_FILES, files


def test_no_class_has_many_attributes() -> None:
    sizes = {f"{path}: {node.name}": len(attributes(node)) for path, node in classes()}
    assert max(sizes.values()) > 5
    assert {name: size for name, size in sizes.items() if size > MOST_ATTRIBUTES} == {}


def test_no_class_name_is_defined_twice() -> None:
    names = Counter(node.name for _, node in classes())
    assert {name for name, count in names.items() if count > 1} == set()


@pytest.mark.parametrize("folder", ["sweeperd", "tests"])
def test_comments_name_what_they_speak_of(folder: str) -> None:
    words, riddles = 0, Counter[str]()
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".lua"):
            text = prose(path)
            words += len(re.findall(r"\w+", text))
            riddles[str(path.relative_to(ROOT))] += len(RIDDLES.findall(text))
    assert 1000 * riddles.total() / words <= MOST_RIDDLES, riddles.most_common(20)


def test_each_folder_of_tests_has_its_name() -> None:
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(FOLDERS)


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_tests_mirror_the_package(kind: str) -> None:
    for path in sorted((TESTS / kind).rglob("test_*.py")):
        folder = path.parent.relative_to(TESTS / kind)
        mirrored = ROOT / folder if folder.parts[:1] == ("benchmarks",) else PACKAGE / folder
        assert mirrored.is_dir(), path


def test_commands_that_only_read_import_no_requests() -> None:
    lines = [f"main([*{command!r}, '--help'], standalone_mode=False)" for command in READ_ONLY]
    program = "\n".join(["import sys", "from sweeperd.cli import main", *lines, "assert 'requests' not in sys.modules"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") == len(READ_ONLY)
