"""The replicas: processes with an unchanged `Daemon` each. They may be killed, stopped, reloaded and restarted."""

import itertools
import threading
import time
from typing import Any

from sweeperd.config import Settings
from sweeperd.metrics import Metrics
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.process import Role
from tests.simulation import kernel as kernels
from tests.simulation.kernel import Host


def process_name() -> str:
    """In place of `sweeperd.store.lease.process_name`: the name of the process that asks."""
    current = kernels.KERNEL.current
    return f"{current.host.name if current else 'hub'}-1-000000"


class Replica:
    """One replica, over all its processes."""

    def __init__(self, name: str, role: str, settings: Settings) -> None:
        self.name, self.role, self.settings = name, Role(role), settings
        self._generations = itertools.count(1)
        self.host: Host | None = None
        self.daemon: Daemon | None = None
        self._wanted: Settings | None = None
        self._end = False
        #: The metrics of all processes, the dead ones too.
        self.metrics: list[Metrics] = []

    @property
    def alive(self) -> bool:
        """Whether a process runs."""
        return self.host is not None and not self.host.dead

    def start(self, skew: float = 0.0) -> None:
        """A new process."""
        self.host = Host(f"{self.name}.{next(self._generations)}")
        self.host.skew = skew
        self.daemon, self._end = None, False
        host = self.host
        kernels.KERNEL.spawn("main", lambda: self._guarded(host), host)

    def reload(self, settings: Settings) -> None:
        """As SIGHUP with these settings in the file."""
        self.settings = self._wanted = settings

    def terminate(self) -> None:
        """As SIGTERM."""
        self._end = True

    def _guarded(self, host: Host) -> None:
        try:
            self._main(host)
        except Exception as error:
            kernels.KERNEL.on_death(host, "main", error)

    def _main(self, host: Host) -> None:
        settings, metrics = self.settings, Metrics()
        self.metrics.append(metrics)
        self.daemon = daemon = Daemon(settings, metrics, self.role)
        self._wanted = None
        daemon.start()
        while not self._end:
            kernels.KERNEL.pause(1.0)
            daemon.catch_up()
            if (wanted := self._wanted) is not None and wanted != settings:
                settings, self._wanted = wanted, None
                self.daemon = daemon = self._replace(daemon, Daemon(settings, metrics, self.role), settings)
        daemon.stop()
        host.dead = True

    def _replace(self, before: Daemon, daemon: Daemon, settings: Settings) -> Daemon:
        """As `Service` does."""
        deadline = time.monotonic() + settings.shutdown_grace.total_seconds()
        while not before.retire(0.1) and time.monotonic() < deadline:
            pass
        daemon.adopt(before)
        daemon.start()
        threading.Thread(target=before.stop, args=(deadline,), name="finish").start()
        return daemon

    @property
    def problems(self) -> list[str]:
        """What the daemon itself reports as stuck or dead."""
        runners: Any = self.daemon._runners if self.daemon else []
        return [problem for runner in runners for problem in runner.health]
