"""Types the commands of a document word for word in one shell, on ports of the test."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.servers import free_port

#: A block of commands, and what it prints, if the document says so. `not typed` gives the reason why no test types it.
_STEP = re.compile(
    r"^(<!-- not typed: .+ -->\n)? *```(?:sh|console)\n(.*?)^ *```\n(?:\n *```text\n(.*?)^ *```)?",
    re.MULTILINE | re.DOTALL,
)
_BORDER = "---- the next step"
#: The ports of Redis, of the receiver, and of the daemon, as documents name them.
REDIS, RECEIVER, HTTP = r"6379|6390", r"8080|8390", "9464"


def steps(text: str) -> list[tuple[str, str]]:
    """Commands that are typed, and what they print."""
    return [(commands.replace("$ ", ""), output) for untyped, commands, output in _STEP.findall(text) if not untyped]


def typed(text: str, folder: Path, *, limit: float = 200, redis_port: int | None = None) -> list[str]:
    """What each step of the text prints, in this folder. A Redis that the text has started is stopped."""
    for program in ("redis-server", "redis-cli", "bash", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    ports = {REDIS: str(redis_port or free_port()), RECEIVER: str(free_port()), HTTP: str(free_port())}
    script = f"\necho '{_BORDER}'\n".join(commands for commands, _ in steps(text))
    for written, free in ports.items():
        script = re.sub(rf"\b(?:{written})\b", free, script)
    script = re.sub(r"\bredis-cli\b", f"redis-cli -p {ports[REDIS]}", script)
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "SWEEPERD_HTTP__LISTEN": f"127.0.0.1:{ports[HTTP]}",
        "SWEEPERD_REDIS__URL": f"redis://127.0.0.1:{ports[REDIS]}/0",
    }
    output = folder / "output"
    with output.open("wb") as log:
        shell = subprocess.Popen(
            ["bash", "-c", f"set -e\n{script}"], cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        assert shell.wait(limit) == 0, output.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        if redis_port is None:
            subprocess.run(["redis-cli", "-p", ports[REDIS], "shutdown", "nosave"], check=False, capture_output=True)
    printed = output.read_text().split(f"{_BORDER}\n")
    for (commands, promised), found in zip(steps(text), printed, strict=True):
        assert re.search(_pattern(promised.splitlines()), found), f"{commands}\n{found}"
    return printed


def _pattern(lines: Iterable[str]) -> str:
    """
    A pattern for these lines, of which `…` is any number of lines, and two spaces are a column's border. The document
    shows a terminal: redis-cli numbers what it prints, and tables have no column for the only shard.
    """
    plain = (re.sub(r'^\d+\) "(.*)"$', r"\1", line) for line in lines)
    return "".join(
        r"(?:.*\n)*" if line == "…" else r"(?:default\t)?" + re.sub(r"(?:\\ ){2,}", r"\\s+", re.escape(line)) + "\n"
        for line in plain
    )
