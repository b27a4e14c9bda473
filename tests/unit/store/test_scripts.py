"""What holds for the text of every Lua script: its header and its includes."""

import functools
import re

import pytest

from sweeperd.store.scripts import INCLUDE, Script, expand, own_text, script_names, source

SCRIPTS = script_names()
FRAGMENTS = script_names(INCLUDE)
EFFECTS = "include/effects"
#: The commands whose flags on Redis 6.2 have `random`.
CHANGING = (
    "HGETALL|HRANDFIELD|HSCAN|INFO|LASTSAVE|OBJECT|PTTL|RANDOMKEY|SCAN|SPOP|SRANDMEMBER|SSCAN|TIME|TTL|XACK|XADD|"
    "XAUTOCLAIM|XCLAIM|XINFO|XPENDING|XTRIM|ZRANDMEMBER|ZSCAN"
)
WRITING = re.compile(
    r"\b(DEL|H(DEL|INCRBY|SET)|INCRBY|[LR]PUSH|PEXPIRE|S(ADD|ET|REM)|X(ACK|ADD|CLAIM|DEL|GROUP|TRIM)|Z(ADD|REM))\b"
)
_INCLUDED = re.compile(r"-- @include ([\w/]+)")


@functools.cache
def code(name: str) -> str:
    """The text without its comments."""
    return re.sub(r"(^|\s)--.*", "", own_text(name))


def header(name: str) -> str:
    """The comment lines at the top, up to the first that is none."""
    return re.match(r"(?:--.*\n)*", own_text(name))[0]  # type: ignore[index]


@functools.cache
def names_of(fragment: str) -> set[str]:
    """The names that a fragment gives to the text after it: its locals outside of any block."""
    defined = re.findall(r"^local (?:function )?([\w, ]+)", code(fragment), re.MULTILINE)
    return {name.strip() for names in defined for name in names.split(",")}


@functools.cache
def words_of(name: str) -> set[str]:
    """The names that a text uses and does not define."""
    text = code(name)
    own = {
        word for names in re.findall(r"\blocal (?:function )?([\w, ]+)", text) for word in re.split(r",? +|,", names)
    }
    return {*re.findall(r"(?<![\w.])[A-Za-z_]\w*\b(?! *=)", text)} - own


def stated(name: str, kind: str) -> list[range]:
    """Which KEYS or ARGV the header states: `KEYS[1] ->`, `ARGV[1..4] ->`, `ARGV[3..] ->`, or `KEYS ->` for all."""
    lines = "\n".join(line for line in header(name).splitlines() if " -> " in line)
    found = re.findall(rf"\b{kind}\[(\d+)(\.\.)?(\d*)\]", lines)
    whole = [range(1, 1000)] if re.search(rf"^-- {kind} ->", lines, re.MULTILINE) else []
    return whole + [range(int(first), int(last or (999 if dots else first)) + 1) for first, dots, last in found]


def test_fragments_are_no_scripts() -> None:
    assert "sweep/expire" in SCRIPTS
    assert "include/clock" in FRAGMENTS
    assert not set(SCRIPTS) & set(FRAGMENTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_its_header_states_keys_arguments_and_reply(name: str) -> None:
    assert re.search(r"^-- Returns\b", header(name), re.MULTILINE)
    for kind in ("KEYS", "ARGV"):
        ranges = stated(name, kind)
        assert bool(ranges) >= (kind in code(name))
        for number in map(int, re.findall(rf"\b{kind}\[(\d+)\]", code(name))):
            assert any(number in known for known in ranges), f"{kind}[{number}]"


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_fragment_reads_neither_keys_nor_arguments(name: str) -> None:
    assert not re.search(r"\b(KEYS|ARGV)\b", own_text(name))


@pytest.mark.parametrize("name", SCRIPTS + FRAGMENTS)
def test_it_includes_what_it_uses(name: str) -> None:
    """Each file declares its own includes, so that none depends on what another happens to include."""
    included = {other if "/" in other else f"{INCLUDE}/{other}" for other in _INCLUDED.findall(own_text(name))}
    used = {other for other in FRAGMENTS if other != name and names_of(other) & words_of(name)}
    assert included - set(SCRIPTS) - {EFFECTS} == used


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "ops/explain"])  # its writes are not sent
def test_it_may_write_after_a_command_whose_answer_changes(name: str) -> None:
    """On Redis 6.2 with `lua-replicate-commands no` it has to ask for that, and before its first such command."""
    text = re.sub(r"(^|\s)--.*", "", source(name))
    first = re.search(rf"\b({CHANGING})\b", text)
    if first and WRITING.search(text):
        assert "replicate_commands()" in text[: first.start()], first[0]


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_fragment_stands_once_in_a_script(name: str) -> None:
    whole = source(name)
    assert "@include" not in whole
    for fragment in FRAGMENTS:
        body = [line for line in code(fragment).splitlines() if line]
        assert whole.count("\n".join(body[:2])) <= 1, fragment


def test_what_an_indented_include_brings_ends_with_its_block() -> None:
    texts = {
        "x/main": "do\n  -- @include one\nend\n-- @include two\n-- @include one\n",
        "include/one": "local one = 1\n",
        "include/two": "-- @include one\nlocal two = one\n",
    }
    assert expand(texts["x/main"], texts.__getitem__) == "do\nlocal one = 1\nend\nlocal one = 1\nlocal two = one\n"
    texts["x/main"] = "do\n  -- @include two\n\n  -- @include one\nend\ndo\n  -- @include one\nend\n"
    once, again = "do\nlocal one = 1\nlocal two = one\n\nend\n", "do\nlocal one = 1\nend\n"
    assert expand(texts["x/main"], texts.__getitem__) == once + again


def test_a_text_is_made_before_the_first_run_only() -> None:
    made: list[str] = []

    def text() -> str:
        made.append("text")
        return "return 1"

    script = Script("made", text)
    assert made == []
    assert (script.source, script.sha, script.source) == ("return 1", script.sha, "return 1")
    assert made == ["text"]
