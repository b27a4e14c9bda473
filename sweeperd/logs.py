"""The log on standard error: a JSON object a line, or text for a terminal."""

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

#: The attributes of every log record; all others were given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Libraries with lines that are noise here: a draining tick outlasts the interval, a connection broke.
CHATTY = ("apscheduler", "urllib3", "tenacity", "opentelemetry")


#: The least level of each priority of the journal.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))
#: After how long a repeated line is written again, seconds.
REPEAT_AFTER = 60.0
#: After how long a failure that lasts is written again, seconds; and how many reasons are written in between.
TROUBLE_AGAIN, REASONS = 300.0, 8
#: How many bytes of lines wait for the reader of the log at most; how long an exit waits for the last ones, seconds.
QUEUE_BYTES, FLUSH = 4 * 1024 * 1024, 1.0
#: Between two tries if standard error does not block and is full, seconds.
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
    """Lines of another formatter, each with its priority in front as the journal of systemd reads it: `<3>`."""

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        priority = next(priority for level, priority in _PRIORITIES if record.levelno >= level)
        return "\n".join(f"<{priority}>{line}" for line in self._lines.format(record).split("\n"))


class QueuedHandler(logging.Handler):
    """
    Writes the lines from a separate thread, so that no other thread waits for the reader of the log. If the reader
    falls behind by QUEUE_BYTES, lines are dropped until half of the queue is free. When lines are written again, one of
    them says how many were dropped.

    `write` writes some of these bytes, may block, and returns how many were written.
    """

    def __init__(self, write: Callable[[memoryview], int], encoding: str = "utf-8") -> None:
        super().__init__()
        self._write = write
        self._encoding = encoding
        #: The waiting lines, each with the number of dropped lines that it reports; the first may be half written.
        self._lines: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        #: How many lines were dropped, and how many of them no line has reported yet.
        self.dropped = self._unreported = 0
        #: Whether the queue is full, and whether the last line could not be written.
        self._full = self._broken = False
        self._changed = threading.Condition(threading.Lock())
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system gives no more threads."""
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            line = traceback.format_exc()  # `handleError` would write to standard error, and wait for the reader
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
        """Wait for up to `seconds` until each line was written. Returns whether each was."""
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
            except BlockingIOError:  # another process that shares the stream has set it so
                time.sleep(WRITE_AGAIN)
            except OSError:  # the reader has gone, or the disk is full
                return False
        return True

    def _report(self) -> None:
        """Queue a line about the dropped lines, unless nothing can be written. The caller has the lock."""
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
    """
    From now on no thread of this process waits for the reader of the log. For a daemon: other commands end soon, and
    lose no line.
    """
    root = logging.getLogger()
    for place, handler in enumerate(root.handlers):
        if isinstance(handler, _Direct):
            try:
                queued = QueuedHandler(functools.partial(os.write, sys.stderr.fileno()), sys.stderr.encoding)
                queued.setFormatter(handler.formatter)
                queued.start()
            except (OSError, ValueError, RuntimeError):
                continue  # there is no descriptor, or the system gives no more threads
            root.handlers[place] = queued


def dropped_lines() -> int:
    """How many lines this process has dropped."""
    return sum(handler.dropped for handler in _queued())


def drain(seconds: float) -> bool:
    """Wait for up to `seconds` until each line was written. Returns whether each was."""
    return all([handler.drain(seconds) for handler in _queued()])


def _queued() -> list[QueuedHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, QueuedHandler)]


class _Direct(logging.StreamHandler[TextIO]):
    """The thread that logs a line writes the line."""


def configure(level: str, form: str) -> None:
    """Set up the log of the process. `form`: text, json, or auto: text on a terminal, else json."""
    root = logging.getLogger()
    # After a reload the same thread goes on.
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
    """Whether lines of this `log.format` are JSON."""
    return form == "json" or (form == "auto" and not sys.stderr.isatty())


def _to_journal() -> bool:
    """Whether standard error is the stream to the journal that systemd names by device and inode."""
    try:
        about = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{about.st_dev}:{about.st_ino}"


class LogThrottle:
    """Lets a line that would be repeated through once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0

    def __call__(self) -> bool:
        """Whether the line is due."""
        due = self._clock() >= self._next
        if due:
            self._next = self._clock() + REPEAT_AFTER
        return due


class Trouble:
    """
    Decides which lines to write about work that fails again and again: the first failure, a new reason, one failure
    every 5 minutes, and the end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: The reasons that were written lately; empty while the work succeeds.
        self._reasons: set[str] = set()
        self._repeat_at = 0.0
        #: How often the work has failed in a row, and since when (by the clock).
        self._failures, self._since = 0, 0.0

    def is_news(self, reason: str) -> bool:
        """The work failed. Returns whether to write a line."""
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
        """The work succeeded. Returns the fields of the line to write; None if the work did not fail before."""
        if not self._reasons:
            return None
        self._reasons.clear()
        return {"failures": self._failures, "seconds": round(self._clock() - self._since, 1)}


class Outage:
    """A task that waits for Redis: logged as `Trouble` says."""

    def __init__(self, log: logging.Logger, task: str, fields: Mapping[str, object]) -> None:
        """`task` begins both lines: `<task> waits for redis`, `<task> goes on`."""
        self._log = log
        self._task = task
        self._fields = dict(fields)
        self._trouble = Trouble()

    def begin(self, error: Exception) -> None:
        """The task failed for this reason."""
        if self._trouble.is_news(str(error)):
            self._log.warning(f"{self._task} waits for redis", extra=self._fields | {"error": str(error)})

    def end(self) -> None:
        """The task succeeded."""
        if (outage := self._trouble.end()) is not None:
            self._log.info(f"{self._task} goes on", extra=self._fields | outage)
