"""The tutorial, typed word for word: with what it prints, and with the kills."""

from pathlib import Path

import pytest

from tests.docs.shell import typed
from tests.support.documents import DOCS


@pytest.mark.slow
def test_the_tutorial_works_word_for_word(tmp_path: Path) -> None:
    typed((DOCS / "tutorial" / "first-kind.md").read_text(encoding="utf-8"), tmp_path)
