"""The house: where files lie, how large their parts are, which words they use. `docs/architecture.md` says why."""

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sweeperd"
TESTS = ROOT / "tests"
#: The folders below tests/: what each holds is in CONTRIBUTING.md.
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
    "simulation": "a whole installation in one thread, on virtual time",
    "installation": "a rehearsal on a running Cycles installation",
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

#: How many files stand at the top of the package.
MOST_FILES = 11

# Each rule below is a ratchet: a figure that is better than its bound lowers the bound in the same commit.

#: Files of the package.
MOST_MODULES = 125

#: A hand-written `__init__`, or a function that is not public, takes at most so many parameters, `self` left out.
MOST_PARAMETERS = 7
#: Lines of one module.
MOST_LINES = 600
#: In 1,000 words of comment and docstring: `where` at most, `if` and `when` together at least, and words that stand for
#: a thing that the sentence does not name at most.
MOST_WHERE, LEAST_IF, MOST_PRONOUNS = 1.0, 15.0, 30.0
#: A test that imports so many modules of the package from below their folders, or that patches, is white-box: a module
#: that moves breaks the test. What a folder's `__init__.py` exports is no such module. Of the lines of all tests, %.
INNER_MODULES, MOST_WHITE_BOX = 3, 19.9
WHERE = re.compile(r"\bwhere\b", re.IGNORECASE)
IF = re.compile(r"\b(if|when)\b", re.IGNORECASE)
PRONOUNS = re.compile(r"\b(it|its|that|which|those|one)\b", re.IGNORECASE)


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Each module of the package, parsed, by its path below the package."""
    return {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many parameters a caller hands to it."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def is_exempt(path: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the options of a command, or a call that users write, decide how many parameters it has."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return path.startswith("ledger/") or any(
        re.search(r"\b(click\.|command|pass_obj|pass_context|group)", decorator) for decorator in decorators
    )


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


def test_no_function_takes_many_parameters() -> None:
    counts = {
        f"{path}:{node.lineno} {node.name}": parameters(node)
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_exempt(path, node)
    }
    assert max(counts.values()) >= 5
    assert {name: count for name, count in counts.items() if count > MOST_PARAMETERS} == {}


def test_the_package_has_few_modules() -> None:
    count = len(list(PACKAGE.rglob("*.py")))
    assert count <= MOST_MODULES, f"{count} modules: look for the module that should grow"


def test_no_module_is_long() -> None:
    lines = {path: len((PACKAGE / path).read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_comments_say_if_and_name_their_subject() -> None:
    texts = [prose(path) for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".py", ".lua")]
    words = sum(len(re.findall(r"\w+", text)) for text in texts)
    where, conditions, pronouns = (
        1000 * sum(len(pattern.findall(text)) for text in texts) / words for pattern in (WHERE, IF, PRONOUNS)
    )
    assert (where <= MOST_WHERE, conditions >= LEAST_IF, pronouns <= MOST_PRONOUNS) == (True, True, True), (
        f"in 1,000 words: where {where:.1f}, if and when {conditions:.1f}, it, that, which … {pronouns:.1f}"
    )


def inner_modules(test: ast.Module) -> set[str]:
    """The modules in folders of the package that a test imports by their own name."""
    names = set()
    for node in ast.walk(test):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
    paths = {name: ROOT / f"{name.replace('.', '/')}.py" for name in names if name.startswith("sweeperd.")}
    return {name for name, path in paths.items() if path.parent != PACKAGE and path.exists()}


def patches(test: ast.Module) -> bool:
    calls = (node.func for node in ast.walk(test) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr in ("setattr", "patch") for call in calls)


def test_most_tests_stand_outside_of_the_folders_that_they_test() -> None:
    lines, white = 0, 0
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        test = ast.parse(text)
        lines += text.count("\n")
        white += text.count("\n") * (len(inner_modules(test)) >= INNER_MODULES or patches(test))
    assert 100 * white / lines <= MOST_WHITE_BOX, "import what the folder exports, or use a builder of tests/support"


def test_each_folder_of_tests_has_its_name() -> None:
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(FOLDERS)


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_tests_mirror_the_package(kind: str) -> None:
    for path in sorted((TESTS / kind).rglob("test_*.py")):
        folder = path.parent.relative_to(TESTS / kind)
        mirrored = ROOT / folder if folder.parts[:1] == ("benchmarks",) else PACKAGE / folder
        assert mirrored.is_dir(), path


def test_commands_that_only_read_import_neither_requests_nor_traces() -> None:
    lines = [f"main([*{command!r}, '--help'], standalone_mode=False)" for command in READ_ONLY]
    program = "\n".join(
        [
            "import sys",
            "from sweeperd.cli import main",
            *lines,
            "assert not {'requests', 'sweeperd.tracing'} & {*sys.modules}",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") == len(READ_ONLY)
