"""The site builds without a warning: no dead link, and no page that the navigation leaves out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.site import REPOSITORY, published
from tests.support.documents import DOCS, ROOT, anchors


@pytest.mark.slow
def test_it_builds_with_warnings_as_errors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.docs.site", str(tmp_path / "site")]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    runbook = (tmp_path / "site" / "site" / "runbook" / "index.html").read_text(encoding="utf-8")
    assert not [anchor for anchor in anchors(DOCS / "runbook.md") if f'id="{anchor}"' not in runbook]
    assert (tmp_path / "site" / "site" / "search" / "search_index.json").exists()


def test_links_that_leave_the_documents_lead_to_the_repository() -> None:
    text = published(DOCS / "README.md")
    assert f"({REPOSITORY}CONTRIBUTING.md)" in text
    assert "(tutorial/first-kind.md)" in text
