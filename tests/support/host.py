"""What the machine gives to tests and measurements: CPU time, and a clock that can be set."""

import shutil
import subprocess
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
    """The library that gives a process a clock of its own; empty if faketime is not installed."""
    if shutil.which("faketime") is None:
        return ""
    line = ["faketime", "-m", "-f", "+0", "printenv", "LD_PRELOAD"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
