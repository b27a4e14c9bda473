"""Commands that print secrets: what they may print, when they run, and what is said if they fail."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sweeperd.config import commands
from sweeperd.config.commands import Command, CommandFailed, command
from sweeperd.errors import ConfigError
from tests.support.fixtures import Load
from tests.support.harness import eventually


def script(folder: Path, text: str) -> Command:
    """A command that runs these lines and counts its runs in the file `runs`."""
    file = folder / "script"
    file.write_text(f"echo run >> {folder}/runs\n{text}\n")
    return Command(f"/bin/sh '{file}'")


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


@pytest.mark.parametrize(
    ("printed", "secret"),
    [
        ("p4ss", "p4ss"),
        ("a warning\n\n p4ss \n\n", "p4ss"),
        ("12", "12"),
        ('{"password": "p4ss"}', "p4ss"),
        ('{\n"password": "p4ss",\n"expires_in": "60", "more": [1]}', "p4ss"),
        ('a warning\n{"password": "p4ss", "expires_in": 60.5}', "p4ss"),
        ('{"password": ', '{"password":'),
    ],
)
def test_what_it_may_print(printed: str, secret: str, tmp_path: Path) -> None:
    (tmp_path / "printed").write_text(printed)
    assert Command(f"cat {tmp_path}/printed").value("password") == secret


def test_there_is_no_shell() -> None:
    assert Command("echo $HOME ; 'a b'").value("password") == "$HOME ; a b"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("hush-program hush", "hush-program cannot be run: No such file"),
        ("sh -c 'echo hush; echo hush >&2; exit 3'", "sh failed with exit code 3"),
        ("true", "printed nothing"),
        ('echo \'{"hush": "hush"}\'', "has no password"),
        ('echo \'{"password": "hush", "expires_in": -1}\'', "expires_in"),
        ('echo \'{"password": "hush", "expires_in": "hush"}\'', "expires_in"),
        ("sh -c 'sleep 60 & sleep 60'", "longer than 0.3 s"),
    ],
)
def test_a_failure_tells_no_secret(line: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "LIMIT", 0.3)
    with pytest.raises(CommandFailed, match=problem) as error:
        Command(line).value("password")
    assert "hush" not in str(error.value).removeprefix("hush-program")
    assert error.value.__cause__ is None


@pytest.mark.parametrize("text", ["exec:", "exec: ", "exec:echo 'a"])
def test_what_is_no_command(text: str, config: Load) -> None:
    with pytest.raises(ConfigError, match=r"redis\.password: exec: "):
        config(f'redis.password = "{text}"')
    assert command("file:x") is None


def test_it_runs_once_for_all(tmp_path: Path) -> None:
    asked = script(tmp_path, "sleep 0.2\necho p4ss")
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(asked.value, ["password"] * 32)) == {"p4ss"}
    assert (runs(tmp_path), asked.known("password")) == (1, "p4ss")


def test_it_runs_again_at_once_only_if_refused_and_not_in_a_loop(tmp_path: Path) -> None:
    asked = script(tmp_path, "wc -l < " + str(tmp_path / "runs"))
    assert asked.value("password") == "1"
    assert asked.refuse(1)
    assert asked.refuse(1), "by another connection"
    assert asked.known("password") == "1", "open connections go on"
    assert asked.value("password") == "2"
    assert asked.refuse(1), "it was another connection's old secret"
    assert asked.value("password") == "2"
    assert not asked.refuse(2), "the new one is refused, too"
    assert asked.value("password") == "2"


def test_it_is_renewed_before_its_end_while_the_old_one_is_used(tmp_path: Path) -> None:
    count = f'echo "{{\\"password\\": \\"p$(wc -l < {tmp_path}/runs)\\", \\"expires_in\\": 2}}"'
    asked, seen = script(tmp_path, count), set[str | None]()
    assert asked.value("password").strip() == "p1"

    def renewed() -> bool:
        seen.add(asked.known("password"))
        return "p2" in seen

    eventually(renewed, pause=0.01)
    assert seen == {"p1", "p2"}, "never unknown"
    assert not [thread for thread in threading.enumerate() if thread.name == "sweeperd-secret" and not thread.daemon]


def test_a_renewal_without_a_thread_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "KEPT", 0.0)
    asked = script(tmp_path, f"wc -l < {tmp_path}/runs")
    assert asked.value("password").strip() == "1"
    with monkeypatch.context() as full:

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, "start", refuse)
        assert str(asked.known("password")).strip() == "1"
    eventually(lambda: str(asked.known("password")).strip() != "1", pause=0.01)


def test_a_failing_renewal_keeps_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "KEPT", 0.0)
    monkeypatch.setattr(commands, "PAUSE", 0.0)
    asked = script(tmp_path, f"test $(wc -l < {tmp_path}/runs) -eq 1 && echo p4ss")
    assert asked.value("password") == "p4ss"
    eventually(lambda: asked.known("password") and runs(tmp_path) > 2, pause=0.01)
    assert asked.value("password") == "p4ss"


def test_a_url_that_a_command_prints(config: Load, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://u:hush@cache:6380/3\n")
    settings = config(f'redis.url = "exec:cat {tmp_path}/url"\nkeys.prefix = "a:"')
    assert settings.model_dump(mode="json")["redis"]["url"] == "redis://cache:6380/3"
    assert "hush" not in repr(settings)
    for line in ("exec:false", "exec:echo http://x"):
        with pytest.raises(ConfigError, match=r"redis\.url: "):
            config(f'redis.url = "{line}"')


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_what_it_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "LIMIT", 0.5)
    with pytest.raises(CommandFailed):
        script(tmp_path, f"sleep 61 & echo $! > {tmp_path}/pid\nwait").value("password")
    pid = (tmp_path / "pid").read_text().strip()
    eventually(lambda: has_ended(Path("/proc", pid, "stat")))


def has_ended(stat: Path) -> bool:
    """Whether there is no such process, or one that nobody has waited for. A bare machine has no `ps`."""
    try:
        return stat.read_text().rpartition(") ")[2][0] == "Z"
    except OSError:
        return True
