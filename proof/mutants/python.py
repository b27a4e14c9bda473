"""Makes mutants of a Python module: swapped comparisons and arithmetic, negated conditions, omitted statements."""

import ast
from collections.abc import Iterator

from proof.mutants.mutant import Mutant, numbered

_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
}


def mutants(file: str, text: str) -> list[Mutant]:
    """All mutants of one module, in the order of its lines. What only writes a log line is left as it is."""
    tree = ast.parse(text)
    found = [mutant for node in ast.walk(tree) for mutant in _of(file, text, node)]
    return numbered(sorted(found, key=lambda mutant: mutant.line))


def _of(file: str, text: str, node: ast.AST) -> Iterator[Mutant]:
    match node:
        case ast.Compare(ops=[operator], left=left, comparators=[right]) if type(operator) in _COMPARISON:
            swapped = ast.Compare(left, [_COMPARISON[type(operator)]()], [right])
            yield _replaced(file, text, node, f"({ast.unparse(swapped)})", "comparison")
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC and not _is_text(node):
            swapped_sum = ast.BinOp(left, _ARITHMETIC[type(operator)](), right)
            yield _replaced(file, text, node, f"({ast.unparse(swapped_sum)})", "arithmetic")
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare | ast.Constant):
            yield _replaced(file, text, test, f"(not ({ast.unparse(test)}))", "condition")
        case ast.BoolOp(op=operator, values=values):
            other = ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
            yield _replaced(file, text, node, f"({ast.unparse(other)})", "and/or")
        case ast.Expr(value=ast.Call() as call) if not _logs(call):
            yield _replaced(file, text, node, "pass", "call left out")
        case ast.AugAssign():
            yield _replaced(file, text, node, "pass", "assignment left out")
        case _:
            return


def _replaced(file: str, text: str, node: ast.expr | ast.stmt, new: str, kind: str) -> Mutant:
    start = _offset(text, node.lineno, node.col_offset)
    end = _offset(text, node.end_lineno or 0, node.end_col_offset or 0)
    old = " ".join(text[start:end].split())
    return Mutant(file, node.lineno, kind, old, new, text[:start] + new + text[end:])


def _offset(text: str, line: int, column: int) -> int:
    """Where a place given by line and by bytes from its start is in the text."""
    lines = text.splitlines(keepends=True)
    return sum(len(one) for one in lines[: line - 1]) + len(lines[line - 1].encode()[:column].decode())


def _is_text(node: ast.BinOp) -> bool:
    """Whether strings are joined or filled: what is wrong there is a spelling."""
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def _logs(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in {"log", "_log", "logger"}
