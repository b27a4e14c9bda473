"""Steps are run up to the first that fails, and each result is kept with its commit."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.release.__main__ import choose, clone, main
from tools.release.runner import Place, differing_files, run, run_all, still_counts
from tools.release.step import Figures, Output, Step, read
from tools.release.steps import Options, steps


def git(root: Path, *arguments: str) -> None:
    author = ["-c", "user.name=one", "-c", "user.email=one@example.com"]
    subprocess.run(["git", "-C", str(root), *author, *arguments], check=True, capture_output=True)


def commit(root: Path, file: str, text: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", text)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A repository with one commit."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path / "root"
    root.mkdir()
    git(root, "init", "-q")
    (root / ".gitignore").write_text("dist/\n")
    commit(root, "code.py", "first")
    made = Place(root, tmp_path / "work" / "clone", tmp_path / "work", root / "dist" / "evidence" / "0.1.0")
    clone(made)
    return made


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def counted(output: Output) -> Figures:
    return {"lines": str(len(output.text.splitlines()))}


GOOD = Step("good", "that it works", python("print('one'); print('two')"), counted)
BAD = Step("bad", "that it fails", python("print('so it is'); raise SystemExit(3)"))
LATER = Step("later", "what comes after", python(""))


def test_a_failing_step_stops_the_release(place: Place) -> None:
    results = run_all([GOOD, BAD, LATER], place, {}, resume=False)
    assert [(result.step, result.holds) for result in results] == [("good", True), ("bad", False)]
    assert results[0].figures == {"lines": "2"}
    assert "so it is" in results[1].trouble
    assert read(place.results, "later") is None


def test_a_result_is_kept_with_its_commit_and_host(place: Place) -> None:
    result = run(GOOD, place, {})
    run_all([GOOD], place, {}, resume=False)
    kept = read(place.results, "good")
    assert kept is not None
    assert kept.commit == result.commit == place.commit
    assert kept.began.endswith("+00:00")
    assert {"load average before", "load average after", "cores", "Python", "system", "servers"} <= kept.host.keys()


def test_no_path_of_the_machine_is_kept(place: Place) -> None:
    step = Step("bad", "it", python(f"print('{place.clone}/x {place.work}/y {place.root}/z'); raise SystemExit(1)"))
    result = run(step, place, {})
    assert result.trouble == "CLONE/x WORK/y ROOT/z\n"
    assert result.command.startswith("python -c ")
    assert str(place.work.parent) not in result.command


def test_a_result_names_the_commit_that_was_tried(place: Place) -> None:
    """Work in the repository goes on while a step runs for hours."""
    tried = place.commit
    commit(place.root, "code.py", "second")
    assert run(GOOD, place, {}).commit == tried != place.commit


def test_a_resumed_release_leaves_out_what_held_on_this_commit(place: Place, tmp_path: Path) -> None:
    count = tmp_path / "count"
    counting = Step("good", "", python(f"open({str(count)!r}, 'a').write('x')"))
    run_all([counting, BAD], place, {}, resume=True)
    run_all([counting, LATER], place, {}, resume=True)
    assert count.read_text() == "x"
    run_all([counting], place, {}, resume=False)
    assert count.read_text() == "xx"
    assert not still_counts(read(place.results, "bad"), place)

    commit(place.root, "tests/mutants/results/lua.json", "verdicts")
    assert still_counts(read(place.results, "good"), place)
    first = place.commit
    commit(place.root, "docs/evidence/0.1.0.md", "page")
    assert differing_files(place, [first, place.commit]) == []
    commit(place.root, "code.py", "second")
    assert not still_counts(read(place.results, "good"), place)
    assert differing_files(place, [first, place.commit]) == ["code.py"]
    assert differing_files(place, [first, "0" * 40]) is None, "a commit that is not here"


def test_a_result_that_cannot_be_read_is_a_failure(place: Place) -> None:
    def missing(output: Output) -> Figures:
        return {"text": (output.directory / "missing.json").read_text()}

    result = run(Step("odd", "", python("print('half way')"), missing), place, {})
    assert not result.holds
    assert "half way" in result.trouble
    assert "missing.json" in result.trouble


def test_a_command_that_is_not_there_is_a_failure(place: Place) -> None:
    result = run(Step("odd", "", ("no-such-command",)), place, {})
    assert not result.holds
    assert "no-such-command" in result.trouble


def test_files_are_kept_with_the_evidence(place: Place) -> None:
    writes = "import os, pathlib; pathlib.Path(os.environ['RELEASE_DIR'], 'plot.svg').write_text('<svg/>')"
    result = run(Step("plot", "", python(writes), keeps=("plot.svg", "never.svg")), place, {})
    assert result.files == ("plot.svg",)
    assert (place.kept / "plot.svg").read_text() == "<svg/>"


def test_a_picture_is_kept_as_it_is(place: Place) -> None:
    writes = "import os, pathlib; pathlib.Path(os.environ['RELEASE_DIR'], 'plot.png').write_bytes(b'\\x89PNG\\r\\n')"
    assert run(Step("plot", "", python(writes), keeps=("plot.png",)), place, {}).files == ("plot.png",)
    assert (place.kept / "plot.png").read_bytes() == b"\x89PNG\r\n"


def test_no_path_of_the_machine_is_in_a_kept_file(place: Place) -> None:
    writes = f"import os, pathlib; pathlib.Path(os.environ['RELEASE_DIR'], 'sbom').write_text('file://{place.work}/x')"
    run(Step("sbom", "", python(writes), keeps=("sbom",)), place, {})
    assert (place.kept / "sbom").read_text() == "file://WORK/x"


def test_the_clone_is_clean_and_of_this_commit(place: Place) -> None:
    (place.clone / "left over").write_text("of an earlier step")
    commit(place.root, "code.py", "second")
    clone(place)
    assert sorted(path.name for path in place.clone.iterdir()) == [".git", ".gitignore", "code.py"]
    assert (place.clone / "code.py").read_text() == "second"


def test_what_is_not_committed_is_refused(place: Place) -> None:
    (place.root / "code.py").write_text("not committed")
    with pytest.raises(Exception, match="commit or remove"):
        clone(place)


def test_durations_tries_and_seed_reach_the_commands(tmp_path: Path) -> None:
    found = {step.name: step for step in steps(Options(2, 3.5, 7, 42, simulation_seeds=5), tmp_path)}
    assert {"--minutes", "2"} <= set(found["soak"].command)
    assert {"--chaos", "3.5", "--seed", "42"} <= set(found["chaos"].command)
    assert "--fresh 5 " in found["simulation"].command[-1]
    assert found["properties"].env["SWEEPERD_TEST_TRIES"] == "7"
    assert "--seed" not in {step.name: step for step in steps(Options(), tmp_path)}["chaos"].command


def test_steps_can_be_listed_and_chosen(tmp_path: Path) -> None:
    all_steps = steps(Options(), tmp_path)
    names = [step.name for step in all_steps]
    assert len(set(names)) == len(names)
    listed = CliRunner().invoke(main, ["0.1.0", "--list"]).output
    assert [line.split()[0] for line in listed.splitlines()] == names
    assert [step.name for step in choose(all_steps, ("chaos", "lint"))] == ["lint", "chaos"]
    with pytest.raises(Exception, match="there is no step nothing"):
        choose(all_steps, ("nothing",))
