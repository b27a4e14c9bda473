"""`sweeperd endpoints list`."""

from collections.abc import Sequence
from typing import Any

import click

from sweeperd.cli.options import Options, json_option, shard_option
from sweeperd.cli.output import Cell, Output, timestamp
from sweeperd.cli.status import waiting
from sweeperd.cli.troubles import Troubles, for_each_shard
from sweeperd.config import EndpointSettings, Settings
from sweeperd.ops import endpoints
from sweeperd.ops.endpoint_status import LETTERS, EndpointStatus, count_dead_letters, read_endpoints
from sweeperd.ops.status_report import rate_as_dict
from sweeperd.store.shard import Shard
from sweeperd.text import rfc3339

#: The colour of each state.
STATE_STYLES = {"open": "green", "quiet": "yellow", "failing": "red", "paused": "red", "unknown": "yellow"}


@click.command("list")
@json_option
@shard_option
@click.pass_obj
def list_(options: Options, as_json: bool, shard: str | None) -> None:
    """Each endpoint on each shard: where it is, what waits for it, and whether it is paused."""
    output, troubles = Output(as_json=as_json), Troubles()
    with options.shards(shard) as (settings, shards):
        found = for_each_shard(shards, lambda one: _read(one, settings), troubles)
        known = {endpoint.name: endpoint for endpoint in settings.consumers}
    statuses = [(one, status) for one, on_shard in found for status in on_shard]
    if as_json:
        documents = [_as_dict(one, status, known.get(status.name)) for one, status in statuses]
        output.json({"endpoints": documents, "down": troubles.down})
    else:
        columns = ["endpoint", "shard", "state", "pending", "oldest", "dead_letters", "tenants", "group", "url"]
        output.table(columns, (_cells(one, status, known.get(status.name)) for one, status in statuses))
    troubles.end()


def _read(shard: Shard, settings: Settings) -> Sequence[EndpointStatus]:
    return read_endpoints(shard, settings.consumers, shard.read_clock(), count_dead_letters(shard))


def _as_dict(shard: Shard, status: EndpointStatus, endpoint: EndpointSettings | None) -> dict[str, Any]:
    return {
        "endpoint": status.name,
        "shard": shard.name,
        "address": shard.address,
        "configured": status.configured,
        "state": status.state,
        "url": endpoint and endpoints.shown_url(endpoint),
        "tenants": endpoint and endpoint.tenants,
        "group_position": status.position,
        "pending": status.pending,
        "pending_exact": status.pending_exact,
        "oldest_pending_seconds": status.oldest_pending_seconds,
        "paused": status.paused_at_ms is not None,
        "paused_at": None if status.paused_at_ms is None else rfc3339(status.paused_at_ms),
        "reason": status.paused_reason,
        "muted_until": timestamp(status.muted_until_ms),
        "quiet": status.quiet_seconds > 0,
        "open_on": status.open_on,
        "processes": status.processes,
        "failures": status.failures,
        "failure": status.failure,
        "dead_letters": status.dead_letters,
        "dead_letters_all_counted": status.dead_letters < LETTERS,
        **rate_as_dict(status),
    }


def _cells(shard: Shard, status: EndpointStatus, endpoint: EndpointSettings | None) -> list[object]:
    tenants = [] if endpoint is None else endpoint.tenants
    return [
        status.name,
        shard.name,
        Cell(_state_text(status), STATE_STYLES[status.state]),
        waiting(status),
        f"{status.oldest_pending_seconds:.0f}s" if status.pending else "",
        Cell(status.dead_letters, "red" if status.dead_letters else ""),
        "all" if tenants is None else ", ".join(tenants),
        status.position,
        "" if endpoint is None else endpoints.shown_url(endpoint),
    ]


def _state_text(status: EndpointStatus) -> str:
    if status.state == "unknown":
        return "not in the configuration"
    if status.paused_at_ms is not None:
        return f"paused {paused_since(status.paused_at_ms, status.paused_reason)}"
    if status.state == "failing":
        return f"failing: {status.failures} in a row, {status.failure}"
    return f"quiet until {timestamp(status.muted_until_ms)}" if status.state == "quiet" else status.state


def paused_since(paused_at: int | None, reason: str) -> str:
    """For people: since when an endpoint is paused, and why. A moment of 0: its note cannot be read."""
    since = f"since {rfc3339(paused_at)}" if paused_at else "since an unknown time"
    return f"{since}: {reason}"
