"""Every command of the documents exists with its options, and is typed by a test or says why not."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from sweeperd.cli.app import main
from tests.docs.generate import PAGES, REFERENCE
from tests.docs.test_links import exists
from tests.support.documents import DOCS, ROOT, guides, name

#: Page -> the test that types its blocks, all but those that say why not.
TYPED = {
    "README.md": "tests/docs/test_quickstart.py::test_the_use_case_of_the_readme_works_word_for_word",
    "docs/tutorial/first-kind.md": "tests/docs/test_tutorial.py::test_the_tutorial_works_word_for_word",
    "docs/how-to/waiting-list.md": "tests/docs/test_kinds_walk.py::test_the_waiting_list_works_word_for_word",
    "docs/how-to/cart-lines.md": ("tests/docs/test_kinds_walk.py::test_the_cart_of_several_lines_works_word_for_word"),
    "docs/how-to/cron.md": "tests/docs/test_quickstart.py::test_the_cron_line_works_in_cron_s_environment",
    "docs/runbook.md": "tests/deploy/test_runbook.py::test_the_commands_exist_with_their_options",
}
#: What ends a command of a shell.
ENDS = "|&;<>"
PAGES_WITH_COMMANDS = [
    page
    for page in [ROOT / "README.md", *guides()]
    if page not in [REFERENCE / f"{generated}.md" for generated in PAGES]
    and re.search(r"^ *```(?:sh|console)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def lines(page: Path) -> list[str]:
    """What follows `sweeperd` on each line of its blocks of commands."""
    blocks = re.findall(
        r"^ *```(?:sh|console)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    found = []
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        command = re.search(r"(?:^ *(?:\$ )?(?:[A-Z_]+=\S+ )*|-- )sweeperd(?: (.*))?", line)
        if command and command[1]:
            found.append(command[1].strip())
    return found


ALL = sorted({line for page in [ROOT / "README.md", *guides()] for line in lines(page)})


@pytest.mark.parametrize("line", ALL)
def test_it_exists_with_its_options(line: str) -> None:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=ENDS)
    lexer.whitespace_split = True
    words = itertools.takewhile(lambda word: not set(word) <= set(ENDS), lexer)
    # What does not exist is refused before the help is shown.
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=name)
def test_a_page_is_typed_or_says_why_not(page: Path) -> None:
    if name(page) in TYPED:
        assert exists(TYPED[name(page)])
    else:
        assert re.search(r"<!-- not typed: .+ -->", page.read_text(encoding="utf-8"))


def test_each_typed_page_exists() -> None:
    assert set(TYPED) <= {name(page) for page in PAGES_WITH_COMMANDS}
    assert (DOCS / "README.md").exists()
