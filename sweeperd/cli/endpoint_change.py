"""`sweeperd endpoints pause`, `resume` and `skip`: they change what the processes that deliver do."""

from typing import Any

import click

from sweeperd.cli.actions import leave_record
from sweeperd.cli.endpoint_list import paused_since
from sweeperd.cli.names import endpoint_of
from sweeperd.cli.options import Options, json_option, shard_option, yes_option
from sweeperd.cli.output import Output
from sweeperd.cli.troubles import Troubles, for_each_shard
from sweeperd.delivery.endpoint_state import EndpointState, EndpointStateStore
from sweeperd.ops import endpoints
from sweeperd.ops.actions import Action
from sweeperd.ops.endpoints import Resumed
from sweeperd.store.shard import Shard
from sweeperd.text import rfc3339


@click.command("pause")
@click.argument("name")
@click.option(
    "--reason", default="an operator paused it", show_default=True, help="Why; `endpoints list` and `status` show it."
)
@yes_option
@json_option
@shard_option
@click.pass_obj
def pause(options: Options, name: str, reason: str, yes: bool, as_json: bool, shard: str | None) -> None:
    """Send nothing to it until it is resumed. Its events wait, and none is lost. Every daemon obeys within seconds."""
    output, troubles, results = Output(as_json=as_json), Troubles(), []
    with options.shards(shard) as (settings, shards):
        endpoint = endpoint_of(settings, name)
        before = _states(shards, endpoint.name, troubles)
        if any(not state.paused for _, state in before):
            output.confirm(f"Pause {name}?", yes=yes)
        for one, state in before:
            if state.paused:
                results.append(_result(one, state, changed=False))
                output.say(f"{name} is paused on {one.name} already, {paused_since(state.paused_at, state.reason)}")
                continue
            with troubles.noted(one):
                results.append(_result(one, endpoints.pause(one, name, reason, settings.announced), changed=True))
                leave_record(one, Action.PAUSE, name)
                output.say(f"{name} is paused on {one.name}")
    _end(output, name, results, troubles)


@click.command("resume")
@click.argument("name")
@yes_option
@json_option
@shard_option
@click.pass_obj
def resume(options: Options, name: str, yes: bool, as_json: bool, shard: str | None) -> None:
    """
    Send to it again, from all processes, within seconds. This ends a pause and the quiet that a receiver asked for,
    closes the circuit, and makes events due that wait for their next attempt.
    """
    output, troubles, results = Output(as_json=as_json), Troubles(), []
    with options.shards(shard) as (settings, shards):
        endpoint = endpoint_of(settings, name)
        before = _states(shards, endpoint.name, troubles)
        if any(state != EndpointState() for _, state in before):
            output.confirm(f"Resume {name}?", yes=yes)
        for one, state in before:
            with troubles.noted(one):
                done = endpoints.resume(one, name)
                changed = done.was_resting or done.was_open_on > 0
                leave_record(one, Action.RESUME, name, int(changed))
                row = _result(one, EndpointState(), changed=changed) | {"was": _state(state)}
                results.append(row | {"was_open_on": done.was_open_on, "due": done.due})
                output.say(_resumed(name, one, state, done))
    _end(output, name, results, troubles)


@click.command("skip")
@click.argument("name")
@click.argument("event")
@yes_option
@json_option
@shard_option
@click.pass_obj
def skip(options: Options, name: str, event: str, yes: bool, as_json: bool, shard: str | None) -> None:
    """
    Make one pending event of an endpoint a dead letter, so that it is not sent again. EVENT is its event id (evt_...)
    or its stream id; the log has both. It can be replayed later, like any dead letter.
    """
    output, troubles = Output(as_json=as_json), Troubles()
    with options.shards(shard) as (settings, shards):
        endpoint = endpoint_of(settings, name)
        output.confirm(f"Make {event} a dead letter of {name}?", yes=yes)
        found = for_each_shard(shards, lambda one: endpoints.skip(one, endpoint.name, event), troubles)
        for one, stream_id in found:
            leave_record(one, Action.SKIP, f"{name} {event}", int(stream_id is not None))
    skipped = [{"shard": one.name, "stream_id": stream_id} for one, stream_id in found if stream_id]
    if as_json:
        output.json({"endpoint": name, "event": event, "skipped": skipped, "down": troubles.down})
    for row in skipped:
        output.say(f"{event} is a dead letter of {name} on {row['shard']} now")
    if not skipped:
        output.name_address()
        troubles.fail(f"{event} is not pending for {name}")
    troubles.end()


def _resumed(name: str, shard: Shard, state: EndpointState, done: Resumed) -> str:
    notes = [
        f"it was paused {paused_since(state.paused_at, state.reason)}" if state.paused else "",
        "it was quiet" if done.was_resting and not state.paused else "",
        "its circuit was open" if done.was_open_on else "",
        f"{done.due} events are due now" if done.due else "",
    ]
    verb = "resumed" if done.was_resting or done.was_open_on else "not paused"
    return "; ".join([f"{name} is {verb} on {shard.name}", *filter(None, notes)])


def _states(shards: list[Shard], name: str, troubles: Troubles) -> list[tuple[Shard, EndpointState]]:
    return for_each_shard(shards, lambda shard: EndpointStateStore(shard).read(name), troubles)


def _result(shard: Shard, state: EndpointState, *, changed: bool) -> dict[str, Any]:
    return {"shard": shard.name, "changed": changed} | _state(state)


def _state(state: EndpointState) -> dict[str, Any]:
    return {
        "paused": state.paused,
        "paused_at": None if state.paused_at is None else rfc3339(state.paused_at),
        "reason": state.reason,
        "muted_until": rfc3339(state.muted_until) if state.muted_until else None,
    }


def _end(output: Output, name: str, results: list[dict[str, Any]], troubles: Troubles) -> None:
    if output.as_json:
        output.json({"endpoint": name, "shards": results, "down": troubles.down})
    troubles.end()
