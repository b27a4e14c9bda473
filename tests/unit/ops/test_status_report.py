"""What the page is sent, and the document itself."""

import base64
import hashlib
import json
import re
import time
from importlib import resources

import pytest

from sweeperd.cli.status import state as state_cell
from sweeperd.config import Settings
from sweeperd.ops.health import ShardView
from sweeperd.ops.history import TEXT, UNKNOWN, StatusSample, status_report
from sweeperd.ops.status import EndpointStatus, ShardStatus
from sweeperd.web.status_page import StatusPage
from tests.support.eyes.staged import busy, settings


def test_the_busy_hour() -> None:
    told = status_report(settings("billing", "crm", "warehouse"), busy(), time.monotonic())
    json.dumps(told)
    assert [answer["answer"] for answer in told["answers"]] == ["Yes", "No", "Yes"]
    eu, us = told["shards"]
    assert (eu["shard"], eu["stale"], eu["error"]) == ("eu", False, "")
    assert (eu["status"]["due"]["overdue"], eu["status"]["due"]["in_grace"], eu["status"]["quarantined"]) == (9, 34, 3)
    assert [endpoint["state"] for endpoint in eu["status"]["endpoints"]] == ["open", "failing", "open"]
    assert us["status"]["sweeping"] == "sweeperd-6d9f-2"
    replays = [endpoint["replay"] for endpoint in eu["status"]["endpoints"]]
    assert replays[:2] == [None, None]
    assert replays[2] == replays[2] | {"running_seconds": 240, "events": 12_000, "left": 4_500, "tenant": "acme"}
    lengths = {len(values) for values in eu["history"].values()}
    assert lengths == {240} == {len(endpoint["history"]) for endpoint in eu["status"]["endpoints"]}


def test_no_part_of_a_url_that_can_hold_a_secret_is_told() -> None:
    text = json.dumps(status_report(settings("billing", "crm", "warehouse"), busy(), time.monotonic()))
    assert '"https://billing.example.com"' in text
    assert "secret" not in text
    assert "user" not in text


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://u:p@localhost:8080/x?y#z", "http://localhost:8080"),
        ("https://[::1]:8443/x", "https://[::1]:8443"),
        ("https://Example.com/x", "https://example.com"),
    ],
)
def test_whom_it_is_sent_to(url: str, place: str) -> None:
    ours = Settings.model_validate({"webhooks": {"endpoints": [{"name": "hook", "url": url}]}})
    status = ShardStatus("eu", "", endpoints=(EndpointStatus("hook"),))
    (shard,) = status_report(ours, [(ShardView("eu", "", status), [])], 0.0)["shards"]
    assert shard["status"]["endpoints"][0]["place"] == place


@pytest.mark.parametrize(
    ("endpoint", "state", "level", "colour"),
    [
        (EndpointStatus("hook"), "open", "good", "green"),
        (EndpointStatus("hook", quiet_seconds=9.0), "quiet", "watch", "yellow"),
        (EndpointStatus("hook", circuit_open=True), "failing", "bad", "red"),
        (EndpointStatus("hook", paused_at_ms=1), "paused", "bad", "red"),
        (EndpointStatus("hook", configured=False), "unknown", None, "dim"),
    ],
)
def test_a_state_has_the_same_level_for_the_page_and_the_commands(
    endpoint: EndpointStatus, state: str, level: str | None, colour: str
) -> None:
    status = ShardStatus("eu", "", endpoints=(endpoint,))
    (shard,) = status_report(settings("hook"), [(ShardView("eu", "", status), [])], 0.0)["shards"]
    (shown,) = shard["status"]["endpoints"]
    assert (shown["state"], shown["level"]) == (state, level)
    assert state_cell(endpoint).style == colour


def test_hostile_texts_are_short_and_readable() -> None:
    name = "\x1b[31m\u202e<script>alert(1)</script>\n" + "x" * 10_000
    others = tuple(EndpointStatus(f"{name}{number}", configured=False, dead_letters=1) for number in range(50))
    status = ShardStatus("eu", "", sweeping=name, endpoints=(EndpointStatus("hook"), *others))
    (shard,) = status_report(settings("hook"), [(ShardView("eu", "", status, error=name), [])], 0.0)["shards"]
    listed = shard["status"]["endpoints"]
    assert len(listed) == 1 + UNKNOWN
    assert shard["status"]["more_endpoints"] == 50 - UNKNOWN
    for text in (listed[1]["endpoint"], shard["status"]["sweeping"], shard["error"]):
        assert text.startswith(r"\x1b[31m\u202e<script>alert(1)</script>\n")
        assert text.isprintable()
        assert len(text) < TEXT + 20
    assert len(json.dumps(shard)) < 10_000


def test_the_chart_has_the_rates_of_the_samples() -> None:
    samples = [StatusSample(0.0, 0, 0, 1.5, 0), StatusSample(15.0), StatusSample(30.0, 0, 0, 0.0, 30_000)]
    (shard,) = status_report(settings("hook"), [(ShardView("eu", "", ShardStatus("eu", "")), samples)], 30.0)["shards"]
    assert shard["history"]["expired_per_second"] == [1.5, None, 0.0]


def test_the_document_needs_nothing_else_and_may_do_nothing_else() -> None:
    document = StatusPage()
    text = document.body.decode()
    headers = dict(document.headers)
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        (inline,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
        assert len(inline) > 1000
    assert policy["default-src"] == "'none'"
    assert "'unsafe" not in headers["Content-Security-Policy"]
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["data:,", "status.json", "status.json", "metrics", "readyz"]
    assert re.findall(r"https?://[^\"'`\s>]+", text) == ["http://www.w3.org/2000/svg"] * 2


def test_texts_are_never_taken_for_markup() -> None:
    script = resources.files("sweeperd.web").joinpath("page", "page.js").read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
