"""Runs replicas with an unchanged `Service` each, which can be killed, stopped, reloaded and restarted."""

import functools
import signal
from types import SimpleNamespace
from typing import Any

import sweeperd.runtime.service
from proof.simulation import kernel as kernels
from proof.simulation.kernel import Failure, Host
from sweeperd.config import Settings
from sweeperd.logs import QueuedHandler
from sweeperd.metrics import Metrics
from sweeperd.runtime.process import Role
from sweeperd.runtime.service import Service
from sweeperd.runtime.systemd import SystemdNotifier


def process_name() -> str:
    """Instead of `sweeperd.store.lease.process_name`: the name of the process that asks."""
    current = kernels.KERNEL.current
    return f"{current.host.name if current else 'hub'}-1-000000"


class Replica:
    """One replica, over all its processes."""

    def __init__(self, name: str, role: str, settings: Settings, *, queued_log: bool = False) -> None:
        self.name, self.role, self.settings, self._queued_log = name, Role(role), settings, queued_log
        #: Every process that there was: a collected greenlet would run its `finally`.
        self._hosts: list[Host] = []
        self._service: Service | None = None
        self._again = False
        #: The metrics of all processes, the dead ones too.
        self.metrics: list[Metrics] = []

    @property
    def host(self) -> Host | None:
        """The process that runs or ran last."""
        return self._hosts[-1] if self._hosts else None

    @property
    def alive(self) -> bool:
        """Whether a process runs."""
        return self.host is not None and not self.host.dead

    def start(self, skew: float = 0.0) -> None:
        """A new process."""
        host = Host(f"{self.name}.{len(self._hosts) + 1}")
        host.skew = skew
        host.exit = lambda: self._ended(host)
        self._hosts.append(host)
        self._service, self._again = None, False
        kernels.KERNEL.spawn("main", lambda: self._guarded(host), host)

    def reload(self, settings: Settings) -> None:
        """SIGHUP, with these settings in the file."""
        self.settings = settings
        self._signal(signal.SIGHUP)

    def restart(self) -> None:
        """SIGTERM; at its end a new process in the role of now begins."""
        self._again = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        service = self._service
        if service is not None and self.alive:
            handler = service._on_reload if number == signal.SIGHUP else service._on_end
            kernels.KERNEL.spawn(number.name, lambda: handler(number, None), self.host)

    def _guarded(self, host: Host) -> None:
        if self._queued_log:
            host.log = QueuedHandler(functools.partial(_write, host))
            host.log.start()
        try:
            service = Service(self.settings, lambda: self.settings, lambda _: None, SystemdNotifier({}), self.role)
            self.metrics.append(service._metrics)
            self._service = service
            if not service.run(lambda: self._again and service._on_end(signal.SIGTERM, None) is not None):
                raise Failure("no process gives up", self.name)
        except Exception as error:
            kernels.KERNEL.on_death(host, "main", error)
        self._ended(host)

    def _ended(self, host: Host) -> None:
        again = self._again
        if again:
            kernels.KERNEL.after(0.5, lambda: None if self.alive else self.start(host.skew))
        kernels.KERNEL.kill(host)

    @property
    def problems(self) -> list[str]:
        """What the daemon itself reports as stuck or dead."""
        runners: Any = self._service._daemon._runners if self._service else []
        return [problem for runner in runners for problem in runner.health]


def _write(host: Host, line: memoryview) -> int:
    """As `os.write` to a pipe that is full if nobody reads it."""
    while host.log_unread:
        kernels.KERNEL.pause(None)
    return len(line)


def _exit(_code: int) -> None:
    """`os._exit`."""
    current = kernels.KERNEL.current
    assert current
    current.host.exit()
    kernels.KERNEL.yield_()


_service = vars(sweeperd.runtime.service)
_service["os"] = SimpleNamespace(_exit=_exit)
#: A full collection takes long, and frees what a killed process holds.
_service["gc"] = SimpleNamespace(collect=lambda: None)
#: All replicas are in one process, and the load of the machine would decide about its core.
_service["CpuAffinity"] = lambda: SimpleNamespace(keep=lambda **_: None)
#: No signal comes through the interpreter, and the log is the simulation's.
_service["LastResort"] = lambda *_: SimpleNamespace(start=lambda: None)
#: Signals are sent by `Replica`, each to one process.
_service["signal"] = SimpleNamespace(
    signal=lambda *_: None,
    **{name: getattr(signal, name) for name in ("SIGHUP", "SIGTERM", "SIGINT", "SIG_DFL", "Signals")},
)
