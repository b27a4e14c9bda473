"""The log on standard error: a JSON object a line, or text for a terminal."""

import logging
import sys
from collections.abc import Mapping
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

#: The attributes of every log record; all others were given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Libraries with lines that are noise here: a draining tick outlasts the interval, a connection broke.
CHATTY = ("apscheduler", "urllib3", "tenacity", "opentelemetry")


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


def configure(level: str, form: Literal["auto", "text", "json"]) -> None:
    """Set up the log of the process."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "text" or (form == "auto" and sys.stderr.isatty()):
        handler.setFormatter(TextFormatter())
    else:
        handler.setFormatter(
            JsonFormatter(
                ["timestamp", "levelname", "name", "message"],
                rename_fields={"levelname": "level", "name": "logger"},
                timestamp=True,
            )
        )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(logging.ERROR, root.level))


def _word(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not any(mark in text for mark in " \"'=") else repr(text)


class Outage:
    """A task that waits for Redis: logged when the wait begins, when the reason changes, and when the wait is over."""

    def __init__(self, log: logging.Logger, task: str, fields: Mapping[str, object]) -> None:
        """`task` begins both lines: `<task> waits for redis`, `<task> goes on`."""
        self._log = log
        self._task = task
        self._fields = dict(fields)
        self._reason = ""

    def begin(self, error: Exception) -> None:
        """The task failed for this reason."""
        if str(error) != self._reason:
            self._reason = str(error)
            self._log.warning(f"{self._task} waits for redis", extra=self._fields | {"error": self._reason})

    def end(self) -> None:
        """The task succeeded."""
        if self._reason:
            self._log.info(f"{self._task} goes on", extra=self._fields)
            self._reason = ""
