"""The examples of the ledger in its docstring and in the documents run, and run again on what they left."""

import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest
import redis

from sweeperd import ledger
from sweeperd.ledger import Ledger
from tests.support.servers import Server

ROOT = Path(__file__).parents[3]
URL = "redis://127.0.0.1:6379/0"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    (document.name, block)
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for block in BLOCK.findall(document.read_text(encoding="utf-8"))
    if "sweeperd.ledger" in block
]


def test_the_docstring_twice(server: Server) -> None:
    text = ledger.__doc__
    assert text is not None
    example = doctest.DocTestParser().get_doctest(text.replace(URL, server.url), {}, "sweeperd.ledger", None, None)
    for _ in range(2):
        example.globs = {}
        assert doctest.DocTestRunner(verbose=False).run(example, clear_globs=False) == (0, len(example.examples))


@pytest.mark.parametrize("code", [code for _, code in EXAMPLES], ids=[name for name, _ in EXAMPLES])
def test_the_documents_twice(server: Server, code: str) -> None:
    assert URL in code
    printed = []
    for _ in range(2):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(code.replace(URL, server.url), "example", "exec"), {})
        printed.append(output.getvalue())
    shown = re.findall(r"# (\d+)$", code, re.MULTILINE)
    assert printed == ["".join(f"{value}\n" for value in shown)] * 2


def test_some_document_has_an_example() -> None:
    assert EXAMPLES


def test_from_url_with_a_prefix_and_close(server: Server, client: redis.Redis) -> None:
    with Ledger.from_url(server.url, prefix="{a}:") as book:
        book.open_budget("tenant:acme", "TOKENS", 5)
        connected = len(client.client_list())
    assert client.keys() == [b"{a}:budget:tenant:acme:TOKENS"]
    assert len(client.client_list()) == connected - 1
