"""Makes mutants of a Lua script: swapped comparisons and arithmetic, omitted writes, writes moved before a check."""

import re
from collections.abc import Iterator

from proof.mutants.mutant import Mutant, numbered

#: Everything in which an operator is no operator, then the operators, longest first.
_TOKEN = re.compile(
    r"""(?P<skip>--\[\[.*?\]\]|--[^\n]*|\[\[.*?\]\]|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|\s+)"""
    r"|(?P<operator>==|~=|<=|>=|\.\.\.|\.\.|[-+*/%<>])"
    r"|(?P<other>\w+(?:\.\d+)?|.)",
    re.DOTALL,
)
_COMPARISON = {"==": "~=", "~=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*"}
#: `text + 0` is how a script makes a number of a text; `text - 0` is the same number.
_ZERO = re.compile(r"[+-] 0(?![\w.])")
#: After these a minus is a sign.
_BEFORE_SIGN = {"(", ",", "=", "{", "return", "and", "or", "==", "~=", "<", "<=", ">", ">=", "[", "then", "not"}

_WRITES = (
    "DEL|EXPIRE|HDEL|HINCRBY|HSET|INCRBY|LPUSH|PERSIST|PEXPIRE|PUBLISH|RPUSH|SADD|SET|SREM|XACK|XADD|XCLAIM|XDEL|"
    "XGROUP|XTRIM|ZADD|ZREM"
)
#: A call that writes; one of unpacked words is a write of a plan.
_WRITE = re.compile(rf"(?:redis\.)?p?(?:call|attempt)\((?:'(?:{_WRITES})'|(?:table\.)?unpack\()")


def mutants(file: str, text: str) -> list[Mutant]:
    """All mutants of one script or fragment, in the order of its lines."""
    found = [*_operators(file, text), *_writes(file, text)]
    return numbered(sorted(found, key=lambda mutant: mutant.line))


def _operators(file: str, text: str) -> Iterator[Mutant]:
    previous = ""
    for token in _TOKEN.finditer(text):
        if token["skip"] is not None:
            continue
        operator = token["operator"]
        signed = operator == "-" and previous in _BEFORE_SIGN
        if operator in _COMPARISON:
            yield _swapped(file, text, token.start(), operator, _COMPARISON[operator], "comparison")
        elif operator in _ARITHMETIC and not signed and not _ZERO.match(text, token.start()):
            yield _swapped(file, text, token.start(), operator, _ARITHMETIC[operator], "arithmetic")
        previous = token[0]


def _swapped(file: str, text: str, at: int, old: str, new: str, kind: str) -> Mutant:
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    changed = text[:at] + new + text[at + len(old) :]
    before = text[start:end].strip()
    after = changed[start : end + len(new) - len(old)].strip()
    return Mutant(file, text.count("\n", 0, at) + 1, kind, before, after, changed)


def _writes(file: str, text: str) -> Iterator[Mutant]:
    comments = [
        (token.start(), token.end()) for token in _TOKEN.finditer(text) if (token["skip"] or "").startswith("--")
    ]
    for write in _WRITE.finditer(text):
        if any(start <= write.start() < end for start, end in comments):
            continue
        start, end = write.start(), _closing(text, write.start())
        line = text.count("\n", 0, start) + 1
        before = " ".join(text[start:end].split())
        line_start = text.rfind("\n", 0, start) + 1
        if text[line_start:start].strip():
            # Its reply is used: the reply of a write that changed nothing stands there instead.
            reply = "'0-1'" if "'XADD'" in write[0] else "0"
            yield Mutant(file, line, "write left out", before, reply, text[:start] + reply + text[end:])
            continue
        yield Mutant(file, line, "write left out", before, "(nothing)", text[:start] + text[end:])
        moved = _before_check(text, line_start, end)
        if moved is not None:
            yield Mutant(file, line, "write moved", before, "(before the check above it)", moved)


def _closing(text: str, start: int) -> int:
    """Where the call that begins at `start` ends: after the bracket that closes its first one."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if token[0] == ")" and not depth:
            return token.end()
    raise ValueError(f"a call is not closed: {text[start : start + 60]!r}")


def _before_check(text: str, start: int, end: int) -> str | None:
    """
    The text with the statement [start, end) moved before the nearest check above it in its own block: an `if` of the
    same indentation with a `return` in it. None where there is none.
    """
    statement = text[start:end]
    indentation = len(statement) - len(statement.lstrip(" "))
    lines = text[:start].splitlines(keepends=True)
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        depth = len(line) - len(line.lstrip(" "))
        if line.strip() and depth < indentation:
            return None
        if depth == indentation and line.lstrip().startswith("if ") and "return" in "".join(lines[number:]):
            return "".join(lines[:number]) + statement + "\n" + "".join(lines[number:]) + text[end:]
    return None
