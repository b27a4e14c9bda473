"""What the files of the deployments say of sweeperd is so: options, settings, limits, paths."""

import functools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement

from sweeperd import __version__
from sweeperd.cli import main
from sweeperd.config import Settings
from sweeperd.store.shard import files_needed
from tests.support.harness import daemon, environment, eventually
from tests.support.servers import Server, free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
#: What the image installs.
LOCK = DEPLOY / "container" / "requirements.txt"


def values(unit: str, name: str) -> list[str]:
    text = (DEPLOY / "systemd" / unit).read_text()
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def seconds(text: str) -> float:
    return float(text.removesuffix("s")) if text.endswith("s") else 60 * float(text.removesuffix("m"))


@pytest.mark.parametrize("unit", ["sweeperd.service", "sweeperd-once.service"])
def test_a_unit_may_open_enough_files(unit: str) -> None:
    """For 1,000 endpoints, which is more than systemd's usual soft limit of 1,024 files allows."""
    endpoints = [{"name": f"e{number}", "url": "https://example.com"} for number in range(1000)]
    settings = Settings.model_validate({"webhooks": {"endpoints": endpoints, "concurrency": 1000}})
    assert int(values(unit, "LimitNOFILE")[0]) > files_needed(settings)


def test_the_limits_of_the_unit_leave_room_for_the_grace() -> None:
    grace = Settings().shutdown_grace.total_seconds()
    assert seconds(values("sweeperd.service", "TimeoutStopSec")[0]) > grace
    assert seconds(values("sweeperd.service", "WatchdogSec")[0]) > grace
    assert values("sweeperd.service", "Type") == ["notify"]
    assert values("sweeperd.service", "RestartPreventExitStatus") == ["2 CREDENTIALS"]
    assert values("sweeperd-once.service", "SuccessExitStatus") == ["3"]


def test_a_slow_receiver_does_not_hold_the_unit_of_one_run() -> None:
    (line,) = values("sweeperd-once.service", "ExecStart")
    words = line.split()
    limit = words[words.index("--delivery-limit") + 1]
    assert 60 < seconds(limit) < seconds(values("sweeperd-once.service", "TimeoutStartSec")[0]) / 2


@pytest.mark.parametrize("unit", ["sweeperd.service", "sweeperd-once.service"])
def test_each_credential_is_used_under_its_own_name(unit: str) -> None:
    (credential,) = (value.split(":")[0] for value in values(unit, "LoadCredential"))
    url = f"SWEEPERD_REDIS__URL=credential:{credential}"
    role = ["SWEEPERD_ROLE=%i"] * (unit == "sweeperd.service")
    assert values(unit, "Environment") == [url, "MALLOC_ARENA_MAX=2", *role]
    (source,) = (value.split(":")[1] for value in values(unit, "LoadCredential"))
    assert values(unit, "AssertPathExists") == ["/etc/sweeperd/config.toml", source]
    assert values(unit, "DynamicUser") == ["yes"]


@pytest.mark.parametrize("unit", ["sweeperd.service", "sweeperd-once.service"])
def test_the_options_are_understood(unit: str) -> None:
    command, *arguments = shlex.split(values(unit, "ExecStart")[0])
    assert command == "/opt/sweeperd/bin/sweeperd"
    assert CliRunner().invoke(main, [*arguments, "--version"]).exit_code == 0


# ---- the container file

COMPOSE = DEPLOY / "container" / "compose.yaml"
INSTRUCTION = re.compile(r"^([A-Z]+)\s+(.*)$")


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "container" / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [INSTRUCTION.match(line) for line in lines]
    assert all(found)
    return [(match[1], match[2]) for match in found if match]


def test_the_image_is_built_in_one_stage_and_runs_in_another() -> None:
    bases = [value.split()[0] for name, value in instructions() if name == "FROM"]
    assert bases == ["${BASE}", "${BASE}"], "an environment is built for the Python that runs it"
    (default,) = (value.removeprefix("BASE=") for name, value in instructions() if value.startswith("BASE="))
    assert re.fullmatch(r"python:3\.\d+\.\d+-alpine3\.\d+", default), "pinned, and small"
    minor = int(default.split(".")[1])
    assert f"Programming Language :: Python :: 3.{minor}" in (DEPLOY.parent / "pyproject.toml").read_text()
    assert f"--python-version 3.{minor}" in LOCK.read_text()


def test_every_dependency_is_locked_with_hashes_within_its_bounds() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", LOCK.read_text(), re.MULTILINE))
    for requirement in map(Requirement, project["dependencies"]):
        assert requirement.specifier.contains(locked[requirement.name]), requirement
    blocks = re.split(r"^(?=[a-z])", LOCK.read_text(), flags=re.MULTILINE)[1:]
    assert len(blocks) == len(locked)
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in LOCK.read_text(), "it names no registry"


def test_the_builder_is_sent_what_the_build_copies() -> None:
    sent = {line[1:] for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        part
        for name, value in instructions()
        if name == "COPY" and "--from" not in value
        for part in value.split()[:-1]
    }
    assert sent == copied


def test_threads_share_arenas_of_memory_in_the_image_as_in_the_units() -> None:
    (environment,) = (value for name, value in instructions() if name == "ENV")
    assert "MALLOC_ARENA_MAX=2" in environment.split()


def test_the_final_stage_has_no_build_tools_and_no_root() -> None:
    last = [position for position, (name, _) in enumerate(instructions()) if name == "FROM"][-1]
    final = instructions()[last:]
    runs = [value for name, value in final if name == "RUN"]
    assert runs == ["pip uninstall --yes --root-user-action=ignore pip"]
    assert [value for name, value in final if name == "COPY"] == ["--from=build /opt/sweeperd /opt/sweeperd"]
    (user,) = (value for name, value in final if name == "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user), "a number, so that it can be seen not to be root"
    assert [value for name, value in final if name == "ENTRYPOINT"] == ['["sweeperd"]'], "signals reach it"
    assert not [name for name, _ in instructions() if name == "ADD"]
    assert not any("apk add" in value for name, value in instructions() if name == "RUN")


def test_what_the_build_copies_is_there_and_enough() -> None:
    root = DEPLOY.parent
    copied = [part for name, value in instructions() if name == "COPY" for part in value.split()[:-1]]
    ours = [part for part in copied if not part.startswith("-") and part != "/opt/sweeperd"]
    assert all((root / part).exists() for part in ours)
    whole = tomllib.loads((root / "pyproject.toml").read_text())
    fragments = whole["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["fragments"]
    project = whole["project"]
    lock = LOCK.relative_to(root)
    assert {
        *(each["path"] for each in fragments),
        *project["license-files"],
        "pyproject.toml",
        "sweeperd",
        str(lock),
        *whole["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"],
    } <= set(ours)


def test_the_build_command_is_the_documented_one_and_names_this_version() -> None:
    command = f"podman build -f deploy/container/Containerfile -t sweeperd:{__version__} ."
    assert command in (DEPLOY / "container" / "Containerfile").read_text()
    assert command in (DEPLOY.parent / "docs" / "how-to" / "container.md").read_text()


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_the_image_knows_the_extras_by_their_names() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"`EXTRAS=(\S+)`", (DEPLOY.parent / "docs" / "how-to" / "container.md").read_text())
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert ("ARG", "EXTRAS=") in instructions()
    (install,) = (value for _, value in instructions() if "sweeperd[${EXTRAS}]" in value)
    assert 'if [ -n "${EXTRAS}" ]' in install


def test_the_image_is_the_one_of_the_manifests() -> None:
    built = services()["sweeperd"]
    assert (COMPOSE.parent / built["build"]["context"]).resolve() == DEPLOY.parent
    assert (DEPLOY.parent / built["build"]["dockerfile"]).is_file()
    assert {built["image"], services()["receiver"]["image"]} == {f"sweeperd:{__version__}"}
    assert built["mem_limit"] == "256m"
    assert int(built["stop_grace_period"].removesuffix("s")) > Settings().shutdown_grace.total_seconds()


def test_the_daemon_of_the_compose_file_prints_an_event_and_is_healthy(own_server: Server, tmp_path: Path) -> None:
    """The same programs without containers: at other addresses, and otherwise word for word."""
    port, http = free_port(), free_port()
    command = [*services()["receiver"]["command"], "--port", str(port), "--json"]
    written = services()["sweeperd"]["environment"]
    addresses = {"redis://redis:6379/0": own_server.url, "http://receiver:8080/": f"http://127.0.0.1:{port}/"}
    env = environment()
    addresses[":9464"] = f":{http}"
    for name, value in written.items():
        env[name] = functools.reduce(lambda text, place: text.replace(*place), addresses.items(), value)
    (check,) = (value for name, value in instructions() if name == "HEALTHCHECK")
    words = json.loads(check[check.index("CMD ") + 4 :])
    assert "'localhost', 9464" in words[-1]
    probe = [sys.executable, "-c", words[-1].replace("9464", str(http))]
    assert subprocess.run(probe, capture_output=True, check=False, timeout=60).returncode != 0
    printed = tmp_path / "printed"
    with printed.open("w") as output:
        printing = subprocess.Popen([sys.executable, "-m", "sweeperd", *command], stdout=output)
        try:
            with daemon(env, tmp_path), redis.Redis.from_url(own_server.url) as client:
                commands = re.findall(r"redis-cli (.+)", COMPOSE.read_text())
                eventually(lambda: subprocess.run(probe, capture_output=True, check=False, timeout=60).returncode == 0)
                eventually(lambda: client.exists("sweeperd:ticks"))
                for line in commands:
                    client.execute_command(*shlex.split(line))
                eventually(lambda: printed.read_text().endswith("\n"))
        finally:
            printing.kill()
            printing.wait()
    (request,) = map(json.loads, printed.read_text().splitlines())
    assert request["body"]["data"]["reservation_id"] == "1"
