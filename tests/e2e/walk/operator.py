"""An operator who has nothing but the commands."""

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from sweeperd.cli import main
from tests.integration.conftest import only_printable
from tests.support.harness import started

#: What a terminal obeys: colours, and the cursor of a progress bar.
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class Operator:
    """Runs commands as a person would, in this process or on a terminal, and reads what they print."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = dict(env)

    def run(self, *arguments: str, **changes: str) -> Ended:
        """Without a terminal, under an environment with these changes."""
        ended = CliRunner().invoke(main, arguments, env={**self.env, **changes})
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
        only_printable(ended.stdout + ended.stderr)
        return Ended(ended.exit_code, ended.stdout, ended.stderr)

    def read(self, *arguments: str) -> Any:
        """The JSON document of a command."""
        ended = self.run(*arguments, "--json")
        assert ended.out, ended.err
        return json.loads(ended.out)

    def done(self, *arguments: str) -> Ended:
        """The same as `run`, of a command that has to succeed."""
        ended = self.run(*arguments)
        assert ended.code == 0, ended.err
        return ended

    def status(self) -> Any:
        """The one shard."""
        (shard,) = self.read("status")["shards"]
        return shard

    def endpoint(self, name: str) -> Any:
        return next(each for each in self.status()["endpoints"] if each["endpoint"] == name)

    def states(self) -> dict[str, str]:
        return {each["endpoint"]: each["state"] for each in self.status()["endpoints"]}

    def on_terminal(self, *arguments: str, answers: Sequence[str] = (), columns: int = 80) -> Ended:
        """Run a process on a new terminal, and type each answer when the command asks."""
        with Terminal(self.env, arguments, columns) as terminal:
            for answer in answers:
                terminal.answer(answer)
            return Ended(*terminal.end(), "")


class Terminal:
    """A command on a terminal of this width."""

    def __init__(self, env: Mapping[str, str], arguments: Sequence[str], columns: int) -> None:
        self._ours, theirs = os.openpty()
        size = {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "24"}
        self._process = started(arguments, {**env, **size}, [theirs] * 3)
        os.close(theirs)
        self._seen = b""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    @property
    def seen(self) -> str:
        """What it has shown so far, without colours."""
        text = _SEQUENCE.sub("", self._seen.decode()).replace("\r\n", "\n")
        only_printable(text.replace("\r", ""))
        return text

    def ask(self) -> None:
        """Wait for its question."""
        while not self._seen.rstrip().endswith(b"[y/N]:"):
            self._seen += os.read(self._ours, 65536)

    def answer(self, text: str) -> None:
        """Wait for its question, and type the answer."""
        self.ask()
        os.write(self._ours, text.encode() + b"\n")
        self._seen += b"\n"

    def end(self) -> tuple[int, str]:
        """Wait until it ends: its exit code, and what it has shown."""
        with contextlib.suppress(OSError):  # the terminal has hung up
            while chunk := os.read(self._ours, 65536):
                self._seen += chunk
        return self._process.wait(), self.seen
