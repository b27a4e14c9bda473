"""The pages about kinds, word for word in a fresh directory: from nothing to a swept kind."""

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import redis

from sweeperd.config import load
from sweeperd.config.templates import FORMS
from sweeperd.kit.samples import read_samples
from tests.docs.shell import typed
from tests.support.documents import DOCS, ROOT
from tests.support.servers import Server
from tests.support.streams import entries

README = (ROOT / "README.md").read_text(encoding="utf-8")
WAITING = (DOCS / "how-to" / "waiting-list.md").read_text(encoding="utf-8")
KIT = (DOCS / "explanation" / "kit.md").read_text(encoding="utf-8")
KINDS = (DOCS / "reference" / "kinds.md").read_text(encoding="utf-8")


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_waiting_list_works_word_for_word(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    (script,), (settings,) = blocks("lua", WAITING), blocks("toml", WAITING)
    (tmp_path / "offer.lua").write_text(script)
    (tmp_path / "config.toml").write_text(settings)
    (printed,) = typed(WAITING, tmp_path, redis_port=server.port)
    assert "FAILED" not in printed
    assert "a protected entry stays" in printed
    assert printed.endswith("OPEN\nbob\nada\n")
    assert client.hget("offers:o1", "state") == b"LAPSED"
    assert client.hget("shows:hamlet", "free") == b"0"
    ((_, event),) = entries(client, "sweeperd:events")
    assert (event[b"type"], event[b"data.customer"]) == (b"offer.expired", b"ada")


@pytest.mark.slow
def test_the_cart_of_several_lines_works_word_for_word(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "cart-lines.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"^   ```toml\n(.*?)^   ```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "config.toml").write_text(textwrap.dedent(settings))
    proof, swept = typed(page, tmp_path, redis_port=server.port)
    assert "FAILED" not in proof
    assert swept.split()[-4:] == ["10", "0", "5", "0"]


def test_the_script_and_the_samples_of_the_document_work(tmp_path: Path) -> None:
    (script,), (samples,) = blocks("lua", KINDS), blocks("json", KIT)
    (tmp_path / "x.lua").write_text(script)
    (tmp_path / "samples.json").write_text(samples)
    kind = tomllib.loads(blocks("toml", README)[0])["kinds"][0]
    lines = [f'{name} = "{kind[name]}"' for name in ("name", "index", "key", "deadline")]
    more = ['ended = { state = "EXPIRED" }', 'writes = ["permits:*"]', 'script = "file:x.lua"']
    (tmp_path / "config.toml").write_text("\n".join(["[[kinds]]", *lines, *more]))
    (loaded,) = load(tmp_path / "config.toml", {}).kinds
    (sample,) = read_samples(tmp_path / "samples.json", loaded)
    assert sample.books == (("seats:hamlet free", "seats:hamlet held"),)


@pytest.mark.slow
def test_the_books_of_the_document_hold(tmp_path: Path) -> None:
    """With samples of its own, and with those that are derived."""
    (fixture,) = (block for block in blocks("python", KIT) if "def books" in block)
    for name, text in (
        ("conftest.py", fixture),
        ("config.toml", blocks("toml", README)[0]),
        ("samples.json", blocks("json", KIT)[0]),
    ):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--sweeperd-config", "config.toml"]
    for samples in ([], ["--sweeperd-samples", "seat-hold=samples.json"]):
        done = subprocess.run([*command, *samples], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_document_lists_every_command() -> None:
    assert not [name for name in FORMS if f"`{name}" not in KINDS]
