"""The runbook has a section for each alert, and the commands in it exist."""

import re
import shlex

import pytest
from click.testing import CliRunner

from sweeperd.cli.app import _COMMANDS, main
from tests.support.documents import anchors
from tests.support.eyes.deployed import ROOT, alerts

RUNBOOK = ROOT / "docs" / "runbook.md"
#: What each section says; then, where it matters, what to avoid and when it can wait.
PARTS = ("Meaning", "Check", "Fix")


def sections() -> dict[str, str]:
    """Heading -> text."""
    _, *parts = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


def commands() -> list[str]:
    """What follows `sweeperd` on each command line: in a block of code, or between backticks."""
    text = RUNBOOK.read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    found = lines + re.findall(r"`(sweeperd [^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line.removeprefix("sweeperd ") for line in found if line.startswith("sweeperd ")]


def test_each_alert_has_its_section_and_each_section_its_alert() -> None:
    urls = [rule["annotations"]["runbook_url"] for rule in alerts()]
    assert urls == [f"https://sweeperd.github.io/sweeperd/latest/runbook/#{heading.lower()}" for heading in sections()]


@pytest.mark.parametrize("heading", sections())
def test_a_section_is_short_and_has_every_part(heading: str) -> None:
    text = sections()[heading]
    told = tuple(re.findall(r"^\*\*([\w ]+)\.?\*\*", text, re.MULTILINE))
    assert told in [(*PARTS, *more) for more in ((), ("Avoid",), ("Can wait",), ("Avoid", "Can wait"))]
    assert len(text.split()) <= 110


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_the_commands_exist_with_their_options(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "--once" or words[0] in _COMMANDS
    # What does not exist is refused before the help is shown.
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", RUNBOOK.read_text()):
        path, _, anchor = target.partition("#")
        page = RUNBOOK.parent / path if path else RUNBOOK
        assert page.exists()
        assert not anchor or anchor in anchors(page)
