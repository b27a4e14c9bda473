"""Runs the daemon as a service: handles its signals and reloads, and serves its HTTP endpoints."""

import contextlib
import errno
import gc
import logging
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweeperd import __version__, logs
from sweeperd.config import Settings
from sweeperd.cpu_turns import CpuTurns
from sweeperd.errors import ConfigError
from sweeperd.metrics import Metrics
from sweeperd.ops.endpoints import jwks
from sweeperd.progress import Progress
from sweeperd.runtime.cpu_affinity import CpuAffinity
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.last_resort import LastResort
from sweeperd.runtime.process import Role, deadly
from sweeperd.runtime.systemd import SystemdNotifier
from sweeperd.web.server import WebServer

log = logging.getLogger(__name__)

#: Between two health checks, seconds.
CHECK_EVERY = 1.0
#: A main thread without a health check for this long hangs, seconds.
LONGEST_SILENCE = 30.0
#: Between two checks of the files with secrets, seconds.
SECRETS_EVERY = 5.0
#: The share of `shutdown_grace` for the last log lines, and its limit in seconds.
LAST_LINES, LONGEST_LAST_LINES = 0.05, 0.5


class Service:
    """
    Runs a daemon until SIGTERM or SIGINT. At a SIGHUP, a new daemon with new settings takes over, with the counters and
    the HTTP port. `load` reads the settings (raises ConfigError), `apply_log` sets up the log. Raises ConfigError if it
    cannot listen for HTTP.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        apply_log: Callable[[Settings], None],
        notifier: SystemdNotifier,
        role: Role = Role.ALL,
    ) -> None:
        self._settings = settings
        self._role = role
        self._load = load
        self._apply_log = apply_log
        self._notifier = notifier
        self._metrics = Metrics(**settings.metrics.model_dump(), cycles=settings.cycles.enabled)
        self._cpu_turns = CpuTurns()
        self._daemon = Daemon(settings, self._metrics, self._role, self._cpu_turns)
        self._web = self._listen(settings)
        #: The daemon of a reload until it has taken over.
        self._successor: Daemon | None = None
        self._cpu_affinity = CpuAffinity()
        #: Finishes the work in flight of the replaced daemon.
        self._last_work: threading.Thread | None = None
        # Signal handlers interrupt this thread anywhere, so they touch only plain attributes and a queue whose `put` is
        # reentrant. An Event's `set` can deadlock with a `wait` on it.
        self._ending: signal.Signals | None = None
        self._reload_wanted = False
        #: Why the last reload was refused; empty if it was not.
        self._refused = ""
        #: When to check the files with secrets again (monotonic), and what the last check found.
        self._secrets_at = 0.0
        self._stamps = _stamps(settings)
        self._progress = Progress()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self, reload_wanted: Callable[[], bool] = lambda: False) -> bool:
        """
        Serve until SIGTERM or SIGINT. A second signal ends the process at once. `reload_wanted`: whether a SIGHUP came
        before this call. Returns False if the service failed.
        """
        signal.signal(signal.SIGHUP, self._on_reload)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_end)
        LastResort(lambda: self._grace - self._last_lines, self._end_hanging, signal.SIGTERM, signal.SIGINT).start()
        logs.write_behind()
        self._reload_wanted = self._reload_wanted or reload_wanted()
        failed = False
        try:
            if self._web:
                self._web.start()
            self._daemon.start()
            self._serve()
        except Exception:
            log.exception("sweeperd cannot go on and ends")
            failed = True
        self._notifier.stopping()
        ended = self._stop()
        if not logs.drain(self._last_lines) or not ended:
            # A thread that hangs in a request or in the log would keep the interpreter alive.
            os._exit(int(failed))
        return not failed

    def _serve(self) -> None:
        log.info(
            "started",
            extra={"version": __version__, **self._daemon.about(), "http_port": self._web.port if self._web else None},
        )
        self._log_doubts()
        self._notifier.ready(self._status())
        while not self._ending:
            self._progress.step()
            self._check()
            self._clear_up()
            self._wait(min(CHECK_EVERY, (self._notifier.watchdog_limit or math.inf) / 8))
            if not self._ending and not self._finishing and (self._reload_wanted or self._secrets_changed()):
                self._reload()
        self._progress.rest()
        log.info("stopping", extra={"signal": self._ending.name})

    def health(self) -> tuple[bool, str]:
        well, problems = self._daemon.health()
        if self._progress.silent_for > LONGEST_SILENCE:
            return False, "the main thread is stuck" if well else f"the main thread is stuck, {problems}"
        return well, problems

    def readiness(self) -> tuple[bool, str]:
        return (False, "stopping") if self._ending else self._daemon.readiness()

    def report(self) -> dict[str, Any]:
        return self._daemon.report()

    def jwks(self) -> dict[str, Any]:
        return jwks(self._settings.webhooks.endpoints)

    def look_up(self, page: str, asked: Mapping[str, str]) -> dict[str, Any]:
        """The document of a page about entries; see `EntryPages.answer`."""
        return self._daemon.entry_pages.answer(page, asked)

    def _on_end(self, number: int, _frame: object) -> None:
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, deadly())
        self._ending = signal.Signals(number)
        self._wake.put(None)

    @property
    def _grace(self) -> float:
        """How long the process may take to end, seconds."""
        return self._settings.shutdown_grace.total_seconds()

    @property
    def _last_lines(self) -> float:
        return min(self._grace * LAST_LINES, LONGEST_LAST_LINES)

    def _end_hanging(self) -> None:
        """End the process although its main thread hangs."""
        words = "a thread hangs, so the process ends without it; work in flight will be done again"
        # In its own thread, because the log may hang too.
        last_words = threading.Thread(target=log.error, args=(words,), name="last-words", daemon=True)
        last_words.start()
        last_words.join(self._last_lines / 2)
        logs.drain(self._last_lines / 2)
        os._exit(0)

    def _on_reload(self, _number: int, _frame: object) -> None:
        self._reload_wanted = True
        self._wake.put(None)

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=seconds)

    def _check(self) -> None:
        self._daemon.catch_up()
        self._cpu_affinity.keep(wanted=self._role.delivers and bool(self._settings.webhooks.endpoints))
        self._feed()
        self._notifier.status(self._status())

    def _feed(self) -> None:
        """Ping the systemd watchdog only while healthy, so that a daemon that hangs is restarted."""
        self._progress.step()
        if self.health()[0]:
            self._notifier.alive()

    def _secrets_changed(self) -> bool:
        """
        Whether a file with a secret of an endpoint has changed, or Redis refuses the password and the URL now has
        another one. While Redis accepts the old password, it may not know a new one yet.
        """
        if time.monotonic() < self._secrets_at:
            return False
        self._secrets_at = time.monotonic() + SECRETS_EVERY
        if _stamps(self._settings) != self._stamps:
            log.info("a file with a secret has changed, so the settings are read again")
            return True
        if not self._daemon.password_refused:
            return False
        try:
            new, old = self._load(), self._settings
            changed = (new.redis, new.all_shards) != (old.redis, old.all_shards)
        except ConfigError:
            return False  # perhaps the file is being written: check again later
        if changed:
            log.warning("redis refuses the password, so the settings are read again")
        return changed

    def _status(self) -> str:
        refused = f"The new settings were refused: {self._refused}. " if self._refused else ""
        return refused + self._condition()

    def _condition(self) -> str:
        well, problem = self.health()
        if not well:
            return f"Not well: {problem}"
        ready, troubles = self.readiness()
        troubles = troubles.removeprefix("ok").strip().replace("\n", "; ")
        if troubles:
            return f"{'In part' if ready else 'Not'} ready: {troubles}"
        endpoints = len(self._settings.webhooks.endpoints)
        sweeping = f"sweeping every {self._settings.sweep.interval.total_seconds():g} s"
        delivering = f"delivering to {endpoints} endpoint{'' if endpoints == 1 else 's'}"
        work = [sweeping] * self._role.sweeps + [delivering] * self._role.delivers
        return ", ".join(work).capitalize()

    def _reload(self) -> None:
        """Apply the new settings, or keep the old ones if they are refused. Raises if the new daemon fails to start."""
        self._clear_up()
        self._reload_wanted = False  # before the file is read, because later signals may be about a newer one
        self._notifier.reloading()
        self._refused = ""
        self._stamps = _stamps(self._settings)
        try:
            prepared = self._prepare(self._load())
        except ConfigError as error:
            self._refuse(str(error))
        except Exception as error:
            log.exception("the reload failed")
            self._refuse(f"{type(error).__name__}: {error}")
        else:
            if prepared:
                self._replace(*prepared)
            self._metrics.reloads.labels("ok").inc()
        self._notifier.ready(self._status())

    def _refuse(self, problem: str) -> None:
        self._refused = problem
        log.error("the new settings are refused, the old ones stay", extra={"error": problem})
        self._metrics.reloads.labels("refused").inc()

    def _prepare(self, settings: Settings) -> tuple[Settings, Daemon, WebServer | None] | None:
        """A daemon with these settings and an HTTP server, not yet started; None if nothing changed."""
        if settings.metrics != self._settings.metrics:
            log.warning("the settings of [metrics] take effect with the next start")
            settings = settings.model_copy(update={"metrics": self._settings.metrics})
        if settings == self._settings:
            log.info("reloaded; nothing has changed", extra=self._daemon.about())
            return None
        web = self._web if settings.http.address == self._settings.http.address else self._listen(settings)
        try:
            return settings, Daemon(settings, self._metrics, self._role, self._cpu_turns), web
        except BaseException:
            if web and web is not self._web:
                web.close()
            raise

    def _replace(self, settings: Settings, daemon: Daemon, web: WebServer | None) -> None:
        """Let the new daemon take over after the current batch, while the old one finishes its requests in flight."""
        before, grace = self._daemon, self._grace
        deadline = time.monotonic() + grace
        while not before.retire(0.1) and not self._ending and time.monotonic() < deadline:
            self._feed()
        self._successor = daemon
        daemon.adopt(before)
        daemon.start()
        self._last_work = threading.Thread(target=before.stop, args=(deadline,), name="finish", daemon=True)
        self._last_work.start()
        self._daemon, self._settings, self._successor = daemon, settings, None
        self._stamps = _stamps(settings) | {
            path: self._stamps[path] for path in settings.watched if path in self._stamps
        }
        if web is not self._web:
            if web:
                web.start()
            if self._web:
                self._web.close()
            self._web = web
        elif web:
            web.allow(settings.http)
        self._apply_log(settings)
        log.info("reloaded", extra={**daemon.about(), "http_port": web.port if web else None})
        self._log_doubts()

    def _log_doubts(self) -> None:
        for doubt in self._settings.doubts:
            log.warning("the settings are probably wrong", extra={"problem": doubt})

    def _clear_up(self) -> None:
        """
        Free the memory of a replaced daemon that has ended. Its parts refer to each other, and the garbage collector
        may wait long, because it does not count the memory of TLS.
        """
        if self._last_work is not None and not self._finishing:
            self._last_work = None
            gc.collect()

    @property
    def _finishing(self) -> bool:
        """Whether a replaced daemon still has work in flight, so that the next reload waits."""
        return self._last_work is not None and self._last_work.is_alive()

    def _listen(self, settings: Settings) -> WebServer | None:
        """None if HTTP is off. Raises ConfigError if it cannot listen."""
        if not settings.http.address:
            return None
        try:
            return WebServer(
                settings.http, self._metrics, self.health, self.readiness, self.report, self.jwks, self.look_up
            )
        except OSError as error:
            advice = "; does another sweeperd run on this host?" if error.errno == errno.EADDRINUSE else ""
            reason = error.strerror or error
            raise ConfigError(f"http.listen: cannot listen on {settings.http.listen}: {reason}{advice}") from None

    def _stop(self) -> bool:
        """Stop everything within `shutdown_grace`. Returns whether all threads have ended."""
        deadline = time.monotonic() + self._grace - 3 * self._last_lines
        if self._successor is not None:  # the new daemon failed to start
            self._successor.retire(0)
        ended = self._daemon.stop(deadline)
        if self._successor is not None:
            ended = self._successor.stop(deadline) and ended
        if self._last_work is not None and self._last_work.ident is not None:
            self._last_work.join(max(0.0, deadline - time.monotonic()))
            ended = ended and not self._finishing
        if self._web and ended:
            self._web.close()
        log.info("stopped" if ended else "stopped, with work still in flight; it will be done again")
        self._notifier.close()
        return ended


def _stamps(settings: Settings) -> dict[Path, tuple[int, int, int] | None]:
    """For each watched file what changes if it is written or replaced; None if it is missing."""
    found: dict[Path, tuple[int, int, int] | None] = dict.fromkeys(settings.watched)
    for path in found:
        with contextlib.suppress(OSError):
            about = path.stat()
            found[path] = about.st_ino, about.st_size, about.st_mtime_ns
    return found
