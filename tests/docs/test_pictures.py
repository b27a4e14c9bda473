"""The pictures of the documents are Mermaid that renders."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT, documents, name
from tests.support.eyes.browser import Browser, Page, needs_browser

PICTURES = [
    pytest.param(picture, id=f"{name(page)}-{number}")
    for page in documents()
    for number, picture in enumerate(re.findall(r"^```mermaid\n(.*?)^```", page.read_text("utf-8"), re.M | re.S))
]
#: Names a mermaid.min.js of version 11: `npm install mermaid` has it in node_modules/mermaid/dist.
MERMAID = os.environ.get("SWEEPERD_TEST_MERMAID", "")
PAGE = "<!doctype html><script src=mermaid.min.js></script><script>mermaid.initialize({startOnLoad: false})</script>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if not MERMAID:
        pytest.skip("SWEEPERD_TEST_MERMAID names no mermaid.min.js")
    folder = tmp_path_factory.mktemp("mermaid")
    (folder / "mermaid.min.js").symlink_to(Path(MERMAID).resolve())
    (folder / "page.html").write_text(PAGE, encoding="utf-8")
    with Browser() as browser:
        yield browser.open((folder / "page.html").as_uri())


@needs_browser
@pytest.mark.parametrize("picture", PICTURES)
def test_it_renders(picture: str, page: Page) -> None:
    assert page.run(f"mermaid.render('picture', {picture!r}).then(() => 'drawn', (error) => String(error))") == "drawn"


@pytest.mark.parametrize("picture", PICTURES)
def test_it_has_a_known_form(picture: str) -> None:
    """What shows without Mermaid at hand: the kind of picture, balanced brackets and quotes, no tabs."""
    first, *lines = picture.splitlines()
    assert re.fullmatch(r"flowchart (LR|TB)|sequenceDiagram|stateDiagram-v2|timeline", first)
    bare = "\n".join(lines)
    assert all(bare.count(left) == bare.count(right) for left, right in ("[]", "()", "{}"))
    assert bare.count('"') % 2 == 0
    assert bare.count("subgraph ") == len(re.findall(r"(?m)^ *end$", bare))


def test_there_are_the_pictures_that_the_documents_promise() -> None:
    assert len(PICTURES) >= 6, "states of an entry, the step, an event's way and its times, a deployment"
    assert (ROOT / "docs" / "images" / "demo.svg").read_text("utf-8").startswith("<svg ")
