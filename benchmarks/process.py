"""Runs work in its own process and measures what it uses."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: Between two looks at a running process, seconds.
LOOK = 0.02


@dataclass(frozen=True)
class Ended:
    """A process that has ended well."""

    output: bytes
    seconds: float
    #: User and system time.
    cpu_seconds: float
    peak_mib: float


def run(command: Sequence[str], env: Mapping[str, str]) -> Ended:
    """
    Run a command to its end, with its standard error to /dev/null. Raises subprocess.CalledProcessError if the command
    fails.

    The peak is the high-water mark of its own memory, read until it ends. What the kernel tells of an ended child
    (`ru_maxrss`) may be the peak of the process that started it.
    """
    started = time.monotonic()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        peak = 0.0
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            peak = max(peak, peak_mib(process.pid))
            time.sleep(LOOK)
        seconds = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.stdout is not None
        output = process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Ended(output, seconds, usage.ru_utime + usage.ru_stime, peak)


def cpu_seconds(pid: int) -> float:
    """User and system time of a running process so far, in steps of 10 ms."""
    # The name of the program is in brackets and may hold anything; what follows it does not.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def apart(function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Call it in a fresh process of its own, so that neither's threads and memory disturb the other."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def peak_mib(pid: int) -> float:
    """The high-water mark of a running process's memory; 0 if it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0.0)
