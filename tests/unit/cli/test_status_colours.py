"""The states of an endpoint as the commands and the page show them."""

import pytest

from sweeperd.cli.status import state as state_cell
from sweeperd.ops.history import status_report
from sweeperd.ops.status import EndpointStatus
from tests.support.builders import shard_view
from tests.support.eyes.staged import settings


@pytest.mark.parametrize(
    ("endpoint", "state", "label", "level", "colour"),
    [
        (EndpointStatus("hook"), "delivering", "delivering", "good", "green"),
        (EndpointStatus("hook", muted_seconds=9.0), "muted", "muted", "watch", "yellow"),
        (EndpointStatus("hook", circuit_open=True), "open", "circuit open", "bad", "red"),
        (EndpointStatus("hook", paused_at_ms=1), "paused", "paused", "bad", "red"),
        (EndpointStatus("hook", configured=False), "unknown", "not in the configuration", None, "dim"),
        (EndpointStatus("hook", foreign=True), "group", "read by another program", None, "dim"),
    ],
)
def test_a_state_has_the_same_name_and_level_for_the_page_and_the_commands(
    endpoint: EndpointStatus, state: str, label: str, level: str | None, colour: str
) -> None:
    (shard,) = status_report(settings("hook"), [(shard_view(endpoints=(endpoint,)), [])], 0.0)["shards"]
    (shown,) = shard["status"]["endpoints"]
    assert (shown["state"], shown["label"], shown["level"]) == (state, label, level)
    assert (state_cell(endpoint).value, state_cell(endpoint).style) == (label, colour)
