"""Rules about the source that a linter cannot check. `docs/explanation/architecture.md` explains them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sweeperd"

#: A hand-written `__init__`, or a function that is not public, takes up to this many parameters, not counting `self`.
MOST_PARAMETERS = 7


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
    functions = [
        (str(path.relative_to(PACKAGE)), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(functions) > 1000
    many = [(path, function) for path, function in functions if parameters(function) > MOST_PARAMETERS]
    assert [f"{path} {function.name}" for path, function in many if not is_exempt(path, function)] == []


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_tests_mirror_the_package(kind: str) -> None:
    for path in sorted((ROOT / "tests" / kind).rglob("test_*.py")):
        folder = path.parent.relative_to(ROOT / "tests" / kind)
        mirrored = ROOT / folder if folder.parts[:1] == ("benchmarks",) else PACKAGE / folder
        assert mirrored.is_dir(), path
