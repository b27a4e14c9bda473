"""The steps on a fresh Debian: what they run is what the documents say, and what they cannot run they say."""

import json
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, blocks
from tools.release import cron, debian, systemd
from tools.release.figures import NAME


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELEASE_DIR", str(tmp_path))
    return tmp_path / NAME


@pytest.mark.parametrize("step", [cron, systemd], ids=["cron", "systemd"])
def test_without_root_a_step_says_so_and_shows_nothing(
    step: object, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert step.main() == 0  # type: ignore[attr-defined]
    (reason,) = json.loads(kept.read_text()).values()
    assert reason == "not run: it needs root"


def test_a_program_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert debian.missing("no-such-program").endswith("no-such-program not installed")


def test_the_blocks_are_those_of_the_documents(tmp_path: Path) -> None:
    (tmp_path / debian.PROOF).mkdir(parents=True)
    debian.write_blocks(tmp_path, roles=("deploying.md", "systemd", 1))
    text = (tmp_path / debian.PROOF / "roles.sh").read_text()
    assert text in (ROOT / "docs" / "deploying.md").read_text()
    assert "sweeperd@deliver" in text
    assert len(blocks(ROOT / "docs" / "deploying.md", "systemd")) == 3
    installing = blocks(ROOT / "docs" / "deploying.md", "systemd")[0].splitlines()
    assert [line.split()[0].rpartition("/")[2] for line in installing[:3]] == ["apt-get", "python3", "pip"]


@pytest.mark.parametrize("step", [cron, systemd], ids=["cron", "systemd"])
def test_a_script_shows_what_is_expected_of_it(step: object) -> None:
    module = Path(step.__file__)  # type: ignore[attr-defined]
    text = module.with_suffix(".sh").read_text()
    for name in step.EXPECTED:  # type: ignore[attr-defined]
        assert f'say "{name}" ' in text


def test_what_is_not_shown_fails_the_step(kept: Path) -> None:
    assert debian.judge("[ok]\nPROOF one: 1 s\r\nnoise\n  PROOF two: a: b\n", ["one", "two"]) == 0
    assert json.loads(kept.read_text()) == {"one": "1 s", "two": "a: b"}
    assert debian.judge("PROOF one: 1 s\n", ["one", "two"]) == 1
