"""Runs the commands that settings name instead of a secret: `exec:COMMAND`."""

import functools
import json
import logging
import math
import os
import shlex
import signal
import subprocess
import threading
import time
from contextlib import suppress

log = logging.getLogger(__name__)

PREFIX = "exec:"
#: How long a command may take, and how long its output is kept if it doesn't say, seconds.
LIMIT, KEPT = 10.0, 600.0
#: The share of its lifetime after which a secret is renewed, so that connections change before it ends.
RENEWED_AT = 0.8
#: The shortest time between two runs if the command fails or Redis refuses each secret, seconds.
PAUSE = 1.0


class CommandFailed(ValueError):
    """There is no secret. The message holds neither arguments nor output, which may be secret."""


class Command:
    """One command and its last output, shared by the whole process. Thread-safe."""

    def __init__(self, text: str) -> None:
        try:
            self._words = shlex.split(text)
        except ValueError:
            raise ValueError("exec: has a quotation mark or a backslash without its end") from None
        if not self._words:
            raise ValueError("exec: names no command")
        self._lock = threading.Lock()
        #: The last line, or the texts of the JSON object.
        self._output: str | dict[str, str] = {}
        #: How many runs have printed something.
        self.runs = 0
        self._renew_at = self._ends_at = self._ran_at = -math.inf
        #: Whether Redis refuses the secret; and whether it refused the one before and has not accepted this one.
        self._refused = self._after_refusal = False
        self._problem = ""

    def known(self, name: str) -> str | None:
        """The secret, `name` in a JSON object; None if it has ended. Never waits. Raises CommandFailed."""
        now = time.monotonic()
        if now >= self._ends_at:
            return None
        if now >= self._renew_at and self._lock.acquire(blocking=False):
            try:
                threading.Thread(target=self._renew, name="sweeperd-secret", daemon=True).start()
            except RuntimeError:  # no thread is left: the next call tries again
                self._lock.release()
        return self._named(name)

    def value(self, name: str) -> str:
        """The secret. Runs the command if it has ended or was refused. Raises CommandFailed."""
        if not self._refused and (known := self.known(name)) is not None:
            return known
        with self._lock:
            now = time.monotonic()
            if self._refused or now >= self._ends_at:
                if self._problem and now < self._ran_at + PAUSE:
                    raise CommandFailed(self._problem)
                self._after_refusal = self._refused
                self._run()
        return self._named(name)

    def refuse(self, run: int) -> bool:
        """Redis refused the secret of this run. Returns whether the next `value` may be another one."""
        with self._lock:
            if run == self.runs:
                if self._after_refusal and time.monotonic() < self._ran_at + PAUSE:
                    return False
                self._refused = True
            return True

    def accept(self) -> None:
        self._after_refusal = False

    def _named(self, name: str) -> str:
        if isinstance(self._output, str):
            return self._output
        if not self._output.get(name):
            raise CommandFailed(f"the JSON that {self._words[0]} printed has no {name}")
        return self._output[name]

    def _renew(self) -> None:
        try:
            self._after_refusal = False
            self._run()
        except CommandFailed as error:
            self._renew_at = time.monotonic() + PAUSE
            log.warning("a secret could not be renewed: %s", error)
        finally:
            self._lock.release()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            output, lifetime = _parsed(self._words[0], _printed(self._words))
        except CommandFailed as error:
            self._problem = str(error)
            raise
        finally:
            self._ran_at = time.monotonic()
        self._output, self._problem, self._refused, self.runs = output, "", False, self.runs + 1
        self._renew_at = began + (KEPT if lifetime is None else lifetime * RENEWED_AT)
        self._ends_at = math.inf if lifetime is None else began + lifetime


@functools.cache
def _command(text: str) -> Command:
    return Command(text)


def command(text: str) -> Command | None:
    """The command that the text of a setting names; None for other texts. Raises ValueError."""
    return _command(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None


def _printed(words: list[str]) -> str:
    """Standard output. Standard error is dropped, because it may hold secrets."""
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own command, without a shell
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{words[0]} cannot be run: {getattr(error, 'strerror', 'a NUL')}") from None
    try:
        printed, _ = process.communicate(timeout=LIMIT)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started holds the pipe, too
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CommandFailed(f"{words[0]} took longer than {LIMIT:g} s") from None
        raise
    finally:
        if process.stdout:
            process.stdout.close()
    if process.returncode:
        raise CommandFailed(f"{words[0]} failed with exit code {process.returncode}; run it by hand to see why")
    return printed.decode(errors="replace")


def _parsed(program: str, printed: str) -> tuple[str | dict[str, str], float | None]:
    """The output, and for how many seconds it is valid if it says so."""
    lines = printed.strip().splitlines()
    if not lines:
        raise CommandFailed(f"{program} printed nothing")
    found: object = None
    for text in (lines[-1], printed):
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
    if not isinstance(found, dict):
        return lines[-1].strip(), None
    lifetime = found.pop("expires_in", None)
    texts = {name: value for name, value in found.items() if isinstance(value, str)}
    return texts, None if lifetime is None else _seconds(program, lifetime)


def _seconds(program: str, lifetime: object) -> float:
    with suppress(ValueError, TypeError, OverflowError):
        if 0 < (seconds := float(lifetime)) < math.inf:  # type: ignore[arg-type]
            return seconds
    raise CommandFailed(f"expires_in of the JSON that {program} printed is not a number of seconds")
