"""What the page is sent, and the document itself."""

import json
import time

import pytest

from sweeperd.config import Settings
from sweeperd.ops.endpoint_health import LISTED
from sweeperd.ops.history import KindSample, StatusSample
from sweeperd.ops.status_report import TEXT, UNKNOWN, status_report
from tests.support.builders import endpoint_status, shard_view
from tests.support.eyes.staged import busy, settings


def test_the_busy_hour() -> None:
    told = status_report(settings("billing", "crm", "warehouse"), busy(), time.monotonic())
    json.dumps(told)
    assert [answer["answer"] for answer in told["answers"]] == ["Yes", "No", "Yes"]
    eu, us = told["shards"]
    assert (eu["shard"], eu["stale"], eu["error"]) == ("eu", False, "")
    assert (eu["status"]["due"]["overdue"], eu["status"]["due"]["in_grace"], eu["status"]["quarantined"]) == (9, 34, 3)
    assert [endpoint["state"] for endpoint in eu["status"]["endpoints"]] == ["delivering", "open", "delivering"]
    assert us["status"]["sweeping"] == "sweeperd-6d9f-2"
    replays = [endpoint["replay"] for endpoint in eu["status"]["endpoints"]]
    assert replays[:2] == [None, None]
    assert replays[2] == replays[2] | {"running_seconds": 240, "events": 12_000, "left": 4_500, "tenant": "acme"}
    lengths = {len(values) for values in eu["history"].values()}
    charts = eu["status"]["kinds"][0]["history"]
    assert {len(values) for values in charts.values()} == {240}
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
    (shard,) = status_report(ours, [(shard_view(endpoints=(endpoint_status("hook"),)), [])], 0.0)["shards"]
    assert shard["status"]["endpoints"][0]["place"] == place


def test_hostile_texts_are_short_and_readable() -> None:
    name = "\x1b[31m\u202e<script>alert(1)</script>\n" + "x" * 10_000
    others = tuple(endpoint_status(f"{name}{number}", state="unknown", dead_letters=1) for number in range(50))
    hostile = shard_view(name, sweeping=name, endpoints=(endpoint_status("hook"), *others))
    (shard,) = status_report(settings("hook"), [(hostile, [])], 0.0)["shards"]
    listed = shard["status"]["endpoints"]
    assert len(listed) == 1 + UNKNOWN
    assert shard["status"]["more_endpoints"] == 50 - UNKNOWN
    for text in (listed[1]["endpoint"], shard["status"]["sweeping"], shard["error"]):
        assert text.startswith(r"\x1b[31m\u202e<script>alert(1)</script>\n")
        assert text.isprintable()
        assert len(text) < TEXT + 20
    assert len(json.dumps(shard)) < 13_000


def test_the_chart_has_the_rates_of_the_samples() -> None:
    samples = [
        StatusSample(0.0, {"reservations": KindSample(0, 0, 1.5)}, 0),
        StatusSample(15.0),
        StatusSample(30.0, {"reservations": KindSample(0, 0, 0.0)}, 30_000),
    ]
    (shard,) = status_report(settings("hook"), [(shard_view(), samples)], 30.0)["shards"]
    assert shard["status"]["kinds"][0]["history"]["expired_per_second"] == [1.5, None, 0.0]
    assert shard["history"]["unread"] == [False, True, False]


def test_of_many_endpoints_the_healthy_ones_are_grouped() -> None:
    names = [f"e{number:03}" for number in range(1000)]
    endpoints = [endpoint_status(name, pending=number % 2) for number, name in enumerate(names)]
    endpoints[700] = endpoint_status("e700", state="paused", paused_at=1, pending=5)
    (shard,) = status_report(settings("e000"), [(shard_view(endpoints=tuple(endpoints)), [])], 0.0)["shards"]
    told = [endpoint["endpoint"] for endpoint in shard["status"]["endpoints"]]
    assert (len(told), told[0]) == (LISTED, "e700")
    assert "950 more endpoints: 950 delivering, 451 pending" in shard["status"]["grouped"]


@pytest.mark.parametrize(("pending", "level"), [(0, "watch"), (1, "bad"), (None, "bad")])
def test_a_pause_is_bad_while_something_waits(pending: int | None, level: str) -> None:
    paused = endpoint_status("hook", state="paused", paused_at=1, pending=pending)
    (shard,) = status_report(settings("hook"), [(shard_view(endpoints=(paused,)), [])], 0.0)["shards"]
    assert shard["status"]["endpoints"][0]["level"] == level
