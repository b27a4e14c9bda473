"""The mutation tests' own tests: which mutants there are, and that a trial notices a planted fault."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.conftest import BINARIES
from tests.mutants import choice, lua, python, reach, report
from tests.mutants.mutant import Mutant
from tests.mutants.trial import Verdict

SCRIPT = """\
-- a == b in a comment, and redis.call('DEL', KEYS[1]) too
local due = tonumber(ARGV[1]) <= -5 -- a sign is no sum
if due then
  return 'a < b'
end
local sum = due + 1
redis.call('ZADD', KEYS[1], sum,
  ARGV[2])
return redis.call('ZREM', KEYS[1], ARGV[2])
"""


def changes(mutants: list[Mutant]) -> list[tuple[int, str, str]]:
    return [(mutant.line, mutant.kind, mutant.after) for mutant in mutants]


def test_a_script_is_broken_at_each_comparison_sum_and_write() -> None:
    mutants = lua.mutants("scripts/ops/one.lua", SCRIPT)
    assert changes(mutants) == [
        (2, "comparison", "local due = tonumber(ARGV[1]) < -5 -- a sign is no sum"),
        (6, "arithmetic", "local sum = due - 1"),
        (7, "write left out", "(nothing)"),
        (7, "write moved", "(before the check above it)"),
        (9, "write left out", "0"),
    ]
    left_out, moved, replied = (mutant.text.splitlines() for mutant in mutants[2:])
    assert "ZADD" not in "".join(left_out)
    assert moved.index("redis.call('ZADD', KEYS[1], sum,") < moved.index("if due then")
    assert replied[-1] == "return 0"


def test_a_module_is_broken_at_each_comparison_sum_condition_and_call() -> None:
    text = (
        "def f(a, b):\n    log.info('a')\n    send(a)\n    a += 1\n"
        "    if a and not b:\n        return 'x' + a\n    return a < b + 1\n"
    )
    assert changes(python.mutants("sweep/one.py", text)) == [
        (3, "call left out", "pass"),
        (4, "assignment left out", "pass"),
        (5, "condition", "(not (a and (not b)))"),
        (5, "and/or", "(a or not b)"),
        (7, "comparison", "(a <= b + 1)"),
        (7, "arithmetic", "(b - 1)"),
    ]


def test_equal_changes_of_one_file_have_names_of_their_own() -> None:
    mutants = lua.mutants("scripts/ops/one.lua", "a = b + 1\na = b + 1\n")
    assert [mutant.name for mutant in mutants] == [
        "scripts/ops/one.lua: a = b + 1 => a = b - 1",
        "scripts/ops/one.lua: a = b + 1 => a = b - 1 #2",
    ]


@pytest.mark.parametrize("path", choice.script_files(), ids=lambda path: path.stem)
def test_each_script_has_tests_that_exist(path: Path) -> None:
    tests = choice.tests_of(path)
    assert tests
    assert [test for test in tests if not (choice.ROOT / test).exists()] == []


def mutant_of(file: str, piece: str) -> Mutant:
    """A mutant of the first line of this file that holds this piece of text."""
    lines = (choice.PACKAGE / file).read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, 1) if piece in line)
    return Mutant(file, number, "planted", piece, "", "")


def test_a_module_s_mutant_is_tried_with_the_tests_that_run_its_line() -> None:
    mutant = mutant_of("delivery/webhook.py", "sha256=")
    slow, quick, own, other = "tests/a.py::slow", "tests/b.py::quick", "tests/test_webhook.py::own", "tests/c.py::other"
    lines = {mutant.line: frozenset({slow, quick, own}), 1: frozenset({other, reach.IMPORT})}
    constant = "tests/test_webhook.py::constant"
    found = reach.Reach({mutant.file: lines}, {slow: 4.0, quick: 1.0, own: 2.0, other: 1.0, constant: 0.0})
    plan = found.plan(45.0, mutant)
    assert plan.limits == {own: 20.0, quick: 15.0, slow: 30.0}
    assert list(plan.limits) == [quick, own, slow], "the quick ones first"
    assert plan.paths == ("tests/b.py", "tests/test_webhook.py", "tests/a.py")
    assert found.plan(45.0, replace(mutant, line=1)).limits.keys() == {own, other, quick, slow, constant}, (
        "it runs at import"
    )
    assert found.plan(45.0, mutant_of("delivery/http.py", "def ")).paths == (), "no test runs it"


def test_a_module_s_mutant_is_tried_on_an_older_server_where_only_that_runs_its_line() -> None:
    mutant = mutant_of("delivery/webhook.py", "sha256=")
    one, two = "tests/a.py::new", "tests/a.py::old"
    for tests, tried in (({one, two}, [one]), ({two}, [two])):
        found = reach.Reach({mutant.file: {mutant.line: frozenset(tests)}}, {one: 2.0, two: 1.0}, frozenset({two}))
        assert list(found.plan(45.0, mutant).limits) == tried


def test_what_was_measured_is_read_without_tests_that_are_no_more(tmp_path: Path) -> None:
    here, gone = "tests/mutants/test_mutants.py::here", "tests/mutants/test_gone.py::gone"
    data = CoverageData(str(tmp_path / "coverage"))
    for context, line in (("", 1), (f"{here}|run", 2), (f"{gone}|setup", 2), (f"{gone}|run", 3)):
        data.set_context(context)
        data.add_lines({"sweeperd/delivery/webhook.py": [line]})
    data.write()
    record = {"seconds": {here: 1.0, gone: 2.0}, "older": [here]}
    (tmp_path / "record.json").write_text(json.dumps(record), encoding="utf-8")
    found = {1: {reach.IMPORT}, 2: {here}, 3: set[str]()}
    lines = {"delivery/webhook.py": {line: frozenset(tests) for line, tests in found.items()}}
    assert reach.reached(tmp_path, jobs=1) == reach.Reach(lines, {here: 1.0}, frozenset({here}))


def test_tests_are_left_out_that_would_take_too_long() -> None:
    mutant = mutant_of("delivery/webhook.py", "sha256=")
    seconds = {f"tests/a.py::{number}": 20.0 + number for number in range(4)}
    found = reach.Reach({mutant.file: {mutant.line: frozenset(seconds)}}, seconds)
    assert list(found.plan(45.0, mutant).limits) == ["tests/a.py::0", "tests/a.py::1"]


def test_each_explained_mutant_is_kept_as_a_survivor() -> None:
    """An explanation of a mutant that is caught, or is no more, would go unnoticed otherwise."""
    survivors = {
        one["mutant"] for name in ("lua", "python") for one in report.read(name) if one["verdict"] == Verdict.SURVIVED
    }
    assert set(report.explanations()) <= survivors


#: Tries a planted mutant, and the product as it is, in a process that has not imported the product yet.
TRIAL = """
import sys
from pathlib import Path
from tests.mutants.choice import PACKAGE
from tests.mutants.mutant import Mutant
from tests.mutants.trial import Plan, Trials

file, old, new, test, folder, servers = sys.argv[1:]
text = (PACKAGE / file).read_text(encoding="utf-8")
assert old in text
trials = Trials(Path(folder), jobs=2)
for mutant in (Mutant(file, 1, "planted", "", "", text.replace(old, new)), None):
    trials.start(mutant, Plan([test], servers=servers))
assert trials.full
for trial in sorted((trials.wait(), trials.wait()), key=lambda trial: trial.mutant.file):
    print(trial.mutant.file or "nothing", trial.verdict, trial.caught_by.partition("::")[0])
assert trials.idle
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "test"),
    [
        ("delivery/webhook.py", "sha256=", "sha512=", "tests/unit/delivery/test_signing.py"),
        ("scripts/include/kind_pattern.lua", "to < from - 1", "to > from - 1", "tests/lua/kinds/test_patterns.py"),
        (
            "scripts/include/deadline.lua",
            "at <= expires_at then",
            "at < expires_at then",
            "tests/lua/test_expire_clock.py",
        ),
    ],
)
def test_a_trial_tells_a_mutant_from_the_product(file: str, old: str, new: str, test: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRIAL, file, old, new, test, str(tmp_path), "newest"]
    done = subprocess.run(command, cwd=choice.ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines(), done.stderr) == (["nothing survived ", f"{file} caught {test}"], "")


@pytest.mark.skipif(len(BINARIES) < 2, reason="there is one Redis only")
@pytest.mark.parametrize(("servers", "verdict"), [("newest", "survived"), ("older", "caught")])
def test_a_script_is_tried_on_older_servers_too(servers: str, verdict: str, tmp_path: Path) -> None:
    """If it tries XACK first, a full Redis 6.2 takes the later writes; newer ones are asked for the right only."""
    file, test = "scripts/delivery/begin_replay.lua", "tests/integration/outbox/test_replay_store.py"
    call = "no_right('XACK', KEYS[1]) or "
    command = [sys.executable, "-c", TRIAL, file, call, "", test, str(tmp_path), servers]
    done = subprocess.run(command, cwd=choice.ROOT, capture_output=True, text=True, check=False)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0] == "nothing survived", done.stderr
    assert lines[1].startswith(f"{file} {verdict}")
