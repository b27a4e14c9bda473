"""Sends messages to systemd (sd_notify) over the socket in NOTIFY_SOCKET, if the variable is set."""

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)

#: The send timeout, seconds: a busy service manager must not delay the sweep.
SEND_LIMIT = 1.0


class SystemdNotifier:
    """Sends messages to the service manager. If that fails, it is logged once."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self._failed = False
        self._status = ""
        self._fed_at = 0.0
        #: After this many seconds of silence the service manager restarts the process; None without a watchdog.
        self.watchdog_limit = _watchdog_limit(environment) if self._address else None

    def ready(self, status: str) -> None:
        self._status = status
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def reloading(self) -> None:
        """The process reloads its settings, until `ready`."""
        # systemd accepts the message only if this time is later than the signal's.
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._status = "Reloading"
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now}\nSTATUS=Reloading")

    def stopping(self) -> None:
        self._status = "Stopping"
        self._send("STOPPING=1\nSTATUS=Stopping")

    def status(self, text: str) -> None:
        """Set the status line, which is sent if it has changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={_line(text)}")

    def alive(self) -> None:
        """The process is healthy. Call this often: the watchdog gets four messages within its limit."""
        if self.watchdog_limit is not None and time.monotonic() - self._fed_at >= self.watchdog_limit / 4:
            self._fed_at = time.monotonic()
            self._send("WATCHDOG=1")

    def close(self) -> None:
        self._address = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.settimeout(SEND_LIMIT)
            self._socket.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("the service manager cannot be reached", extra={"error": error.strerror or str(error)})
            self._failed = True
        else:
            self._failed = False


def _address(text: str) -> str | None:
    """The address of a socket, in the file system or abstract (`@name`)."""
    if len(text) > 1 and text[0] in "/@":
        return text if text[0] == "/" else "\0" + text[1:]
    if text:
        log.warning("NOTIFY_SOCKET is neither a path nor an abstract address, and is ignored")
    return None


def _watchdog_limit(environment: Mapping[str, str]) -> float | None:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # inherited from the parent process
    try:
        microseconds = int(environment.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return microseconds / 1e6 if microseconds > 0 else None


def _line(text: str) -> str:
    return " ".join(text.split())
