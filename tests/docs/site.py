"""
`python -m tests.docs.site DIRECTORY` builds the site there, with warnings as errors. With `--prepare` it only writes
the configuration and the pages, for `mike deploy -F DIRECTORY/mkdocs.yml`.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.documents import DOCS, LINK, ROOT

REPOSITORY = "https://github.com/sweeperd/sweeperd/blob/main/"
#: Title of a tab -> its pages, or the folder of its pages.
TABS: dict[str, str | list[str]] = {
    "Home": ["README.md"],
    "Tutorial": "tutorial",
    "How-to": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
    "Troubleshooting": ["troubleshooting.md", "runbook.md"],
    "Decisions": "decisions",
    "Evidence": "evidence",
}


def title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def navigation() -> str:
    """The lines of `nav`: a tab for each kind of page, and the pages of a folder by their titles."""
    lines = ["nav:"]
    for tab, pages in TABS.items():
        found = sorted((DOCS / pages).glob("*.md"), key=title) if isinstance(pages, str) else [DOCS / p for p in pages]
        lines += [f"  - {tab}:", *(f"      - {page.relative_to(DOCS)}" for page in found)]
    return "\n".join(lines) + "\n"


def published(page: Path) -> str:
    """The page, with links that leave docs/ pointing at the repository."""

    def target(link: str) -> str:
        path = Path(os.path.normpath(page.parent / link.partition("#")[0]))
        inside = "://" in link or link.startswith("#") or (path.is_relative_to(DOCS) and path.is_file())
        return link if inside else REPOSITORY + os.path.relpath(page.parent / link, ROOT)

    return LINK.sub(lambda link: f"]({target(link[1])})", page.read_text(encoding="utf-8"))


def prepare(directory: Path) -> Path:
    """Write pages and configuration; returns the configuration."""
    pages = directory / "docs"
    shutil.copytree(DOCS, pages)
    for page in pages.rglob("*.md"):
        page.write_text(published(DOCS / page.relative_to(pages)), encoding="utf-8")
    configuration = directory / "mkdocs.yml"
    configuration.write_text((ROOT / "mkdocs.yml").read_text(encoding="utf-8") + navigation(), encoding="utf-8")
    return configuration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--prepare", action="store_true")
    options = parser.parse_args()
    options.directory.mkdir(parents=True)
    configuration = prepare(options.directory.resolve())
    if not options.prepare:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(configuration)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
