"""What the machine gives to tests and measurements: CPU time, and clocks that can be set."""

import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")


class CpuTime(NamedTuple):
    """Since the machine was started, of all cores, in the kernel's ticks."""

    stolen: int
    total: int

    def stolen_since(self, before: "CpuTime") -> float:
        """Which part of the time since then the host gave to others: 0 to 1."""
        return (self.stolen - before.stolen) / max(1, self.total - before.total)


def cpu_time() -> CpuTime:
    """Now. All zeros on a system that does not tell. Its columns: proc_stat(5)."""
    if not STAT.exists():
        return CpuTime(0, 0)
    # user, nice, system, idle, iowait, irq, softirq, steal; what follows is in user and nice already.
    ticks = [int(column) for column in STAT.read_text().splitlines()[0].split()[1:9]]
    return CpuTime(ticks[7], sum(ticks))


def fake_clock() -> str:
    """
    The library that gives a process a clock of its own; empty if faketime is not installed.

    faketime names its shared memory by its process number, and ends with 1 where a killed one left the same name: the
    next try has another number.
    """
    if shutil.which("faketime") is None:
        return ""
    line = ["faketime", "-m", "-f", "+0", "printenv", "LD_PRELOAD"]
    for _ in range(99):
        asked = subprocess.run(line, check=False, capture_output=True, text=True)
        if asked.returncode == 0:
            return asked.stdout.strip()
    raise RuntimeError(f"faketime does not start: {asked.stderr.strip()}")


class ServerClock:
    """
    The clock of server processes, set from here; `clock.c` is the other side. `SERVER_CLOCK`: microseconds since the
    epoch. `CLOCK_AHEAD`: how far the wall clock is ahead of the host's. Needs `cc`.
    """

    def __init__(self, directory: Path, variable: str) -> None:
        library, path = directory / "clock.so", directory / "clock"
        path.write_bytes(bytes(8))
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 8)
        self._environment = {"LD_PRELOAD": str(library), variable: str(path)}

    def set(self, seconds: float) -> None:
        self._page[:8] = round(seconds * 1e6).to_bytes(8, "little")

    @contextmanager
    def given(self) -> Iterator[None]:
        """Processes that are started in this block live by this clock."""
        os.environ |= self._environment
        try:
            yield
        finally:
            for name in self._environment:
                del os.environ[name]
