"""How the result of each step is read, and how the page shows it."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import hypothesis
import pytest

from tools.release import audit, build, environment, readers
from tools.release.page import render
from tools.release.servers import by_line
from tools.release.step import Output, Result, Step


def output(directory: Path, text: str = "", **files: object) -> Output:
    for name, content in files.items():
        (directory / name.replace("_json", ".json")).write_text(json.dumps(content))
    return Output(0, text, directory)


def test_pytest(tmp_path: Path) -> None:
    text = "....\nproperty tests drew from --hypothesis-seed=17\n3 passed, 1 skipped, 9 deselected in 2.04s\n"
    assert readers.tests(output(tmp_path, text)) == {"passed": "3", "skipped": "1", "seed": "17"}
    with pytest.raises(ValueError, match="no counts"):
        readers.tests(output(tmp_path, "ImportError\n"))


def test_a_soak(tmp_path: Path) -> None:
    verdicts = [
        {"name": "S1", "claim": "memory", "found": "1.1 x", "holds": True},
        {"name": "S2", "claim": "latency", "found": "4 x", "holds": False},
    ]
    document = {"minutes": 30.0, "facts": {"seed": "7"}, "verdicts": verdicts}
    assert readers.soak("chaos.json", output(tmp_path, chaos_json=document)) == {
        "minutes": "30",
        "verdicts": "1 of 2 hold",
        "seed": "7",
        "S1: memory": "1.1 x",
        "S2: latency": "4 x",
    }


def test_the_simulation(tmp_path: Path) -> None:
    seeds = "500 seeds from 17 on: 41.7 virtual hours in 2000 s; "
    seeds += "12 faults, 11 actions of operators, 30 invariants; failed: none\n"
    assert readers.simulation(output(tmp_path, f"{seeds}27 of 28 planted bugs found; missed: no-heartbeat\n")) == {
        "seeds": "500",
        "first seed": "17",
        "virtual hours": "41.7",
        "faults": "12",
        "actions of operators": "11",
        "invariants": "30",
        "failed": "none",
        "planted bugs found": "27 of 28",
        "missed": "no-heartbeat",
    }
    with pytest.raises(ValueError, match="no totals"):
        readers.simulation(output(tmp_path, seeds))


def test_the_gate(tmp_path: Path) -> None:
    head = (
        "| ratio | server | baseline | now | change | allowed | holds? |\n| --- | --- | --- | --- | --- | --- | --- |\n"
    )
    unknown = "| grace cost | Redis 7.0 |  | 1.00 |  | 25% worse | no baseline |\n"
    first = "| expire cost | Redis 7.0 | 1.20 | 1.30 | 8% worse | 25% worse | yes |\n" + unknown
    second = "| expire cost | Redis 7.0 | 1.20 | 1.60 | 33% worse | 25% worse | no |\n"
    assert readers.gate(output(tmp_path, f"measuring\n{head}{first}\nmeasuring\n{head}{second}")) == {
        "expire cost, Redis 7.0": "1.30, 1.60 (baseline 1.20; holds in 1 of 2)",
        "grace cost, Redis 7.0": "1.00 (baseline none; holds in 0 of 1)",
    }
    with pytest.raises(ValueError, match="no table"):
        readers.gate(output(tmp_path, "Traceback"))


def test_a_bill_of_materials(tmp_path: Path) -> None:
    components = [
        {"name": "redis", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "requests", "licenses": [{"license": {"name": "License :: OSI Approved :: Apache Software License"}}]},
        {"name": "click", "licenses": [{"expression": "BSD-3-Clause"}]},
        {"name": "odd"},
    ]
    (tmp_path / "sbom.cdx.json").write_text(json.dumps({"components": components}))
    assert readers.sbom(output(tmp_path)) == {
        "components": "4",
        "Apache Software License": "1",
        "BSD-3-Clause": "1",
        "MIT": "1",
        "no licence named": "odd",
    }


def test_known_vulnerabilities() -> None:
    clean = {"name": "redis", "version": "7", "vulns": []}
    bad = {"name": "odd", "version": "1", "vulns": [{"id": "PYSEC-1"}]}
    skipped = {"name": "sweeperd", "skip_reason": "not on the index"}
    assert audit.read(json.dumps({"dependencies": [clean, skipped]})) == {
        "packages checked": "1",
        "known vulnerabilities": "none",
    }
    assert audit.read(json.dumps({"dependencies": [clean, bad]}))["known vulnerabilities"] == "odd PYSEC-1"
    with pytest.raises(ValueError, match="Expecting value"):
        audit.read("no connection")
    with pytest.raises(ValueError, match="none of the packages"):
        audit.read(json.dumps({"dependencies": [skipped]}))


def test_servers_are_named_tested_or_not() -> None:
    found = by_line(["Redis 7.0.15", "Redis 6.2.14", "Valkey 8.0.1", "Redis 99.1.0"])
    assert found["Redis 7.0"] == "Redis 7.0.15"
    assert found["Valkey 8"] == "Valkey 8.0.1"
    assert found["Valkey 9"].startswith("not tested")
    assert found["others"] == "Redis 99.1.0"


def test_the_environment_names_its_versions() -> None:
    packages = Path(hypothesis.__file__).parents[1]
    found = environment.versions(packages)
    assert found["hypothesis"] == hypothesis.__version__
    assert set(found) == set(environment.NAMED)


def test_builds_are_compared_byte_by_byte(tmp_path: Path) -> None:
    (tmp_path / "one.whl").write_bytes(b"one")
    before = build.hashes(tmp_path)
    assert before == build.hashes(tmp_path)
    (tmp_path / "one.whl").write_bytes(b"One")
    assert before != build.hashes(tmp_path)


STEP = Step("chaos", "load with faults", ("python", "-m", "tests.soak"), partial(readers.soak, "chaos.json"))
RESULT = Result(
    "chaos",
    "load with faults",
    "0123456789abcdef",
    "2026-01-02T03:04:05+00:00",
    1830.0,
    "python -m tests.soak",
    holds=True,
    figures={"seed": "7", "S1 | memory": "1.1 x"},
    host={"load average before": "0.5", "load average after": "1.5", "cores": "2"},
    files=("chaos.svg", "chaos.json"),
)


def test_the_page_shows_figures_plots_commit_and_host() -> None:
    page = render("0.1.0", [STEP], [RESULT])
    cells = ("holds", "`0123456789ab`", "2026-01-02T03:04:05+00:00", "30 min", "0.5 to 1.5 on 2 cores")
    assert f"| chaos | load with faults | {' | '.join(cells)} |" in page
    assert "seed: 7; S1 | memory: 1.1 x" in page


def test_the_page_says_on_which_commits_the_steps_were_run() -> None:
    other = replace(RESULT, step="soak", commit="fedcba9876543210")
    steps = [STEP, replace(STEP, name="soak")]
    assert "were run on commit `0123456789ab`." in render("0.1.0", steps, [RESULT, None])
    page = render("0.1.0", steps, [RESULT, other])
    assert "**not** run on one commit, but on 2: `0123456789ab` (1 step), `fedcba987654` (1 step)." in page
    page = render("0.1.0", steps, [RESULT, other], lambda commits: [f"{commits[0]}.py", f"{commits[1]}.py"])
    assert "Apart from evidence and the verdicts on mutants they differ in 0123456789ab.py, fedcba987654.py." in page
    page = render("0.1.0", steps, [RESULT, other], lambda _: ["README.md", *(f"docs/{n}.md" for n in range(10))])
    assert "they differ in 11 files: docs (10), the top folder (1)." in page
    page = render("0.1.0", steps, [RESULT, other], lambda _: [])
    assert "differ in nothing but evidence and the verdicts on mutants: `0123456789ab` (1 step), `fedc" in page
    versions = {"Python": "3.13.1", "system": "Linux-6", "servers": "Redis 7.0.15, Valkey 8.0.1"}
    page = render("0.1.0", steps, [replace(RESULT, host=RESULT.host | versions), None])
    assert "`python -m tests.soak` on Python 3.13.1; system Linux-6; servers Redis 7.0.15, Valkey 8.0.1" in page


def test_the_page_says_what_was_not_run_and_what_failed() -> None:
    assert "| chaos | load with faults | not run |" in render("0.1.0", [STEP], [None])
    unchecked = replace(RESULT, figures={"known vulnerabilities": "not checked: no database"})
    assert "| chaos | load with faults | not checked |" in render("0.1.0", [STEP], [unchecked])
    page = render("0.1.0", [STEP], [replace(RESULT, holds=False, trouble="S1 FAILED")])
    assert "**failed**" in page
    assert "S1 FAILED" in page
