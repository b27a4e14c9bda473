"""The lines of docs/how-to work as they stand, with ports and paths of the test."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from sweeperd.config import CONFIG_PLACES
from tests.docs.shell import typed
from tests.support.documents import ROOT, code
from tests.support.eyes.recorded import recorded
from tests.support.kind_settings import hold_seats
from tests.support.servers import Server

HOW_TO = ROOT / "docs" / "how-to"
INSTALL, CRON = HOW_TO / "install.md", HOW_TO / "cron.md"
BIN = Path(sys.executable).parent


def test_the_cron_line_works_in_cron_s_environment(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    ((user, line),) = set(re.findall(r"^\* \* \* \* \* +(\S+) +(.*)$", CRON.read_text(), re.MULTILINE))
    (tmp_path / "config.toml").write_text(f'[redis]\nurl = "{server.url}"\n')
    for there, here in {
        "/opt/sweeperd/bin": str(BIN),
        "/etc/sweeperd/config.toml": str(tmp_path / "config.toml"),
    }.items():
        line = line.replace(there, here)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SHELL": "/bin/sh"}
    assert f" {user}\n" in code(CRON, "Run it from cron"), "the user is made before"
    assert "--delivery-limit 45s" in line
    done = subprocess.run(
        ["/bin/sh", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "cron mails every line"
    assert client.hget("sweeperd:ticks", "by")


def test_the_line_for_a_deployed_host(server: Server, tmp_path: Path) -> None:
    if shutil.which("env") is None:
        pytest.skip("env is not installed")
    unit = (ROOT / "deploy" / "systemd" / "sweeperd.service").read_text()
    assert "LoadCredential=redis-url:/etc/sweeperd/secrets/redis-url\n" in unit, "the line reads the unit's file"
    (tmp_path / "config.toml").write_text(
        "[[webhooks.endpoints]]\nname = 'billing'\nurl = 'http://127.0.0.1:9/'\nsecrets = ['credential:billing']\n"
    )
    (tmp_path / "redis-url").write_text(server.url + "\n")
    line = code(HOW_TO / "systemd.md", "Commands on a deployed host")
    for there, here in {
        "/etc/sweeperd/secrets": str(tmp_path),
        "/etc/sweeperd": str(tmp_path),
        "/opt/sweeperd/bin": str(BIN),
    }.items():
        line = line.replace(there, here)
    done = subprocess.run(["/bin/sh", "-c", line], cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == server.url
    assert "billing" in done.stdout


def test_the_line_for_a_pod(server: Server, tmp_path: Path) -> None:
    """In the pod the settings are where the command finds them by itself, and the URL is in the pod's environment."""
    deployment = (ROOT / "deploy" / "k8s" / "parts" / "deployment" / "deployment.yaml").read_text()
    assert "mountPath: /etc/sweeperd\n" in deployment
    assert Path("/etc/sweeperd/config.toml") in CONFIG_PLACES
    found = re.search(r"name: (SWEEPERD_REDIS__URL)\n +value: (\S+)\n", deployment)
    assert found
    (tmp_path / "redis-url").write_text(server.url + "\n")
    variable = {found[1]: found[2].replace("/run/secrets/sweeperd", str(tmp_path))}
    inside = re.findall(r"kubectl -n sweeperd exec .+ -- sweeperd (.+)", (HOW_TO / "kubernetes.md").read_text())[-1]
    done = subprocess.run(
        [BIN / "sweeperd", *inside.split()],
        env={"PATH": os.environ["PATH"], "SWEEPERD_CONFIG": str(ROOT / "deploy/k8s/example/config.toml")} | variable,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == server.url


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell: str) -> None:
    assert f"_SWEEPERD_COMPLETE={shell}_source sweeperd" in INSTALL.read_text()
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    env = os.environ | {"_SWEEPERD_COMPLETE": f"{shell}_source"}
    done = subprocess.run([BIN / "sweeperd"], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert "_sweeperd_completion" in done.stdout


def test_the_preview_is_what_the_settings_of_the_readme_print(
    server: Server, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text(code(ROOT / "README.md", "From settings to a webhook"), encoding="utf-8")
    (tmp_path / "billing.secret").write_text(f"whsec_{'A' * 32}\n", encoding="utf-8")
    client.hset("seats:hamlet", mapping={"free": 7, "held": 2316})
    for number in range(1, 1205):
        show = "" if number in (17, 31) else "hamlet"
        hold_seats(client, f"h{number}", 1 if number <= 96 else 2, 1_700_000_000_000 + number, show)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEEPERD_REDIS__URL", server.url)
    monkeypatch.delenv("SWEEPERD_CONFIG")
    command, *lines = code(HOW_TO / "check.md", "What would a sweep do?").splitlines()
    assert command == "$ sweeperd --once --dry-run"
    lines_printed = recorded([str(BIN / "sweeperd"), *command.split()[2:]])
    printed = "".join(re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() + "\n" for _, line in lines_printed)
    shown = "\n".join(lines).replace("redis://127.0.0.1:6379/0", server.url)
    promised = "".join(r"(?:.+\n)*" if line == "..." else re.escape(line) + "\n" for line in shown.splitlines())
    assert re.search(promised + r"\Z", printed), printed


def test_the_use_case_of_the_readme_works_word_for_word(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## From settings to a webhook")[2]
    settings = code(ROOT / "README.md", "From settings to a webhook")
    own = (
        "```sh\nredis-server --port 6379 --save '' --daemonize yes\nuntil redis-cli PING; do sleep 0.1; done\n"
        f"cat > config.toml <<'END'\n{settings}END\n```\n"
    )
    listening = "```sh\nuntil curl -s -o log http://127.0.0.1:8080/; do sleep 0.1; done\n```\n"
    first, receiver, second = text.partition("Write a hold that nobody bought")
    *_, swept = typed(own + first + listening + receiver + second, tmp_path)
    sent, shown = (
        re.search(r"  verified, 204  evt_\w+\n({.*})", swept),
        re.search(r"```json\n(.*?)```", text, re.DOTALL),
    )
    assert sent
    assert shown
    event, example = json.loads(sent[1]), json.loads(shown[1])
    for values in event, example:
        values.update(dict.fromkeys(("event_id", "timestamp", "trace_id")))
        values["data"]["expired_at"] = None
    assert json.dumps(event) == json.dumps(example), "in this order too"
