"""`sweeperd endpoints`: manages the receivers of webhooks."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence

import click
import redis

from sweeperd.cli.change import Change, Changed, changing
from sweeperd.cli.moment import Moment, moment
from sweeperd.cli.options import Exit, Options, all_option, fail, limit_option
from sweeperd.cli.output import Cell, Output
from sweeperd.cli.replay import check_note
from sweeperd.cli.shards import Run, endpoint_of, on_shards, warn
from sweeperd.cli.status import given_up, state, waiting
from sweeperd.ops import endpoints
from sweeperd.ops.actions import Action
from sweeperd.ops.endpoint_health import ENDPOINT_STATES, LISTED, most_troubled, unlisted
from sweeperd.ops.endpoint_status import read_endpoints
from sweeperd.ops.processes import read_processes
from sweeperd.ops.show import AttemptDocument
from sweeperd.ops.trial import BODY_SHOWN, TrialDocument, try_out
from sweeperd.outbox.attempts import read_attempts
from sweeperd.outbox.dead_letters import LetterCounts
from sweeperd.outbox.endpoint_state import EndpointState, EndpointStateStore
from sweeperd.outbox.replays import ReplayStore, end_if_ahead
from sweeperd.store.errors import is_unanswered
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId
from sweeperd.text import counted, rfc3339, span, timestamp

#: The most characters of why an endpoint is paused.
LONGEST_REASON = 500
STYLES = {"delivered": "green", "rejected": "yellow", "failed": "red"}


command = click.Group("endpoints")


@command.command("list")
@all_option
@click.option("--limit", type=click.IntRange(1), help="List up to this many per shard, those with the most trouble.")
@on_shards()
def list_(run: Run, every: bool, limit: int | None) -> None:
    """List each endpoint on each shard with its URL, state and backlog."""
    if every or run.output.as_json:
        limit = limit or sys.maxsize
    known = {endpoint.name: endpoint for endpoint in run.settings.consumers}

    def read(shard: Shard) -> list[endpoints.ListedEndpoint]:
        now, counts = shard.read_clock(), LetterCounts().read(shard)
        found = read_endpoints(run.settings, shard, now, counts, read_processes(shard, now))
        return [endpoints.ListedEndpoint.of(shard, each, known.get(each.endpoint)) for each in found]

    listed, rows = list(run.each(read)), list[endpoints.ListedEndpoint]()
    for shard, found in listed:
        rows += most_troubled(found, limit or LISTED)
        if rest := unlisted(found, limit or LISTED):
            warn(f"shard {shard.name}: {rest}; --all lists them")
    columns = ["endpoint", "shard", "state", "pending", "oldest", "dead_letters", "tenants", "group", "url"]
    truncated = len(rows) < sum(len(found) for _, found in listed)
    document = {"endpoints": rows, "truncated": truncated}
    run.table(columns, map(_cells, rows), lambda: endpoints.EndpointsDocument.model_validate(document))


def _cells(row: endpoints.ListedEndpoint) -> list[object]:
    every = "all" if row.url else ""
    return [
        row.endpoint,
        row.shard,
        state(row, _state_text(row)),
        waiting(row),
        span(row.oldest_pending_seconds) if row.pending else "",
        given_up(row),
        every if row.tenants is None else ", ".join(row.tenants),
        row.position,
        row.url or "",
    ]


def _state_text(row: endpoints.ListedEndpoint) -> str:
    label = ENDPOINT_STATES[row.state].label
    if row.state == "paused":
        return f"{label} {paused_since(row.paused_at, row.paused_reason)}"
    if row.state == "open":
        return f"{label}: {row.failures} failures in a row, {row.failure}"
    if row.state == "muted":
        return f"{label} until {timestamp(row.muted_until)}"
    return f"{label}: {row.warning}" if row.warning else label


def paused_since(paused_at: float | None, reason: str) -> str:
    """Since when an endpoint is paused, and why; the moment is 0 if its record cannot be read."""
    since = f"since {rfc3339(int(paused_at))}" if paused_at else "since an unknown time"
    return f"{since}: {reason}"


def _bounded(_context: click.Context, _parameter: click.Parameter, reason: str) -> str:
    if len(reason) > LONGEST_REASON:
        raise click.BadParameter(f"it has {len(reason)} characters, more than {LONGEST_REASON}")
    return reason


@command.command("pause")
@click.argument("name")
@click.option(
    "--reason",
    callback=_bounded,
    default="an operator paused it",
    help=f"Shown by `endpoints list` and `status`; up to {LONGEST_REASON} characters.",
)
@changing
def pause(change: Change, name: str, reason: str) -> None:
    """Stop delivery to an endpoint until `resume`, on all daemons within seconds. Events wait; none is lost."""
    endpoint_of(change.settings, name)
    results = list[endpoints.ChangedEndpoint]()

    def question(found: Sequence[EndpointState]) -> str:
        return "" if all(before.paused for before in found) else f"Pause {name}?"

    def work(shard: Shard, before: EndpointState) -> Iterator[Changed]:
        if before.paused:
            results.append(endpoints.ChangedEndpoint.of(before, shard=shard.name, changed=False))
            since = paused_since(before.paused_at, before.reason)
            change.output.say(f"{name} is already paused on {shard.name}, {since}")
            return
        paused = endpoints.pause(shard, name, reason, change.settings.announced)
        yield name, 1
        results.append(endpoints.ChangedEndpoint.of(paused, shard=shard.name, changed=True))
        change.output.say(f"{name} is paused on {shard.name}")

    change.carry_out(Action.PAUSE, _state_of(name), question, work, lambda _: name)
    change.report(endpoints.EndpointChangeDocument(endpoint=name, shards=results))


@command.command("resume")
@click.argument("name")
@changing
def resume(change: Change, name: str) -> None:
    """
    Resume delivery to an endpoint, on all daemons within seconds. This ends a pause and a mute (Retry-After), closes
    the circuit, and makes waiting events due.
    """
    endpoint_of(change.settings, name)
    results = list[endpoints.ChangedEndpoint]()

    def question(found: Sequence[EndpointState]) -> str:
        return "" if all(before == EndpointState() for before in found) else f"Resume {name}?"

    def work(shard: Shard, before: EndpointState) -> Iterator[Changed]:
        done = endpoints.resume(shard, name)
        changed = done.was_resting or done.was_open_on > 0
        yield name, int(changed)
        more = {"was": endpoints.StateDocument.of(before), "was_open_on": done.was_open_on, "due": done.due}
        results.append(endpoints.ChangedEndpoint.of(EndpointState(), shard=shard.name, changed=changed, **more))
        change.output.say(_resumed(name, shard, before, done))

    change.carry_out(Action.RESUME, _state_of(name), question, work, lambda _: name)
    change.report(endpoints.EndpointChangeDocument(endpoint=name, shards=results))


@command.command("skip")
@click.argument("name")
@click.argument("event")
@changing
def skip(change: Change, name: str, event: str) -> None:
    """
    Turn one event that a process has taken for an endpoint into a dead letter. EVENT is the event id (evt_...) or the
    stream id; the log has both. While an endpoint is paused, no further event is taken until `resume`. An event that is
    in flight may still arrive, and a replay of its letter would send it again.
    """
    endpoint = endpoint_of(change.settings, name)
    if not event:
        raise click.UsageError("EVENT must not be empty: name an event id (evt_...) or a stream id")
    skipped = list[endpoints.SkippedEvent]()

    def work(shard: Shard, _: None) -> Iterator[Changed]:
        if stream_id := endpoints.skip(shard, endpoint, event):
            yield f"{name} {event}", 1
            skipped.append(endpoints.SkippedEvent(shard=shard.name, stream_id=stream_id))

    question = f"Turn {event} into a dead letter of {name}?"
    change.carry_out(Action.SKIP, lambda _: None, lambda _: question, work, lambda _: f"{name} {event}")
    change.report(endpoints.SkipDocument(endpoint=name, event=event, skipped=skipped))
    for row in skipped:
        change.output.say(f"{event} is now a dead letter of {name} on {row.shard}")
    if not skipped and change.any_up:
        change.output.name_address()
        change.fail(
            f"{event} cannot be skipped for {name}{change.among_those_up}: no process has taken it yet (after a pause, "
            f"`resume` first), it has ended, or {name} does not want it; `sweeperd show` tells"
        )


@command.command("drop")
@click.argument("name")
@click.option("--before", callback=moment, required=True, metavar="TIME", help="Only events added before TIME.")
@click.option("--dead-letters", "letters", is_flag=True, help="Turn the events into dead letters, to replay later.")
@click.option("--reason", default="", show_default=False, help="Shown by `sweeperd actions`.")
@changing
def drop(change: Change, name: str, before: Moment, letters: bool, reason: str) -> None:
    """
    Discard the backlog of an endpoint: events that were added before TIME and are not delivered yet. Without
    --dead-letters, only `expired` and `replay` can still read the events, for events.retention.

    TIME is 2026-11-21T12:00:05Z, 12:00, or 15m for 15 minutes ago. An event that is in flight may still arrive.
    Nothing is dropped while a replay to the endpoint runs.
    """
    endpoint = endpoint_of(change.settings, name)
    done, ends = list[endpoints.DroppedBacklog](), dict[str, StreamId]()

    def find(shard: Shard) -> endpoints.DroppedBacklog:
        now = shard.read_clock()
        at_ms = before(now)
        if at_ms > now:
            fail(f"--before is in the future: it is {timestamp(now)} by Redis's clock", Exit.USAGE)
        check_note(shard, name)
        if ReplayStore(shard).read(name) is not None:
            hint = f"cancel it first with `sweeperd replay --endpoint {name} --cancel`"
            fail(f"shard {shard.name}: a replay to {name} is running; {hint}", Exit.FAILED)
        if endpoints.is_lost(shard, endpoint):
            hint = "a daemon makes it again within seconds, or `sweeperd --once`"
            fail(f"shard {shard.name}: the consumer group of {name} is lost: {hint}", Exit.FAILED)
        ends[shard.name] = endpoints.end_of_backlog(shard, at_ms, now)
        if at_ms < now and end_if_ahead(shard):
            warn(f"shard {shard.name}: Redis's clock was set back, so some events seem younger; --before 0s drops all")
        found = endpoints.count_backlog(shard, endpoint, ends[shard.name])
        return endpoints.DroppedBacklog(shard=shard.name, before=at_ms, found=found, dropped=0)

    def question(found: Sequence[endpoints.DroppedBacklog]) -> str:
        total = sum(backlog.found for backlog in found)
        how = "Turn {} into dead letters?" if letters else "Drop {} permanently?"
        return how.format(f"{counted(total, 'event')} of {name}") if total else ""

    def target(backlog: endpoints.DroppedBacklog) -> str:
        what = f"{name} before {rfc3339(int(backlog.before))}" + (f": {reason}" if reason else "")
        return what if backlog.found else ""

    def work(shard: Shard, backlog: endpoints.DroppedBacklog) -> Iterator[Changed]:
        dropped, at_least, refused = 0, "at least ", False
        try:
            for count in endpoints.drop(shard, endpoint, ends[shard.name], letters=letters):
                dropped += count
                yield target(backlog), count
            at_least = ""
        except redis.RedisError as error:
            refused = not dropped and not is_unanswered(error)
            raise
        finally:
            done.append(backlog.model_copy(update={"dropped": dropped}))
            result = "turned into dead letters" if letters else "dropped"
            if not refused:
                change.output.say(f"{at_least}{counted(dropped, 'event')} of {name} on {shard.name} {result}")

    change.carry_out(Action.DROP_BACKLOG, find, question, work, target, irreversible=True)
    change.report(endpoints.DropDocument(endpoint=name, dead_letters=letters, shards=done))


def _resumed(name: str, shard: Shard, state: EndpointState, done: endpoints.Resumed) -> str:
    notes = [
        f"it was paused {paused_since(state.paused_at, state.reason)}" if state.paused else "",
        "it was muted" if done.was_resting and not state.paused else "",
        "its circuit was open" if done.was_open_on else "",
        f"due now: {counted(done.due, 'event')}" if done.due else "",
    ]
    verb = "resumed" if done.was_resting or done.was_open_on else "not paused"
    return "; ".join([f"{name} is {verb} on {shard.name}", *filter(None, notes)])


def _state_of(name: str) -> Callable[[Shard], EndpointState]:
    return lambda shard: EndpointStateStore(shard).read(name)


@command.command("attempts")
@click.argument("name")
@limit_option(10_000, "Show up to this many.", default=20)
@on_shards()
def attempts(run: Run, name: str, limit: int) -> None:
    """
    List the last delivery attempts, newest first: every failure, and a sample of the successes. A batch is shown with
    the ids of its first event. Secrets in responses are masked. Times are by Redis's clock.
    """
    endpoint_of(run.settings, name)
    every = [each for _, found in run.each(lambda one: read_attempts(one, name, limit + 1)) for each in found]
    by_time = sorted(every, key=lambda each: each.attempt.at_ms, reverse=True)
    newest, truncated = run.newest(map(AttemptDocument.model_validate, by_time), limit)
    columns = ["at", "shard", "result", "ms", "attempt", "events", "event", "id", "replica", "answer"]
    values = {"endpoint": name, "attempts": newest, "truncated": truncated}
    run.table(columns, map(_attempt_cells, newest), lambda: endpoints.AttemptsDocument.model_validate(values))


def attempt_text(attempt: AttemptDocument) -> Cell:
    batch = f", in a batch of {attempt.events}" if attempt.events > 1 else ""
    number = f"{attempt.hand_over}.{attempt.attempt}"
    text = f"{number} to {attempt.endpoint}: {attempt.reason} after {attempt.milliseconds} ms{batch}"
    return Cell(text, STYLES.get(attempt.result, ""))


def _attempt_cells(attempt: AttemptDocument) -> list[object]:
    return [
        timestamp(attempt.at),
        attempt.shard,
        Cell(attempt.reason, STYLES.get(attempt.result, "")),
        attempt.milliseconds,
        f"{attempt.hand_over}.{attempt.attempt}",
        attempt.events,
        attempt.event_id,
        attempt.reservation_id,
        attempt.replica,
        attempt.answer,
    ]


@command.command("keys")
@click.argument("name", required=False)
@click.pass_obj
def keys(options: Options, name: str | None) -> None:
    """
    Print the public keys of all endpoints, or of endpoint NAME, as a JSON Web Key Set (JWKS) to host for receivers. The
    daemon serves the same set to operators at /.well-known/jwks.json.
    """
    with options.shards(secrets=True) as (settings, _):
        found = settings.webhooks.endpoints if name is None else [endpoint_of(settings, name)]
    Output(as_json=True).name_address()
    click.echo(json.dumps(endpoints.jwks(found), indent=2))


@command.command("test")
@click.argument("name")
@click.option("--count", type=click.IntRange(1, 10_000), default=1, help="Send this many events, in batches.")
@on_shards(secrets=True)
def test(run: Run, name: str, count: int) -> None:
    """
    Send signed system.webhook_test events to an endpoint, without retries, and show the last request and response. It
    works on a paused endpoint, and stops at the first failure. A 2xx response closes an open circuit on all daemons;
    nothing else is written to Redis.
    """
    endpoint, trial = endpoint_of(run.settings, name), None
    for shard in run.shards:
        if trial is None:  # any shard will do, because only its clock is needed
            with run.catching(shard):
                trial = try_out(shard, endpoint, run.settings.webhooks, count)
    if trial is None:
        return
    if trial.delivered:
        run.each(lambda shard: endpoints.close_if_open(shard, name))
    if run.output.as_json:
        run.output.json(trial)
    else:
        _show(run.output, trial)
    if not trial.delivered:
        fail(f"{name} did not accept it: {trial.result}", Exit.FAILED)
    sys.exit(Exit.DONE)  # even if a shard is down


def _show(output: Output, trial: TrialDocument) -> None:
    output.say(f"POST {trial.request.url}", "bold")
    for name, value in trial.request.headers.items():
        output.say(f"{name}: {value}")
    output.say(trial.request.body if len(trial.request.body) <= BODY_SHOWN else trial.request.body[:BODY_SHOWN] + "…")
    output.say("")
    if trial.requests > 1 or trial.accepted > 1:
        output.say(
            f"{counted(trial.accepted, 'event')} accepted in {counted(trial.requests, 'request')}; the last one:"
        )
    output.say(f"{trial.result} after {trial.seconds * 1000:.0f} ms", "green" if trial.delivered else "red")
    for name, value in trial.response.headers.items():
        output.say(f"{name}: {value}")
    if trial.response.body:
        output.say(trial.response.body)
