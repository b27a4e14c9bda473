"""Runs a command on a terminal, as an operator does."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence

from tests.support.harness import started

#: What a terminal obeys: colours, and the cursor of a progress bar.
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command on a terminal of this width. `seen` is what it has shown so far."""

    def __init__(self, env: Mapping[str, str], arguments: Sequence[str], columns: int = 150) -> None:
        self._ours, theirs = os.openpty()
        size = {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "24"}
        self._process = started(arguments, {**env, **size}, [theirs] * 3)
        os.close(theirs)
        self.seen = b""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    @property
    def plain(self) -> str:
        """What it has shown, without colours."""
        return _SEQUENCE.sub("", self.seen.decode())

    def ask(self) -> None:
        """Wait for its question."""
        while not self.seen.rstrip().endswith(b"[y/N]:"):
            self.seen += os.read(self._ours, 65536)

    def answer(self, text: str) -> None:
        """Wait for its question, and type the answer."""
        self.ask()
        os.write(self._ours, text.encode() + b"\n")
        self.seen += b"\n"

    def end(self) -> int:
        """Wait until it ends. Returns its exit code."""
        with contextlib.suppress(OSError):  # the terminal has hung up
            while chunk := os.read(self._ours, 65536):
                self.seen += chunk
        return self._process.wait()
