"""The log on standard error: a JSON object a line, or text for a terminal."""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping

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


def configure(level: str, form: str) -> None:
    """Set up the log of the process. `form`: text, json, or auto: text on a terminal, else json."""
    handler = logging.StreamHandler(sys.stderr)
    formatter: logging.Formatter = TextFormatter()
    if is_json(form):
        formatter = JsonFormatter(
            ["timestamp", "levelname", "name", "message"],
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp=True,
        )
    handler.setFormatter(JournalFormatter(formatter) if _to_journal() else formatter)
    root = logging.getLogger()
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


class Rarely:
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
