"""Search, an entry's page and the lists: over HTTP, and in a real browser."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import redis

from tests.support.acl import limited
from tests.support.eyes.browser import Browser, Page, needs_browser
from tests.support.harness import Daemon, daemon, environment, eventually, once, reserve, server_time
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server, free_port

AMPLE = {
    "sweep__interval": "200ms",
    "webhooks__attempts": 1,
    "webhooks__redelivery_initial": "200ms",
    "webhooks__redelivery_max": "200ms",
}
FAR = 4_000_000_000_000
HOSTILE = b"<img src=x onerror=alert(1)>\xff\x00\xe2\x80\xae&q='\""


def ask(running: Daemon, page: str, **asked: object) -> dict[str, Any]:
    status, body = running.get(f"/{page}.json?{urlencode(asked)}")
    assert status == 200, body
    document: dict[str, Any] = json.loads(body)
    return document


def shard(running: Daemon, page: str, **asked: object) -> dict[str, Any]:
    """What the only shard says."""
    document = ask(running, page, **asked)
    assert document["down"] == []
    (only,) = document["shards"]
    return dict(only)


def test_an_entry_is_found_with_its_event_and_every_attempt(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    def echo(request: Any, _: int) -> Answer:
        return Answer(500, body=f"your token is {request.headers['X-Token']}".encode())

    with Receiver() as good, Receiver(echo) as bad, Receiver() as batches:
        endpoints = [
            {"name": "good", "url": good.url},
            {"name": "bad", "url": bad.url, "headers": {"X-Token": "only-the-receiver-knows"}},
            {"name": "batches", "url": batches.url, "batch_size": 10},
        ]
        with daemon(environment(server.url, endpoints=endpoints, **AMPLE), tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["r1"])

            def entry() -> dict[str, Any]:
                return shard(running, "entry", id="r1")

            def attempts() -> list[dict[str, Any]]:
                return list(entry()["event"]["attempts"]) if entry()["event"] else []

            eventually(lambda: len([each for each in attempts() if each["endpoint"] == "bad"]) >= 3)
            eventually(lambda: {each["endpoint"] for each in attempts()} == {"good", "bad", "batches"})
            (request,), (batch,) = good.requests, batches.requests
            for text in (request.event_id, entry()["event"]["stream_id"], "r1"):
                assert shard(running, "entry", id=text)["id"] == "r1"
            (row,) = shard(running, "search", q=request.event_id)["rows"]
            assert (row["id"], row["kind"], row["event_id"]) == ("r1", "reservations", request.event_id)
            (found,) = shard(running, "search", q=batch.headers["webhook-id"])["batches"]
            assert [each["id"] for each in found["events"]] == ["r1"]
            # The same document as the command's, and nothing of the secret.
            shown = entry()
            fates = {each["endpoint"]: each["fate"] for each in shown["event"]["deliveries"]}
            assert fates == {"good": "acknowledged", "bad": "pending", "batches": "acknowledged"}
            assert {each["answer"] for each in attempts() if each["endpoint"] == "bad"} == {"your token is ***"}
            assert "only-the-receiver-knows" not in json.dumps(shown)
            assert shown["commands"] == ["sweeperd show r1", f"sweeperd endpoints skip bad {request.event_id}"]
            assert shown["sweep"]["outcome"] == "skipped"


def test_a_tenant_and_lists_with_paging(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    names = [f"r{number:03}" for number in range(120)]
    reserve(client, names)
    reserve(client, ["other"], tenant="globex")
    assert once(environment(server.url)).code == 0
    for number in range(60):
        client.xadd(
            "sweeperd:dead-letters", {"endpoint": "a" if number % 2 else "b", "tenant": "acme", "id": f"r{number}"}
        )
        client.hset(f"reservation:res_q{number}", mapping={"tenant": "acme", "quarantine_reason": "INVALID_STATE"})
        client.zadd("sweeperd:quarantine", {f"q{number}": 1_700_000_000_000 + number // 20})
    client.hset("reservation:res_q7", "tenant", "globex")
    with daemon(environment(server.url), tmp_path) as running:

        def pages(page: str, **asked: object) -> Iterator[dict[str, Any]]:
            before = ""
            while True:
                told = shard(running, page, before=before, **asked)
                told = told["kinds"][0] | {"looked": told["kinds"][0]} if page == "quarantine" else told
                yield told
                before = told["looked"]["before"]
                if not before:
                    return

        listed = list(pages("expired", tenant="acme"))
        assert [len(each["rows"]) for each in listed] == [50, 50, 20]
        assert sorted(row["id"] for each in listed for row in each["rows"]) == names
        assert listed[-1]["looked"]["complete"]
        found = list(pages("search", q="acme"))
        assert [row["id"] for each in found for row in each["rows"]] == [
            row["id"] for each in listed for row in each["rows"]
        ]
        assert [row["id"] for row in shard(running, "expired", tenant="globex")["rows"]] == ["other"]
        letters = list(pages("dead-letters"))
        assert [len(each["rows"]) for each in letters] == [50, 10]
        assert (letters[0]["rows"][0]["id"], letters[1]["rows"][-1]["id"]) == ("r59", "r0")
        assert {row["endpoint"] for row in shard(running, "dead-letters", endpoint="a", tenant="acme")["rows"]} == {"a"}
        assert shard(running, "dead-letters", tenant="globex")["rows"] == []
        aside = list(pages("quarantine"))
        assert [len(each["rows"]) for each in aside] == [50, 10]
        assert len({row["id"] for each in aside for row in each["rows"]}) == 60
        times = [row["quarantined_at"] for each in aside for row in each["rows"]]
        assert times == sorted(times, reverse=True)
        (kind,) = shard(running, "quarantine", tenant="globex", reason="INVALID_STATE")["kinds"]
        assert ([row["id"] for row in kind["rows"]], kind["size"], kind["before"]) == (["q7"], 60, "")
        entry = shard(running, "entry", id="q7")
        assert entry["commands"][:2] == ["sweeperd show q7", "sweeperd quarantine requeue q7"]


#: Path -> the answer to it.
MEANINGLESS = {
    "/search.json": "nothing is asked for",
    "/entry.json?id=": "nothing is asked for",
    "/expired.json?shard=nowhere": "there is no such shard",
    "/quarantine.json?kind=nothing": "there is no such kind",
    "/expired.json?before=x": "before: not the id of an entry of a stream",
    "/quarantine.json?before=x": "before: not a place in a quarantine",
    "/quarantine.json?before=nan:0": "before: not a place in a quarantine",
}


def test_questions_without_a_meaning(server: Server, tmp_path: Path) -> None:
    with daemon(environment(server.url), tmp_path) as running:
        for path, problem in MEANINGLESS.items():
            assert running.get(path) == (400, f"{problem}\n")


def test_every_kind_and_shard_and_what_is_not_reached(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    hold_seats(client, "same", 1, FAR)
    reserve(client, ["same"], overdue_by=-60_000)
    reserve(client, ["same"], prefix="b:", overdue_by=-60_000)
    places = [
        {"name": "a", "url": server.url},
        {"name": "b", "url": server.url, "prefix": "b:"},
        {"name": "dead", "url": f"redis://:hush@127.0.0.1:{free_port()}/0"},
    ]
    config = tmp_path / "config.toml"
    config.write_text(SEAT_HOLD)
    with daemon(environment(shards=places, config=config), tmp_path) as running:
        found = ask(running, "entry", id="same")
        assert [(each["shard"], each["kind"]) for each in found["shards"]] == [
            ("a", "reservations"),
            ("a", "seat-hold"),
            ("b", "reservations"),
        ]
        (down,) = found["down"]
        assert down["shard"] == "dead"
        assert "hush" not in json.dumps(found)
        found = ask(running, "entry", id="same", shard="a", kind="seat-hold")
        assert [each["commands"] for each in found["shards"]] == [["sweeperd show --kind seat-hold --shard a same"]]
        found = ask(running, "search", q="same", shard="a")
        assert found["shards"][0]["entries"] == [
            {"kind": "reservations", "id": "same"},
            {"kind": "seat-hold", "id": "same"},
        ]
        assert [each["kind"] for each in ask(running, "quarantine", shard="b")["shards"][0]["kinds"]] == [
            "reservations",
            "seat-hold",
        ]


@pytest.mark.parametrize("role", ["sweep", "deliver"])
def test_the_rights_of_each_role_suffice(server: Server, client: redis.Redis, tmp_path: Path, role: Any) -> None:
    reserve(client, ["r1"])
    client.hset("reservation:res_odd", "state", "<b>?")
    client.zadd("reservation:ttl", {"odd": 1})
    client.xadd("sweeperd:dead-letters", {"endpoint": "hook", "id": "r1", "expired_at": server_time(client)})
    endpoints = [{"name": "hook", "url": "http://127.0.0.1:9/"}]
    assert once(environment(server.url, endpoints=endpoints)).report["expired"] == 1
    with limited(server, client, role=role, webhooks={"endpoints": endpoints}) as url:
        as_role = ["sh", "-c", f'exec "$@" --role {role}', "sh"]
        with daemon(environment(url, endpoints=endpoints), tmp_path, as_role) as running:
            event = shard(running, "entry", id="r1")["event"]["webhook_id"]
            assert shard(running, "search", q=event)["rows"]
            assert shard(running, "search", q="odd")["entries"]
            assert shard(running, "entry", id="odd")["sweep"]["outcome"]
            assert shard(running, "expired")["rows"]
            assert shard(running, "dead-letters")["rows"]
            assert shard(running, "quarantine")["kinds"][0]["rows"]


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


def opened(browser: Browser, running: Daemon, path: str, *, width: int = 1200) -> Page:
    """A page that has shown its answer."""
    page = browser.open(f"http://{running.address}/{path}", width=width)
    done(page)
    return page


def done(page: Page) -> None:
    becomes(page, "document.readyState === 'complete' && document.body.dataset.done", "true")


def becomes(page: Page, expression: str, value: object) -> None:
    """Wait until the expression has this value. A page that is being left answers nothing."""

    def is_so() -> bool:
        with contextlib.suppress(AssertionError):
            return bool(page.run(expression) == value)
        return False

    eventually(is_so)


def click(page: Page, found: str) -> None:
    """Click what this expression finds, after the answer: the click may leave the page."""
    page.run(f"setTimeout(() => ({found}).click(), 10), 0")


def follow(page: Page, text: str) -> None:
    """Click the link with this text."""
    click(page, f"[...document.querySelectorAll('a')].find((each) => each.textContent === {json.dumps(text)})")


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_from_a_search_to_an_entry(
    browser: Browser, server: Server, client: redis.Redis, tmp_path: Path, width: int
) -> None:
    with Receiver() as good:
        env = environment(server.url, endpoints=[{"name": "good", "url": good.url}], **AMPLE)
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["r1"])
            good.wait_for(lambda requests: len(requests) == 1)
            event = good.requests[0].event_id
            page = browser.open(f"http://{running.address}/", width=width)
            click(page, "document.querySelector('a[href=\"search\"]')")
            becomes(page, "document.title", "Search · sweeperd")
            for text in (event, "acme", "r1"):
                page.run(f"document.getElementById('q').value = {json.dumps(text)}, 0")
                click(page, "document.querySelector('#search button')")
                becomes(page, "location.search", f"?q={text}")
                done(page)
                assert event in page.text
                told = "Found by its recorded attempts" if text == event else "there is no older one"
                assert told in page.text
            follow(page, "r1")
            becomes(page, "document.title", "EXPIRED · r1 · sweeperd")
            done(page)
            for text in (
                "sweeperd show r1",
                "skipped: it is already EXPIRED",
                event,
                "good",
                "acknowledged",
                "HTTP 200",
            ):
                assert text in page.text
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
            assert page.problems == []
            page.close()


@needs_browser
@pytest.mark.slow
def test_lists_lead_to_entries_and_to_older_rows(
    browser: Browser, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    reserve(client, [f"r{number}" for number in range(60)])
    assert once(environment(server.url)).code == 0
    client.hset("reservation:res_odd", mapping={"state": "?", "quarantine_reason": "INVALID_STATE"})
    client.zadd("sweeperd:quarantine", {"odd": 1_700_000_000_000})
    client.xadd("sweeperd:dead-letters", {"endpoint": "hook", "id": "r1", "reason": "HTTP 500", "attempts": 7})
    with daemon(environment(server.url), tmp_path) as running:
        page = opened(browser, running, "expired")
        assert page.run("document.querySelectorAll('tbody tr').length") == 50
        follow(page, "Look further back")
        becomes(page, "document.querySelectorAll('tbody tr').length", 10)
        page.close()
        page = opened(browser, running, "dead-letters")
        assert "HTTP 500" in page.text
        assert "sweeperd dead-letters list" in page.text
        page.close()
        page = opened(browser, running, "quarantine")
        assert "reservations: 1 in quarantine" in page.text
        follow(page, "odd")
        becomes(page, "document.title", "quarantined · odd · sweeperd")
        done(page)
        assert "sweeperd quarantine requeue odd" in page.text
        assert page.problems == []
        page.close()
        page = opened(browser, running, "entry?id=nobody")
        assert "No shard" in page.text
        page.close()


@needs_browser
@pytest.mark.slow
def test_hostile_texts_are_text_and_stay_one_id(
    browser: Browser, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    client.hset(b"reservation:res_" + HOSTILE, mapping={b"tenant": HOSTILE, b"state": HOSTILE, HOSTILE: HOSTILE})
    client.zadd("sweeperd:quarantine", {HOSTILE: 1_700_000_000_000})
    fields: dict[Any, Any] = {
        "id": HOSTILE,
        "tenant": HOSTILE,
        "type": HOSTILE + b".expired",
        "expired_at": 1,
        "endpoint": HOSTILE,
    }
    client.xadd("sweeperd:events", fields)
    client.xadd("sweeperd:dead-letters", fields | {"reason": HOSTILE})
    with daemon(environment(server.url), tmp_path) as running:
        assert shard(running, "quarantine")["kinds"][0]["rows"][0]["id"].startswith("<img")
        for path in (
            "quarantine",
            "dead-letters",
            "expired",
            f"search?q={quote(HOSTILE)}",
            f"entry?id={quote(HOSTILE)}",
        ):
            page = opened(browser, running, path)
            assert "<img src=x onerror=alert(1)>\\xff\\u{0}\\u{202e}&q='\"" in page.text, path
            assert page.run("document.querySelectorAll('img').length") == 0
            assert page.problems == []
            page.close()
        page = opened(browser, running, "quarantine")
        click(page, "document.querySelector('tbody a')")
        becomes(page, "document.title.startsWith('quarantined · <img')", True)
        page.close()


@needs_browser
@pytest.mark.slow
def test_elsewhere_the_page_says_how_to_reach_it(
    browser: Browser, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    with daemon(environment(server.url, http__hosts='["page.test"]'), tmp_path) as running:
        assert running.get("/search")[0] == 200
        page = browser.open(f"http://{running.address}/status.json")
        refused = page.run(
            "fetch('search', { headers: { 'X-Forwarded-For': '127.0.0.1' } }).then((answer) => answer.text())"
        )
        assert "kubectl port-forward" in refused
        page.close()
