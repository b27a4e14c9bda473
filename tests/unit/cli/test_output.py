"""What the subcommands print, and to whom."""

import io
import json

import click
import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.text import Text

from sweeperd.cli.output import Cell, Output, printable, shortened
from sweeperd.cli.screen import fitted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größe 数", "größe 数"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc\rd\x00", "a\\nb\\tc\\rd\\x00"),
        ("a\u202eb\u2028c\u0085", "a\\u202eb\\u2028c\\x85"),
        ("a\udcff\udcfeb\ud800", "a\\xff\\xfeb\\ud800"),
        (17, "17"),
    ],
)
def test_nothing_that_a_terminal_would_obey_is_printed(text: object, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_name_shows_both_its_ends() -> None:
    assert shortened("a" * 9_000 + "the end") == "a" * 52 + "…the end"
    assert len(shortened("a" * 10_000)) == 60
    assert shortened("short") == "short"


def test_elsewhere_than_on_a_terminal_a_table_is_tab_separated_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 10_000
    Output(as_json=False).table(["tenant", "amount"], [["a\tb", Cell(5, "red")], [long, None]])
    assert capsys.readouterr().out == f"tenant\tamount\na\\tb\t5\n{long}\t\n"


def test_json_is_the_only_thing_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.say("for people")
    output.json({"tenant": "a\x1b"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"tenant": "a\x1b"}
    assert "\x1b" not in out


def test_markup_in_a_cell_is_text() -> None:
    assert printed(["tenant"], [["[bold]acme[/bold]"]]) == ["tenant", "[bold]acme[/bold]"]


def printed(columns: list[str], rows: list[list[object]], width: int = 80) -> list[str]:
    """The lines on a terminal of this width."""
    console = Console(width=width, file=io.StringIO(), markup=False)
    shown = fitted(columns, rows, width)
    with console.capture() as capture:
        console.print(shown, soft_wrap=isinstance(shown, Text))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_columns_that_say_nothing_are_left_out() -> None:
    rows: list[list[object]] = [["default", "a", None, 1], ["default", "b", "", 0]]
    assert printed(["shard", "id", "group", "held"], rows) == ["id  held", "a   1", "b   0"]
    rows[1][0] = "eu"
    assert printed(["shard", "id", "group", "held"], rows)[0] == "shard    id  held"


def test_a_table_that_is_too_wide_becomes_records_and_no_id_is_broken() -> None:
    long = "evt_" + "x" * 100
    lines = printed(["id", "reason", "state"], [[long, "RESERVED_UNDERFLOW", "ACTIVE"], ["short", "", "ACTIVE"]])
    first = [f"id      {long}", "reason  RESERVED_UNDERFLOW", "state   ACTIVE"]
    assert lines == [*first, "", "id      short", "state   ACTIVE"]


def test_a_value_wraps_and_is_never_cut() -> None:
    lines = printed(["event", ""], [["metadata", "x" * 500]])
    assert "".join(lines).count("x") == 500
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("as_json", [False, True])
def test_where_nobody_can_be_asked_a_change_needs_yes(as_json: bool) -> None:
    with CliRunner().isolation():  # its standard input is no terminal
        output = Output(as_json=as_json)
        output.confirm("Drop all?", yes=True)
        with pytest.raises(click.UsageError, match="--yes"):
            output.confirm("Drop all?", yes=False)
