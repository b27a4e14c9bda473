"""The document of the status page."""

import base64
import hashlib
import re
from importlib import resources

import pytest

from sweeperd.web.status_page import HtmlPage

PAGES = ["search", "expired", "dead-letters", "quarantine"]
LINKS = {
    "index.html": ["data:,", *PAGES, "status.json", "status.json", "metrics", "readyz"],
    "entries.html": ["data:,", "./", *PAGES],
}


@pytest.mark.parametrize(("markup", "script"), [("index.html", "page.js"), ("entries.html", "entries.js")])
def test_the_document_needs_nothing_else_and_may_do_nothing_else(markup: str, script: str) -> None:
    document = HtmlPage(markup, script)
    text = document.body.decode()
    headers = dict(document.headers)
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        (inline,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
        assert len(inline) > 1000
    assert policy["default-src"] == "'none'"
    assert "'unsafe" not in headers["Content-Security-Policy"]
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == LINKS[markup]
    assert set(re.findall(r"https?://[^\"'`\s>]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert policy["form-action"] == policy["frame-ancestors"] == "'none'"


@pytest.mark.parametrize("name", ["common.js", "page.js", "entries.js"])
def test_texts_are_never_taken_for_markup(name: str) -> None:
    script = resources.files("sweeperd.web").joinpath("page", name).read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
