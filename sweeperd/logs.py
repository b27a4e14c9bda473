"""The log on standard error: a JSON object a line, or text for a terminal."""

import logging
import sys
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

#: What a log record has anyway; everything else in it was given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Libraries whose own lines are noise here: that a tick which drains outlasts the interval, that a connection broke.
CHATTY = ("apscheduler", "urllib3", "tenacity")


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
    """Set the process's log up."""
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
