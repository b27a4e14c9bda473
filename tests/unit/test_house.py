"""Rules about the source that a linter cannot check. `docs/explanation/architecture.md` explains them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sweeperd"
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

#: A hand-written `__init__`, or a function that is not public, takes up to this many parameters, not counting `self`.
MOST_PARAMETERS = 7


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


def test_no_function_takes_many_parameters() -> None:
    counts = {
        f"{path}:{node.lineno} {node.name}": parameters(node)
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_exempt(path, node)
    }
    assert max(counts.values()) >= 5
    assert {name: count for name, count in counts.items() if count > MOST_PARAMETERS} == {}


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_tests_mirror_the_package(kind: str) -> None:
    for path in sorted((ROOT / "tests" / kind).rglob("test_*.py")):
        folder = path.parent.relative_to(ROOT / "tests" / kind)
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
