"""The log's two forms."""

import contextlib
import io
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sweeperd import logs
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import TROUBLE_AGAIN, LogThrottle, Outage, QueuedHandler, Trouble, drain, dropped_lines
from sweeperd.metrics import Metrics
from tests.support.harness import eventually

pytestmark = pytest.mark.usefixtures("log_restored")

log = logging.getLogger("sweeperd.test")


def written(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    return err


def parsed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    text = written(capsys)
    assert text.count("\n") == 1
    told: dict[str, Any] = json.loads(text)
    return told


def test_a_json_line_has_the_extras(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    log.warning("not %s", "delivered", extra={"endpoint": "billing", "hand_overs": 3, "scopes": ["a b"]})
    line = parsed(capsys)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", line.pop("timestamp"))
    assert line == {
        "level": "WARNING",
        "logger": "sweeperd.test",
        "message": "not delivered",
        "endpoint": "billing",
        "hand_overs": 3,
        "scopes": ["a b"],
    }


def test_a_json_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError:
        log.exception("it\nfailed", extra={"reservation_id": 'a\n"b"\u2028'})
    line = parsed(capsys)
    assert (line["message"], line["reservation_id"]) == ("it\nfailed", 'a\n"b"\u2028')
    assert "Traceback" in line["exc_info"]
    assert "RuntimeError: two\nlines" in line["exc_info"]


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    log.warning("not delivered", extra={"endpoint": "billing", "reason": "HTTP 500", "hand_overs": 3})
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d WARNING not delivered  endpoint=billing reason='HTTP 500' hand_overs=3\n", written(capsys)
    )


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("plain", "plain"),
        (5, "5"),
        ("", "''"),
        ("two words", "'two words'"),
        ("a\nforged=1", "'a\\nforged=1'"),
        ("a\x1b[2J", "'a\\x1b[2J'"),
        ("a=b", "'a=b'"),
        ("it's", '"it\'s"'),
        ('"', "'\"'"),
        ("größe", "größe"),
        (["x"], "\"['x']\""),
    ],
)
def test_text_quotes_what_could_mislead(value: object, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    log.info("expired", extra={"reservation_id": value, "outcome": "expired"})
    assert written(capsys).endswith(f" INFO    expired  reservation_id={word} outcome=expired\n")


def test_text_without_extras(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    log.info("started")
    assert written(capsys).endswith(" INFO    started\n")


def test_text_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    try:
        raise RuntimeError("out of luck")
    except RuntimeError:
        log.exception("it failed", extra={"duty": "sweep"})
    first, *rest = written(capsys).splitlines()
    assert first.endswith("ERROR   it failed  duty=sweep")
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "RuntimeError: out of luck"


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "text")
    log.info("quiet")
    log.warning("loud")
    assert "quiet" not in (text := written(capsys))
    assert "loud" in text


@pytest.mark.parametrize("name", ["apscheduler.scheduler", "urllib3.connectionpool"])
def test_libraries_that_chatter_are_quiet(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("debug", "json")
    logging.getLogger(name).warning("chatter")
    assert written(capsys) == ""
    logging.getLogger(name).error("trouble")
    assert parsed(capsys)["message"] == "trouble"


@pytest.mark.parametrize(("terminal", "first"), [(False, "{"), (True, "")])
def test_auto(terminal: bool, first: str) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    with contextlib.redirect_stderr(Stream()) as stream:
        logs.configure("info", "auto")
        log.info("started")
    assert stream.getvalue().startswith("{") is bool(first)


def test_configured_twice_it_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    logs.configure("info", "json")
    log.info("started")
    assert parsed(capsys)["message"] == "started"


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("sweeperd.test"), "the task", {"shard": "eu"})
    with caplog.at_level(logging.INFO):
        outage.end()
        for reason in ("refused", "refused", "loading"):
            outage.begin(RedisUnavailable(reason))
        outage.end()
        outage.end()
    logged = [(record.levelname, record.message, getattr(record, "error", "")) for record in caplog.records]
    assert logged == [
        ("WARNING", "the task waits for redis", "refused"),
        ("WARNING", "the task waits for redis", "loading"),
        ("INFO", "the task goes on", ""),
    ]


def test_lines_for_the_journal_have_a_priority(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = open(2, "w", closefd=False)  # noqa: SIM115 - what the journal's stream would be
    monkeypatch.setattr("sys.stderr", stream)
    about = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{about.st_dev}:{about.st_ino}")
    logs.configure("debug", "text")
    log.debug("one")
    log.info("two")
    log.warning("three\nlines")
    log.error("four")
    log.critical("five")
    monkeypatch.setenv("JOURNAL_STREAM", f"{about.st_dev}:{about.st_ino + 1}")
    logs.configure("debug", "json")
    log.error("elsewhere")
    lines = capfd.readouterr().err.splitlines()
    assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<4>", "<3>", "<2>", '{"t']


def test_a_repeated_line_is_let_through_once_a_minute() -> None:
    now = 1000.0
    throttle = LogThrottle(lambda: now)
    assert [throttle(), throttle()] == [True, False]
    now += 59
    assert not throttle()
    now += 1
    assert [throttle(), throttle()] == [True, False]


def test_a_failure_that_lasts_is_news_at_first_with_a_new_reason_and_every_five_minutes() -> None:
    now = 1000.0
    trouble = Trouble(lambda: now)
    assert trouble.end() is None
    assert [trouble.is_news(reason) for reason in ("refused", "refused", "loading", "refused")] == [1, 0, 1, 0]
    now += TROUBLE_AGAIN - 1
    assert not trouble.is_news("refused")
    now += 1
    assert [trouble.is_news("refused"), trouble.is_news("refused")] == [True, False]
    assert trouble.end() == {"failures": 7, "seconds": TROUBLE_AGAIN}
    assert trouble.end() is None
    assert trouble.is_news("refused")


def test_reasons_that_never_repeat_do_not_fill_the_log() -> None:
    trouble = Trouble(lambda: 1000.0)
    assert sum(trouble.is_news(f"entry {number}") for number in range(100)) < 10


class Reader:
    """Reads a log, or does not."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reads = threading.Event()
        self.error: OSError | None = None

    def write(self, data: memoryview) -> int:
        self.reads.wait(20)
        if self.error:
            raise self.error
        self.lines.append(bytes(data).decode())
        return len(data)


@pytest.fixture
def reader() -> Iterator[Reader]:
    """The reader of the process's log, which is queued."""
    made = Reader()
    handler = QueuedHandler(made.write)
    handler.start()
    logging.getLogger().handlers[:] = [handler]
    yield made
    made.reads.set()
    assert drain(20)


def test_lines_that_nobody_reads_hold_up_nobody_and_are_counted(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "QUEUE_BYTES", 1000)
    metrics = Metrics()
    for _ in range(100):
        log.warning("%099d", 0)
    assert metrics.registry.get_sample_value("sweeperd_log_lines_dropped_total") == dropped_lines() == 90
    assert not drain(0)
    reader.reads.set()
    assert drain(20)
    assert reader.lines[:10] == ["0" * 99 + "\n"] * 10
    (told,) = reader.lines[10:]
    assert "dropped" in told
    log.warning("and on")
    assert drain(20)
    assert reader.lines[11:] == ["and on\n"]


def test_the_report_of_dropped_lines_has_their_number(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "QUEUE_BYTES", 1000)
    logs.configure("info", "json")
    for _ in range(100):
        log.warning("x")
    reader.reads.set()
    assert drain(20)
    assert json.loads(reader.lines[-1])["lines"] == dropped_lines() > 0


def test_lines_that_cannot_be_written_are_counted(reader: Reader) -> None:
    reader.error = BrokenPipeError()
    reader.reads.set()
    for number in range(3):
        log.warning("%d", number)
        assert drain(20)
    assert dropped_lines() == 3
    reader.error = None
    log.warning("written")
    assert drain(20)
    eventually(lambda: len(reader.lines) == 2)
    assert reader.lines[0] == "written\n"
    assert dropped_lines() == 3


def test_a_record_that_cannot_be_formatted_is_told_in_the_log(reader: Reader) -> None:
    reader.reads.set()
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if isinstance(handler, QueuedHandler)]  # pytest's raises
    log.warning("%d", "no number")
    assert drain(20)
    assert "TypeError" in reader.lines[0]


def test_after_a_reload_the_same_thread_writes_in_the_new_form(reader: Reader) -> None:
    reader.reads.set()
    logs.configure("info", "json")
    log.info("started")
    assert drain(20)
    assert json.loads(reader.lines[0])["message"] == "started"


def test_a_stream_without_a_descriptor_is_written_directly(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    logs.write_behind()
    log.info("started")
    assert written(capsys).endswith("started\n")
