"""Runs the daemons of a soak, which can be killed, paused and reloaded, and whose clocks can be moved."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tests.support.harness import Daemon, eventually
from tests.support.host import fake_clock

#: How often a process reads the file with its clock's offset, seconds.
CLOCK_EVERY = 1
#: How long a process may take to start, to stop or to obey, seconds.
OBEY_LIMIT = 90.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Replica:
    """One daemon after the other, with the same name, settings and clock. Threads may share it."""

    def __init__(self, name: str, env: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.lives = 0
        self._directory = directory
        self._clock = directory / f"{name}.clock"
        self._env = dict(env)
        if library := fake_clock():
            # A host whose clock jumps still counts seconds like any other: the monotonic clock stays as it is.
            self._env |= {
                "LD_PRELOAD": library,
                "FAKETIME_TIMESTAMP_FILE": str(self._clock),
                "FAKETIME_CACHE_DURATION": str(CLOCK_EVERY),
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
                # What faketime does for old versions of glibc makes timed waits end too early here: an idle process
                # used a third of a core, and a busy one changed threads 50,000 times a second.
                "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            }
        self.set_clock("+0")
        #: Held while a process starts: a signal that comes before its handlers are there would end it.
        self._starting = threading.Lock()
        self._running: Daemon | None = None
        self._closed = False

    def start(self) -> None:
        """Start a process; after `close`, none. Raises AssertionError if it does not come up."""
        with self._starting:
            if self._closed:
                return
            self.lives += 1
            self._running = Daemon(self._env, self._log, limit=OBEY_LIMIT)

    def kill(self) -> int:
        """End it as `kill -9` does. Returns the exit code."""
        with self._starting:
            running, self._running = self._daemon, None
            running.kill()
            return running.process.wait()

    def stop(self) -> int | None:
        """End it as an operator does. Returns the exit code; None if it did not run, or does not end."""
        with self._starting:
            if self._running is None:
                return None
            try:
                return self._running.terminate(OBEY_LIMIT)
            except subprocess.TimeoutExpired:
                return None

    def close(self) -> None:
        """End it for good."""
        with self._starting:
            self._closed = True
            if self._running is not None and self._running.process.poll() is None:
                self._running.kill()
            self._running = None

    def pause(self) -> None:
        """Stop all its threads where they are; returns when they stand still."""
        pid = self._daemon.process.pid
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: self._state(pid) == "T", OBEY_LIMIT)

    def resume(self) -> None:
        """Let it go on."""
        pid = self._daemon.process.pid
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: self._state(pid) != "T", OBEY_LIMIT)

    def reload(self) -> None:
        """Have it read its settings again; a process that starts at this moment reads the new ones anyway."""
        with self._starting:
            if self._running is not None:
                self._running.reload()

    def set_clock(self, offset: str) -> None:
        """Move its wall clock, such as `+2h`; it notices within CLOCK_EVERY."""
        self._clock.write_text(f"{offset}\n")

    @property
    def paused(self) -> bool:
        """Whether its threads stand still."""
        running = self._running
        return running is not None and self._state(running.process.pid) == "T"

    @property
    def answers(self) -> bool:
        """Whether it runs and is not paused."""
        return self._running is not None and not self.paused

    def metric(self, name: str, **labels: str) -> float:
        """One sample. Raises OSError or AssertionError if it does not answer."""
        return self._daemon.metric(name, **labels)

    @property
    def log_size(self) -> int:
        """How long the log of this life is, bytes."""
        return self._log.stat().st_size

    def reloads(self, since: int) -> list[datetime]:
        """When it has reloaded, by its own clock: from the log of this life after its first `since` bytes."""
        with self._log.open("rb") as file:
            file.seek(since)
            lines = [json.loads(line) for line in file if line.startswith(b"{") and line.endswith(b"}\n")]
        return [datetime.fromisoformat(line["timestamp"]) for line in lines if line["message"].startswith("reloaded")]

    @property
    def memory(self) -> int | None:
        """Its resident memory, bytes; None if it is not running or the platform does not report it."""
        running = self._running
        try:
            if running is None:
                return None
            return int(Path(f"/proc/{running.process.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return None

    @property
    def _log(self) -> Path:
        return self._directory / f"{self.name}-{self.lives}.log"

    @property
    def _daemon(self) -> Daemon:
        assert self._running is not None, f"{self.name} is not running"
        return self._running

    @staticmethod
    def _state(pid: int) -> str:
        """The state of a process, as the kernel names it."""
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
