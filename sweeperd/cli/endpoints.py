"""`sweeperd endpoints list`."""

import json
from collections.abc import Sequence
from typing import Any

import click

from sweeperd.cli.actions import leave_record
from sweeperd.cli.options import Exit, Options, fail, json_option, shard_option, yes_option
from sweeperd.cli.output import Cell, Output, timestamp
from sweeperd.cli.shards import Troubles, check_name, endpoint_of, for_each_shard
from sweeperd.cli.status import state, waiting
from sweeperd.config import EndpointSettings, Settings
from sweeperd.ops import endpoints
from sweeperd.ops import endpoints as signing_keys
from sweeperd.ops.actions import Action
from sweeperd.ops.endpoints import BODY_SHOWN, EndpointsDocument, EndpointTest, ListedEndpoint, Resumed
from sweeperd.ops.health import ENDPOINT_STATES
from sweeperd.ops.status import EndpointStatus, count_dead_letters, read_endpoints
from sweeperd.outbox.attempts import RecordedAttempt, read_attempts
from sweeperd.outbox.endpoint_state import EndpointState, EndpointStateStore
from sweeperd.store.shard import Shard
from sweeperd.text import decode, rfc3339


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
        listed = [ListedEndpoint.of(one, status, known.get(status.name)) for one, status in statuses]
        output.json(EndpointsDocument(endpoints=listed, down=troubles.down))
    else:
        columns = ["endpoint", "shard", "state", "pending", "oldest", "dead_letters", "tenants", "group", "url"]
        output.table(columns, (_cells(one, status, known.get(status.name)) for one, status in statuses))
    troubles.end()


def _read(shard: Shard, settings: Settings) -> Sequence[EndpointStatus]:
    return read_endpoints(shard, settings.consumers, shard.read_clock(), count_dead_letters(shard))


def _cells(shard: Shard, status: EndpointStatus, endpoint: EndpointSettings | None) -> list[object]:
    tenants = [] if endpoint is None else endpoint.tenants
    return [
        status.name,
        shard.name,
        state(status, _state_text(status)),
        waiting(status),
        f"{status.oldest_pending_seconds:.0f}s" if status.pending else "",
        Cell(status.dead_letters, "red" if status.dead_letters else ""),
        "all" if tenants is None else ", ".join(tenants),
        status.position,
        "" if endpoint is None else endpoints.shown_url(endpoint),
    ]


def _state_text(status: EndpointStatus) -> str:
    if status.state == "unknown":
        return ENDPOINT_STATES["unknown"].label
    if status.paused_at_ms is not None:
        return f"paused {paused_since(status.paused_at_ms, status.paused_reason)}"
    if status.state == "failing":
        return f"failing: {status.failures} in a row, {status.failure}"
    return f"quiet until {timestamp(status.muted_until_ms)}" if status.state == "quiet" else status.state


def paused_since(paused_at: int | None, reason: str) -> str:
    """For people: since when an endpoint is paused, and why. A moment of 0: its note cannot be read."""
    since = f"since {rfc3339(paused_at)}" if paused_at else "since an unknown time"
    return f"{since}: {reason}"


# ---- `sweeperd endpoints pause`, `resume` and `skip`: they change what the processes that deliver do


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


# ---- `sweeperd endpoints attempts`


#: The colour of each result.
STYLES = {"delivered": "green", "rejected": "yellow", "failed": "red"}


@click.command("attempts")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@json_option
@shard_option
@click.pass_obj
def attempts(options: Options, name: str, limit: int, as_json: bool, shard: str | None) -> None:
    """
    The last attempts to deliver to it, the newest first: every failure, and a sample of the successes. Of a batch, the
    ids are those of its first event. What is secret in an answer is hidden. Times are of Redis's clock.
    """
    output, troubles = Output(as_json=as_json), Troubles()
    with options.shards(shard) as (settings, shards):
        check_name("endpoint", name, [endpoint.name for endpoint in settings.webhooks.endpoints])
        on_shards = for_each_shard(shards, lambda one: read_attempts(one, name, limit), troubles)
    every = [each for _, found in on_shards for each in found]
    newest = sorted(every, key=lambda each: each.attempt.at_ms, reverse=True)[:limit]
    if as_json:
        output.json({"endpoint": name, "attempts": [attempt_document(each) for each in newest], "down": troubles.down})
    else:
        columns = ["at", "shard", "result", "ms", "attempt", "events", "event", "id", "replica", "answer"]
        output.table(columns, map(_attempt_cells, newest))
    troubles.end()


def attempt_document(recorded: RecordedAttempt) -> dict[str, Any]:
    """For JSON."""
    attempt = recorded.attempt
    return {
        "at": timestamp(attempt.at_ms),
        "shard": recorded.shard,
        "endpoint": recorded.endpoint,
        "result": attempt.result,
        "reason": attempt.reason,
        "milliseconds": attempt.milliseconds,
        "hand_over": attempt.hand_over,
        "attempt": attempt.attempt,
        "events": attempt.events,
        "event_id": attempt.event_id,
        "reservation_id": decode(attempt.reservation),
        "first_stream_id": decode(attempt.first),
        "last_stream_id": decode(attempt.last),
        "replica": attempt.replica,
        "answer": attempt.answer,
    }


def attempt_text(recorded: RecordedAttempt) -> Cell:
    """One line about it."""
    attempt = recorded.attempt
    batch = f", in a batch of {attempt.events}" if attempt.events > 1 else ""
    number = f"{attempt.hand_over}.{attempt.attempt}"
    text = f"{number} to {recorded.endpoint}: {attempt.reason} after {attempt.milliseconds} ms{batch}"
    return Cell(text, STYLES.get(attempt.result, ""))


def _attempt_cells(recorded: RecordedAttempt) -> list[object]:
    attempt = recorded.attempt
    return [
        timestamp(attempt.at_ms),
        recorded.shard,
        Cell(attempt.reason, STYLES.get(attempt.result, "")),
        attempt.milliseconds,
        f"{attempt.hand_over}.{attempt.attempt}",
        attempt.events,
        attempt.event_id,
        decode(attempt.reservation),
        attempt.replica,
        attempt.answer,
    ]


# ---- `sweeperd endpoints keygen` and `keys`: asymmetric keys


@click.command("keygen")
@json_option
def keygen(as_json: bool) -> None:
    """
    Make a key pair for asymmetric signatures. The private key goes into the `secrets` of an endpoint, as a file or a
    variable; the public key goes to the receiver. Nothing is stored.
    """
    try:
        private, public = signing_keys.generate()
    except signing_keys.NoCryptography:
        fail("the cryptography package is missing: pip install 'sweeperd[ed25519]'", Exit.FAILED)
    if as_json:
        click.echo(json.dumps({"private_key": private, "public_key": public}))
    else:
        click.echo(f"{private}\n{public}")


@click.command("keys")
@click.argument("name", required=False)
@click.pass_obj
def keys(options: Options, name: str | None) -> None:
    """
    Print the public keys of all endpoints, or of one, as a JSON Web Key Set (JWKS). Host it where the receivers can
    reach it; the daemon serves it to operators at /.well-known/jwks.json.
    """
    with options.shards(secrets=True) as (settings, _):
        endpoints = settings.webhooks.endpoints
    if name is not None:
        check_name("endpoint", name, [endpoint.name for endpoint in endpoints])
    found = [endpoint for endpoint in endpoints if name in (None, endpoint.name)]
    Output(as_json=True).name_address()
    click.echo(json.dumps(signing_keys.jwks(found), indent=2))


# ---- `sweeperd endpoints test`


@click.command("test")
@click.argument("name")
@click.option(
    "--count", type=click.IntRange(1, 10_000), default=1, show_default=True, help="So many events, in batches."
)
@json_option
@shard_option
@click.pass_obj
def test(options: Options, name: str, count: int, as_json: bool, shard: str | None) -> None:
    """
    Send it signed events of the type system.webhook_test, each once, and show the last request, its answer and timing.
    They are sent even while the endpoint is paused, until one request fails. A 2xx response closes an open circuit on
    all processes; nothing else is written to Redis.
    """
    output, troubles, trial = Output(as_json=as_json), Troubles(), None
    with options.shards(shard, secrets=True) as (settings, shards):
        endpoint = endpoint_of(settings, name)
        for one in shards:
            # Any shard will do: it is asked what time it is.
            if trial is None:
                with troubles.noted(one):
                    trial = endpoints.try_out(one, endpoint, settings.webhooks, count)
        if trial is not None and trial.delivered:
            for_each_shard(shards, lambda one: endpoints.close_if_open(one, name), troubles)
    if trial is None:
        troubles.end()
        return
    if as_json:
        output.json(_trial(trial))
    else:
        _show(output, trial)
    if not trial.delivered:
        fail(f"{name} did not take it: {trial.result}", Exit.FAILED)


def _trial(trial: EndpointTest) -> dict[str, Any]:
    return {
        "endpoint": trial.endpoint,
        "delivered": trial.delivered,
        "result": trial.result,
        "seconds": trial.seconds,
        "requests": trial.requests,
        "accepted": trial.accepted,
        "event_id": trial.event_id,
        "request": {"method": "POST", "url": trial.url, "headers": trial.request_headers, "body": trial.request_body},
        "response": {"status": trial.status, "headers": trial.response_headers, "body": trial.response_body},
    }


def _show(output: Output, trial: EndpointTest) -> None:
    output.say(f"POST {trial.url}", "bold")
    for name, value in trial.request_headers.items():
        output.say(f"{name}: {value}")
    output.say(trial.request_body if len(trial.request_body) <= BODY_SHOWN else trial.request_body[:BODY_SHOWN] + "…")
    output.say("")
    if trial.requests > 1 or trial.accepted > 1:
        output.say(f"{trial.accepted} events were accepted, in {trial.requests} requests; the last one:")
    output.say(f"{trial.result} after {trial.seconds * 1000:.0f} ms", "green" if trial.delivered else "red")
    for name, value in trial.response_headers.items():
        output.say(f"{name}: {value}")
    if trial.response_body:
        output.say(trial.response_body)


# ---- `sweeperd endpoints`: the group; each of its commands has a module of its own, or shares one with its likes


@click.group("endpoints", short_help="The receivers: list, pause, resume, skip, test, attempts; their keys.")
def command() -> None:
    """The receivers of the webhooks."""


for _each in (attempts, keygen, keys, list_, pause, resume, skip, test):
    command.add_command(_each)
