"""Writes the log to standard error, as JSON lines or as text for a terminal."""

import functools
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import TextIO

from pythonjsonlogger.json import JsonFormatter

#: The attributes of every log record. All others come from `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Libraries that log normal events as warnings, such as a tick that outlasts its interval.
CHATTY = ("apscheduler", "urllib3", "tenacity", "opentelemetry")


#: The lowest log level of each journal priority.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))
#: How often to repeat a line, seconds.
REPEAT_AFTER = 60.0
#: How often to log an ongoing failure, seconds, and how many reasons to log in between.
TROUBLE_AGAIN, REASONS = 300.0, 8
#: The size of the queue of log lines, bytes, and how long an exit waits for it to drain, seconds.
QUEUE_BYTES, FLUSH = 4 * 1024 * 1024, 1.0
#: The pause between retries if standard error is non-blocking and full, seconds.
WRITE_AGAIN = 0.05


class TextFormatter(logging.Formatter):
    """`08:00:05 WARNING not delivered  endpoint=billing reason='HTTP 500'`."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()}"
        extra = " ".join(f"{key}={_word(value)}" for key, value in vars(record).items() if key not in _STANDARD)
        if extra:
            line += "  " + extra
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JournalFormatter(logging.Formatter):
    """Prefixes the lines of another formatter with their priority for systemd's journal, such as `<3>`."""

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        priority = next(priority for level, priority in _PRIORITIES if record.levelno >= level)
        return "\n".join(f"<{priority}>{line}" for line in self._lines.format(record).split("\n"))


class QueuedHandler(logging.Handler):
    """
    Writes lines from its own thread, so that a slow reader of the log blocks no other thread. If the reader falls
    behind by QUEUE_BYTES, lines are dropped until half of the queue is free, and a later line reports their number.

    `write` may block, and returns how many bytes it has written.
    """

    def __init__(self, write: Callable[[memoryview], int], encoding: str = "utf-8") -> None:
        super().__init__()
        self._write = write
        self._encoding = encoding
        #: The queued lines, each with the number of dropped lines that it reports. The first may be partly written.
        self._lines: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        #: How many lines were dropped, and how many of those are not reported yet.
        self.dropped = self._unreported = 0
        #: Whether the queue is full, and whether the last write failed.
        self._full = self._broken = False
        self._changed = threading.Condition(threading.Lock())
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system is out of threads."""
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            line = traceback.format_exc()  # `handleError` would write to standard error and may block
        data = self._encoded(line)
        with self._changed:
            self._full = self._bytes > QUEUE_BYTES // 2 if self._full else self._bytes + len(data) > QUEUE_BYTES
            if self._full:
                self.dropped += 1
                self._unreported += 1
                return
            self._report()
            self._put(data)
            self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait up to `seconds` until all lines are written. Returns whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines, seconds)

    def flush(self) -> None:
        self.drain(FLUSH)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line, reported = self._lines[0]
            written = self._written(line)
            with self._changed:
                self._lines.popleft()
                self._bytes -= len(line)
                self._broken = not written
                if not written:
                    self.dropped += not reported
                    self._unreported += reported or 1
                elif not self._lines:
                    self._report()
                self._changed.notify_all()

    def _written(self, line: bytes) -> bool:
        left = memoryview(line)
        while left:
            try:
                left = left[self._write(left) :]
            except BlockingIOError:  # a process that shares the stream has made it non-blocking
                time.sleep(WRITE_AGAIN)
            except OSError:  # the reader has exited, or the disk is full
                return False
        return True

    def _report(self) -> None:
        """Queue a report of the dropped lines unless writes fail. The caller holds the lock."""
        if not self._unreported or self._broken:
            return
        about = {"name": __name__, "levelname": "WARNING", "levelno": logging.WARNING, "lines": self._unreported}
        record = logging.makeLogRecord(about | {"msg": "the log was not read fast enough: lines were dropped"})
        self._put(self._encoded(self.format(record)), self._unreported)
        self._unreported = 0

    def _put(self, data: bytes, reported: int = 0) -> None:
        self._lines.append((data, reported))
        self._bytes += len(data)

    def _encoded(self, line: str) -> bytes:
        return f"{line}\n".encode(self._encoding, "backslashreplace")


def write_behind() -> None:
    """Queue the log lines of a daemon, so that a slow reader blocks no thread. Short commands must not lose lines."""
    root = logging.getLogger()
    for place, handler in enumerate(root.handlers):
        if isinstance(handler, _Direct):
            try:
                queued = QueuedHandler(functools.partial(os.write, sys.stderr.fileno()), sys.stderr.encoding)
                queued.setFormatter(handler.formatter)
                queued.start()
            except (OSError, ValueError, RuntimeError):
                continue  # there is no descriptor, or the system is out of threads
            root.handlers[place] = queued


def dropped_lines() -> int:
    return sum(handler.dropped for handler in _queued())


def drain(seconds: float) -> bool:
    """Wait up to `seconds` until all lines are written. Returns whether they are."""
    return all([handler.drain(seconds) for handler in _queued()])


def _queued() -> list[QueuedHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, QueuedHandler)]


class _Direct(logging.StreamHandler[TextIO]):
    """Writes each line in the thread that logs it."""


def configure(level: str, form: str) -> None:
    """Set up logging. `form`: text, json, or auto for text on a terminal and json elsewhere."""
    root = logging.getLogger()
    # A reload keeps the thread.
    handler = next(iter(_queued()), None) or _Direct(sys.stderr)
    formatter: logging.Formatter = TextFormatter()
    if is_json(form):
        formatter = JsonFormatter(
            ["timestamp", "levelname", "name", "message"],
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp=True,
        )
    handler.setFormatter(JournalFormatter(formatter) if _to_journal() else formatter)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(logging.ERROR, root.level))


def _word(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not any(mark in text for mark in " \"'=") else repr(text)


def is_json(form: str) -> bool:
    """Whether this `log.format` writes JSON lines."""
    return form == "json" or (form == "auto" and not sys.stderr.isatty())


def _to_journal() -> bool:
    """Whether standard error is systemd's journal stream, which JOURNAL_STREAM identifies."""
    try:
        about = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{about.st_dev}:{about.st_ino}"


class LogThrottle:
    """Throttles a repeated log line to one a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0

    def __call__(self) -> bool:
        due = self._clock() >= self._next
        if due:
            self._next = self._clock() + REPEAT_AFTER
        return due


class Trouble:
    """
    Throttles the log lines of work that keeps failing: logs the first failure, each new reason, one failure every 5
    minutes, and the recovery.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: The recently logged reasons; empty while the work succeeds.
        self._reasons: set[str] = set()
        self._repeat_at = 0.0
        #: The number of consecutive failures, and when the first one happened.
        self._failures, self._since = 0, 0.0

    def is_news(self, reason: str) -> bool:
        """Note a failure. Returns whether to log it."""
        now = self._clock()
        if not self._reasons:
            self._failures, self._since = 0, now
        self._failures += 1
        if self._reasons and now >= self._repeat_at:
            self._reasons.clear()
        elif reason in self._reasons or len(self._reasons) >= REASONS:
            return False
        self._reasons.add(reason)
        self._repeat_at = now + TROUBLE_AGAIN
        return True

    def end(self) -> dict[str, object] | None:
        """Note a success. Returns the fields of the recovery's log line, if the work had failed before."""
        if not self._reasons:
            return None
        self._reasons.clear()
        return {"failures": self._failures, "seconds": round(self._clock() - self._since, 1)}


class Outage:
    """Logs when a task waits for Redis, or fails at it, throttled by `Trouble`."""

    def __init__(self, log: logging.Logger, task: str, fields: Mapping[str, object]) -> None:
        """`task` starts each line: `<task> waits for redis`, `<task> failed`, `<task> goes on`."""
        self._log = log
        self._task = task
        self._fields = dict(fields)
        self._trouble = Trouble()

    def begin(self, error: Exception, *, failed: bool = False) -> None:
        """`failed`: waiting does not help, as with a key of another type."""
        if self._trouble.is_news(str(error)):
            level, words = (logging.ERROR, "failed") if failed else (logging.WARNING, "waits for redis")
            self._log.log(level, f"{self._task} {words}", extra=self._fields | {"error": str(error)})

    def end(self) -> None:
        if (outage := self._trouble.end()) is not None:
            self._log.info(f"{self._task} goes on", extra=self._fields | outage)
