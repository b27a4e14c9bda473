"""The states of an endpoint as the commands and the page show them."""

import pytest

from sweeperd.cli.status import state as state_cell
from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.status_report import status_report
from tests.support.builders import endpoint_status, shard_view
from tests.support.eyes.staged import settings


@pytest.mark.parametrize(
    ("endpoint", "state", "label", "level", "colour"),
    [
        (endpoint_status("hook"), "delivering", "delivering", "good", "green"),
        (endpoint_status("hook", state="muted", muted_seconds=9.0), "muted", "muted", "watch", "yellow"),
        (endpoint_status("hook", state="open"), "open", "circuit open", "bad", "red"),
        (endpoint_status("hook", state="paused", paused_at=1), "paused", "paused", "bad", "red"),
        (endpoint_status("hook", state="unknown"), "unknown", "not in the configuration", None, "dim"),
        (endpoint_status("hook", state="group"), "group", "read by another program", None, "dim"),
    ],
)
def test_a_state_has_the_same_name_and_level_for_the_page_and_the_commands(
    endpoint: EndpointDocument, state: str, label: str, level: str | None, colour: str
) -> None:
    (shard,) = status_report(settings("hook"), [(shard_view(endpoints=(endpoint,)), [])], 0.0)["shards"]
    (shown,) = shard["status"]["endpoints"]
    assert (shown["state"], shown["label"], shown["level"]) == (state, label, level)
    assert (state_cell(endpoint).value, state_cell(endpoint).style) == (label, colour)
