"""
Processes of sweeperd without the half second of CPU in which Python imports it: a process that has imported the package
forks itself for each. Such a process has its own id, environment, streams and end, as the installed command has.
`python -m tests.support.forked N` is the process that forks; N is its end of a socket.
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: Variables that Python, the C library or a loader reads when a process begins.
AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "FAKETIME")


#: At this signal a forked process writes to its error output what each of its threads does.
TELL_STACKS = signal.SIGUSR2


class Forked:
    """A running process. Its methods are those of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], streams: Sequence[int]) -> None:
        self.args = ["sweeperd", *arguments]
        self.returncode: int | None = None
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            socket.send_fds(_forker(), [b"f"], [theirs.fileno(), *streams])
        order = {"arguments": self.args, "env": dict(env), "directory": str(Path.cwd())}
        ours.sendall(json.dumps(order).encode())
        ours.shutdown(socket.SHUT_WR)
        self._replies = ours.makefile("r")
        self.pid = int(self._replies.readline())

    def poll(self) -> int | None:
        """The exit code, or the negative number of the signal that ended the process; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._replies.readline())
            self._replies.close()
            self._socket.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def can_fork(env: Mapping[str, str]) -> bool:
    """
    Whether a process with these variables may be forked: in pytest, because benchmarks measure whole processes, and
    if the variables leave the beginning of a process as it is here.
    """
    names = [name for name in {*env, *os.environ} if name.startswith(AT_START)]
    return "PYTEST_VERSION" in os.environ and all(env.get(name) == os.environ.get(name) for name in names)


@functools.cache
def _forker() -> socket.socket:
    """The socket of the process that forks. The process ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        line = [sys.executable, "-m", __name__, str(theirs.fileno())]
        process = subprocess.Popen(line, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def _serve(orders: socket.socket) -> list[str]:
    """Fork a process for each order. Returns in the new process, the arguments of sweeperd."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, 1, 4)
        if not message:
            _reap()
            os._exit(0)
        if os.fork() == 0:
            orders.close()
            return _start(socket.socket(fileno=descriptors[0]), descriptors[1:])
        for descriptor in descriptors:
            os.close(descriptor)
        _reap()


def _reap() -> None:
    """Take the processes between that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _start(caller: socket.socket, streams: list[int]) -> list[str]:
    """Fork the process, and tell the caller its id and its end. Returns in the new process."""
    with caller.makefile("r") as text:
        order: dict[str, Any] = json.load(text)
    if pid := os.fork():
        for descriptor in streams:
            os.close(descriptor)
        caller.sendall(f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # nobody waits for the end
            caller.sendall(f"{code}\n".encode())
        os._exit(0)
    caller.close()
    for descriptor, stream in zip(streams, range(3), strict=True):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.setsid()
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    # Of their own: the streams of the process that forks know about its files.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    faulthandler.register(TELL_STACKS, file=2)
    arguments: list[str] = order["arguments"]
    return arguments


def _import_all() -> None:
    """Import each module of the package and what a command imports late."""
    import sweeperd  # noqa: PLC0415 - here only

    for module in pkgutil.walk_packages(sweeperd.__path__, "sweeperd."):
        if module.name != "sweeperd.__main__" and not module.name.startswith(("sweeperd.kit", "sweeperd.examples")):
            importlib.import_module(module.name)


if __name__ == "__main__":
    channel = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    gc.collect()
    gc.freeze()
    sys.argv = _serve(channel)
    from sweeperd.__main__ import run as sweeperd_run

    sweeperd_run()
