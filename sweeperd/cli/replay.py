"""`sweeperd replay`: delivers the events of a time span to one endpoint again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import click
from pydantic import AliasPath, Field

from sweeperd.cli.change import Change, Changed, changing
from sweeperd.cli.moment import Moment, moment
from sweeperd.cli.options import Exit, fail
from sweeperd.cli.output import printable
from sweeperd.cli.shards import endpoint_of, warn
from sweeperd.config import EndpointSettings
from sweeperd.document import Argument, Count, Document, ShardsDocument
from sweeperd.document import Moment as At
from sweeperd.ops.actions import Action
from sweeperd.ops.expired import retention_gap
from sweeperd.outbox import replays as replay
from sweeperd.outbox.replays import ReplayNote, ReplayProgress, ReplaySpan, ReplayStore, described
from sweeperd.runtime.signals import stop_on_signals
from sweeperd.store.shard import Shard
from sweeperd.text import decode, timestamp

#: Seconds between polls of the progress.
POLL_EVERY = 0.5
#: The command ends after this many polls in a row that find only events waiting for their next attempt.
WAITING_POLLS = 10


@dataclass
class _Replay:
    """A replay on a shard. It is running if this command (`began`) or an earlier one started it."""

    shard: Shard
    note: ReplayNote
    running: bool
    began: bool = False
    progress: ReplayProgress = field(default_factory=ReplayProgress)


class ShardReplay(Document):
    """The replay on a shard."""

    shard: str = Field(validation_alias=AliasPath("shard", "name"))
    address: str = Field(
        validation_alias=AliasPath("shard", "address"), description="Where Redis is, without credentials."
    )
    since: At = Field(validation_alias=AliasPath("note", "since_ms"))
    until: At = Field(validation_alias=AliasPath("note", "until_ms"))
    events: Count = Field(validation_alias=AliasPath("note", "events"), description="How many events it replays.")
    began: bool = Field(description="Whether this command started it.")
    ended: bool = Field(
        validation_alias=AliasPath("progress", "ended"),
        description="Whether all of its events were delivered, or it was cancelled.",
    )
    left: Count = Field(
        validation_alias=AliasPath("progress", "left"), description="About how many are not delivered yet."
    )


class ReplaysDocument(ShardsDocument, title="sweeperd replay --json"):
    endpoint: Argument
    cancelled: bool = Field(description="Whether --cancel was given.")
    replays: list[ShardReplay]


@click.command("replay")
@click.option("--endpoint", "name", metavar="NAME", required=True, help="The endpoint to deliver to.")
@click.option("--since", callback=moment, metavar="TIME", help="Start of the span, inclusive.")
@click.option("--until", callback=moment, metavar="TIME", help="End of the span, exclusive.  [default: now]")
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
@click.option("--event-type", metavar="TYPE", help="Only this type, such as reservation.expired, or category.")
@click.option("--detach", is_flag=True, help="Start the replay without waiting for its end.")
@click.option("--cancel", is_flag=True, help="Cancel the running replay to this endpoint.")
@changing
def command(
    change: Change,
    name: str,
    since: Moment | None,
    until: Moment | None,
    tenant: str | None,
    event_type: str | None,
    detach: bool,
    cancel: bool,
) -> None:
    """
    Deliver the events from --since to --until to an endpoint again, with the same webhook-id.

    The span selects by time of expiry: 2026-11-21T12:00:05Z, 12:00, or a duration such as 15m ago. The endpoint's
    filters apply.

    The daemons that deliver do the work, and the command waits for them. If you interrupt the command, the replay
    continues; run the same command to wait again. Each endpoint has one replay at a time.

    Exit code 3 if all events were sent and some wait for their next attempt.
    """
    if cancel == (since is not None):
        raise click.UsageError("give either --since or --cancel")
    if since is None:
        # The endpoint may have been removed from the configuration.
        replays = _cancel(change, name)
    else:
        endpoint = endpoint_of(change.settings, name)
        shown = None if tenant is None else decode(tenant.encode("utf-8", "surrogateescape"))
        replays = _begin(change, lambda shard: _prepare(shard, endpoint, since, until, shown, event_type), name)
        if not detach:
            _wait(change, replays, name)
    values = {"endpoint": name, "cancelled": cancel, "replays": replays}
    change.report(ReplaysDocument.model_validate(values))
    change.end()
    waiting = sum(each.progress.left for each in replays if each.progress.only_waits)
    if waiting and not detach:
        fail(f"all events were sent, and {waiting} wait for their next attempt", Exit.UNDELIVERED)


def _prepare(
    shard: Shard,
    endpoint: EndpointSettings,
    since: Moment,
    until: Moment | None,
    tenant: str | None,
    event_type: str | None,
) -> _Replay:
    """Resume the running replay, or count the events of a new one. Exits if another one runs."""
    now = shard.read_clock()
    span = ReplaySpan(since(now), now if until is None else until(now), tenant, event_type)
    if span.since_ms >= span.until_ms:
        fail("--since must be before --until", Exit.USAGE)
    if span.until_ms > now:
        fail(f"--until is in the future: it is {timestamp(now)} by Redis's clock", Exit.USAGE)
    note = ReplayStore(shard).read(endpoint.name)
    if note is not None:
        same_span = (note.since_ms, note.tenant, note.event_type) == (span.since_ms, tenant, event_type)
        same_end = until is None or note.until_ms == span.until_ms
        if note.cancelled or not same_span or not same_end:
            fail(_other(shard, note), Exit.FAILED)
        return _Replay(shard, note, running=True, progress=ReplayStore(shard).progress(note))
    if missing := retention_gap(shard, span.since_ms):
        warn(f"{shard.name}: {missing}")
    if gap := replay.filter_gap(shard, endpoint):
        warn(f"{shard.name}: {gap}")
    return _Replay(shard, replay.count_events(shard, endpoint, span), running=False)


def _other(shard: Shard, note: ReplayNote) -> str:
    if note.cancelled:
        return f"shard {shard.name}: a replay to {note.endpoint} was cancelled and ends within seconds; try again"
    command = f"sweeperd replay --endpoint {note.endpoint}"
    hint = f"`{command} {described(note)}` waits for it, `{command} --cancel` cancels it"
    return printable(f"shard {shard.name}: another replay to {note.endpoint} is running: {hint}")


def _begin(change: Change, find: Callable[[Shard], _Replay], name: str) -> list[_Replay]:
    total = 0

    def question(replays: Sequence[_Replay]) -> str:
        nonlocal total
        for each in replays:
            if each.running:
                events = each.note.events
                change.output.say(f"the replay to {name} on {each.shard.name} is already running: {events} events")
        total = sum(each.note.events for each in replays if not each.running)
        if not total and not any(each.running for each in replays):
            change.output.say(f"no events for {name} in this span")
        return f"Deliver {total} event{'s' if total > 1 else ''} to {name} again?" if total else ""

    def begin(shard: Shard, each: _Replay) -> Iterator[Changed]:
        if each.running or not each.note.events:
            return
        result, note = replay.begin(shard, each.note)
        each.progress = ReplayProgress(False, note.events)
        if result != "begun":
            why = "another replay has started" if result == "running" else "the first events have been trimmed"
            change.fail(f"shard {shard.name}: {why} since the events were counted; run the command again")
            return
        yield f"{name} {described(note)}", note.events
        each.note, each.running, each.began = note, True, True
        if why := replay.obstacle(shard, name):
            warn(f"{shard.name}: {why}")

    replays = change.carry_out(Action.REPLAY, find, question, begin)
    if any(each.began for each in replays):
        change.output.say(f"started the replay of {total} events to {name}")
    return replays


def _wait(change: Change, replays: Sequence[_Replay], name: str) -> None:
    """Wait until all replays have ended or only wait for their next attempts, or until a signal."""
    running, polls = [each for each in replays if each.running], 0
    total = sum(each.note.events for each in running)
    hidden = not (change.output.terminal and total)
    with stop_on_signals() as stop, click.progressbar(length=total, label=name, hidden=hidden) as bar:
        while running and polls < WAITING_POLLS:
            for each in running:
                with change.catching(each.shard):
                    each.progress = ReplayStore(each.shard).progress(each.note)
            running = [each for each in running if not each.progress.ended and not change.is_down(each.shard)]
            polls = polls + 1 if all(each.progress.only_waits for each in running) else 0
            bar.update(total - sum(each.progress.left for each in running) - bar.pos)
            if running and stop.wait(POLL_EVERY):
                warn(f"the replay to {name} continues without this command; --cancel cancels it")
                return
    done = sum(each.note.events for each in replays if each.running and each.progress.ended)
    if done:
        change.output.say(f"{done} event{'s' if done > 1 else ''} delivered to {name} again")


def _cancel(change: Change, name: str) -> list[_Replay]:
    def find(shard: Shard) -> _Replay | None:
        note = ReplayStore(shard).read(name)
        return None if note is None else _Replay(shard, note, running=True)

    def question(found: Sequence[_Replay | None]) -> str:
        if not any(found):
            change.output.say(f"no replay to {name} is running")
        return f"Cancel the replay to {name}?" if any(found) else ""

    def cancel(shard: Shard, each: _Replay | None) -> Iterator[Changed]:
        if each is None:
            return
        left = ReplayStore(shard).progress(each.note).left
        if replay.cancel(shard, each.note):
            yield f"{name} {described(each.note)}", max(1, left)
            change.output.say(f"cancelled the replay to {name} on {shard.name}; about {left} events were not sent")

    return list(filter(None, change.carry_out(Action.CANCEL_REPLAY, find, question, cancel)))
