"""`sweeperd replay`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import click
from pydantic import AliasPath, Field

from sweeperd.cli.change import Change, Changed, changing
from sweeperd.cli.options import Exit, Moment, fail, moment, stop_on_signals
from sweeperd.cli.output import printable, timestamp
from sweeperd.cli.shards import endpoint_of, warn
from sweeperd.config import EndpointSettings
from sweeperd.document import Argument, CommandDocument, Count, Document, Down
from sweeperd.document import Moment as At
from sweeperd.ops.actions import Action
from sweeperd.ops.expired import retention_gap
from sweeperd.outbox import replays as replay
from sweeperd.outbox.replays import ReplayNote, ReplayProgress, ReplaySpan, ReplayStore, described
from sweeperd.store.shard import Shard
from sweeperd.text import decode

#: Between two readings of the progress, seconds.
READ_EVERY = 0.5
#: The command ends if so many readings in a row find nothing but events waiting for the next attempt.
WAITING_READINGS = 10


@dataclass
class _Replay:
    """The replay on a shard, as far as the command is."""

    shard: Shard
    note: ReplayNote
    #: Whether the replay runs, because this command (`began`) or an earlier command has begun the replay.
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
    events: Count = Field(validation_alias=AliasPath("note", "events"), description="How many events it is about.")
    began: bool = Field(description="Whether this command began it.")
    ended: bool = Field(
        validation_alias=AliasPath("progress", "ended"),
        description="Whether all of its events were delivered, or it was cancelled.",
    )
    left: Count = Field(
        validation_alias=AliasPath("progress", "left"), description="How many are not delivered, about."
    )


class ReplaysDocument(CommandDocument, title="sweeperd replay --json"):
    endpoint: Argument
    cancelled: bool = Field(description="Whether --cancel was given.")
    replays: list[ShardReplay]
    down: Down


@click.command("replay")
@click.option("--endpoint", "name", metavar="NAME", required=True, help="Who gets them again.")
@click.option("--since", callback=moment, metavar="TIME", help="From then on, that moment included.")
@click.option("--until", callback=moment, metavar="TIME", help="Up to then, that moment not included.  [default: now]")
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
@click.option("--event-type", metavar="TYPE", help="Only this type, such as reservation.expired, or category.")
@click.option("--detach", is_flag=True, help="Begin, and do not wait for the end.")
@click.option("--cancel", is_flag=True, help="End the replay to this endpoint that is running.")
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
    Deliver the events from --since up to --until to an endpoint again, with the same webhook-id.

    A time is the moment of the expiry, written as in `sweeperd expired`: 2026-11-21T12:00:05Z, 12:00, or 15m for so
    long ago. The settings of the endpoint select the events. The events are counted first.

    The processes that deliver do the work, and the command waits for them. If the command is ended, the replay goes
    on, and the same command waits again. Each endpoint has a single replay at a time.

    Exit code 3 if all events were sent and some of them wait for their next attempt.
    """
    if cancel == (since is not None):
        raise click.UsageError("either --since, or --cancel")
    if since is None:
        # Also if the endpoint is not in the configuration any more.
        replays = _cancel(change, name)
    else:
        endpoint = endpoint_of(change.settings, name)
        shown = None if tenant is None else decode(tenant.encode("utf-8", "surrogateescape"))
        replays = _begin(change, lambda shard: _prepare(shard, endpoint, since, until, shown, event_type), name)
        if not detach:
            _wait(change, replays, name)
    values = {"endpoint": name, "cancelled": cancel, "replays": replays, "down": change.down}
    change.report(ReplaysDocument.model_validate(values))
    change.end()
    waiting = sum(each.progress.left for each in replays if each.progress.only_waits)
    if waiting and not detach:
        fail(f"all events were sent; {waiting} wait for their next attempt", Exit.UNDELIVERED)


def _prepare(
    shard: Shard,
    endpoint: EndpointSettings,
    since: Moment,
    until: Moment | None,
    tenant: str | None,
    event_type: str | None,
) -> _Replay:
    """Take up the running replay, or count the events of a new replay. Ends the process if neither is possible."""
    now = shard.read_clock()
    span = ReplaySpan(since.on(now), now if until is None else until.on(now), tenant, event_type)
    if span.since_ms >= span.until_ms:
        fail("--since is not before --until", Exit.USAGE)
    if span.until_ms > now:
        fail(f"--until is yet to come: it is {timestamp(now)} by redis's clock", Exit.USAGE)
    note = ReplayStore(shard).read(endpoint.name)
    if note is not None:
        same_end = until is None or note.until_ms == span.until_ms
        if note.cancelled or (note.since_ms, note.tenant, note.event_type) != (span.since_ms, tenant, event_type):
            same_end = False
        if not same_end:
            fail(_other(shard, note), Exit.FAILED)
        return _Replay(shard, note, running=True, progress=ReplayStore(shard).progress(note))
    if missing := retention_gap(shard, span.since_ms):
        warn(f"{shard.name}: {missing}")
    if gap := replay.filter_gap(shard, endpoint):
        warn(f"{shard.name}: {gap}")
    return _Replay(shard, replay.count_events(shard, endpoint, span), running=False)


def _other(shard: Shard, note: ReplayNote) -> str:
    if note.cancelled:
        return f"shard {shard.name}: a replay to {note.endpoint} was cancelled and ends within seconds; try again then"
    return printable(
        f"shard {shard.name}: another replay to {note.endpoint} has not ended: `sweeperd replay --endpoint "
        f"{note.endpoint} {described(note)}` waits for it, and --cancel in place of the span ends it"
    )


def _begin(change: Change, find: Callable[[Shard], _Replay], name: str) -> list[_Replay]:
    total = 0

    def question(replays: Sequence[_Replay]) -> str:
        nonlocal total
        for each in replays:
            if each.running:
                text = f"the replay to {name} on {each.shard.name} is running already: {each.note.events} events"
                change.output.say(text)
        total = sum(each.note.events for each in replays if not each.running)
        if not total and not any(each.running for each in replays):
            change.output.say(f"there is no event for {name} in that span")
        return f"Deliver {total} event{'s' if total > 1 else ''} to {name} again?" if total else ""

    def begin(shard: Shard, each: _Replay) -> Iterator[Changed]:
        if each.running or not each.note.events:
            return
        result, note = replay.begin(shard, each.note)
        if result != "begun":
            why = "another one has begun" if result == "running" else "its first events have been trimmed"
            change.fail(f"shard {shard.name}: since the events were counted, {why}: count again")
            return
        yield f"{name} {described(note)}", note.events
        each.note, each.running, each.began = note, True, True
        each.progress = ReplayProgress(False, note.events)
        if why := replay.obstacle(shard, name):
            warn(f"{shard.name}: {why}")

    replays = change.carry_out(Action.REPLAY, find, question, begin)
    if any(each.began for each in replays):
        change.output.say(f"the replay of {total} events to {name} has begun")
    return replays


def _wait(change: Change, replays: Sequence[_Replay], name: str) -> None:
    """Wait until all replays have ended or only wait for their next attempts, or until a signal."""
    open_ones, readings = [each for each in replays if each.running], 0
    total = sum(each.note.events for each in open_ones)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals())
        bar = (
            stack.enter_context(click.progressbar(length=total, label=name))
            if change.output.terminal and total
            else None
        )
        while open_ones and readings < WAITING_READINGS:
            for each in open_ones:
                with change.noted(each.shard):
                    each.progress = ReplayStore(each.shard).progress(each.note)
            open_ones = [each for each in open_ones if not each.progress.ended and not change.is_down(each.shard)]
            readings = readings + 1 if all(each.progress.only_waits for each in open_ones) else 0
            if bar is not None:
                bar.update(total - sum(each.progress.left for each in open_ones) - bar.pos)
            if open_ones and stop.wait(READ_EVERY):
                warn(f"the replay to {name} goes on without this command; --cancel ends it")
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
        return f"End the replay to {name}?" if any(found) else ""

    def cancel(shard: Shard, each: _Replay | None) -> Iterator[Changed]:
        if each is None:
            return
        left = ReplayStore(shard).progress(each.note).left
        if replay.cancel(shard, each.note):
            yield f"{name} {described(each.note)}", max(1, left)
            text = f"the replay to {name} on {shard.name} is cancelled: about {left} events are not sent"
            change.output.say(text)

    return list(filter(None, change.carry_out(Action.CANCEL_REPLAY, find, question, cancel)))
