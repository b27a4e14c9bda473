"""Links lead somewhere, cited tests exist, and the README stays short."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.support.documents import DOCS, ROOT, anchors, cited_tests, documents, guides, links, name, prose

DOCUMENTS = pytest.mark.parametrize("document", documents(), ids=name)


@DOCUMENTS
def test_relative_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target in links(document):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or not file.is_relative_to(ROOT) or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


@DOCUMENTS
def test_cited_tests_exist(document: Path) -> None:
    missing = [cited for cited in cited_tests(document) if not exists(cited)]
    assert not missing


def exists(cited: str) -> bool:
    """Whether this file, folder or test exists: `tests/x`, `tests/x/test_y.py`, `tests/x/test_y.py::test_z`."""
    path, *names = cited.split("::")
    if "*" in path:
        return any(ROOT.glob(path))
    file = ROOT / path
    if not names:
        return file.exists()
    if not file.is_file():
        return False
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for part in names:
        found = [node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == part]
        if not found:
            return False
        body = found[0].body
    return True


def test_a_citation_that_is_wrong_is_noticed() -> None:
    assert exists("tests/docs/test_links.py::test_cited_tests_exist")
    assert not exists("tests/docs/test_links.py::test_that_was_renamed")
    assert not exists("tests/docs/test_that_was_moved.py")


@pytest.mark.parametrize("page", guides(), ids=name)
def test_a_page_says_whom_it_serves_and_what_to_read_next(page: Path) -> None:
    title, empty, first, *_, last = page.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ")
    assert not empty
    assert re.fullmatch(r"\*For .+\.\*", first)
    assert re.fullmatch(r"Next: \[[^]]+\]\([^)]+\)\.", last)


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=name)
def test_a_how_to_is_short(page: Path) -> None:
    assert len(prose(page).split()) <= 400


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900


def test_the_readme_of_the_package_index_has_absolute_links_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []


def test_every_document_is_linked_from_another() -> None:
    linked = {
        (document.parent / target.partition("#")[0]).resolve()
        for document in documents()
        for target in links(document)
        if "://" not in target and target.partition("#")[0]
    }
    alone = {document for document in documents() if document not in linked} - {ROOT / "README.md"}
    assert not alone
