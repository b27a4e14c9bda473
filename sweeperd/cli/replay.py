"""`sweeperd replay`: delivers the events of a time span to one endpoint again."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import click
from pydantic import AliasPath, Field

from sweeperd.cli.change import Change, Changed, changing
from sweeperd.cli.moment import Moment, left_out, moment
from sweeperd.cli.options import Exit, fail
from sweeperd.cli.output import printable
from sweeperd.cli.shards import endpoint_of, warn
from sweeperd.config import EndpointSettings
from sweeperd.document import Argument, Count, Document, ShardsDocument
from sweeperd.document import Moment as At
from sweeperd.ops.actions import TARGET, Action, read_actions
from sweeperd.ops.expired import retention_gap
from sweeperd.outbox import replays as replay
from sweeperd.outbox.replays import ReplayNote, ReplayProgress, ReplaySpan, ReplayStore, described
from sweeperd.runtime.signals import stop_on_signals
from sweeperd.store import streams
from sweeperd.store.shard import Shard
from sweeperd.text import counted, decode, timestamp

#: Seconds between polls of the progress.
POLL_EVERY = 0.5
#: The command ends after this many polls in a row that find only events waiting for their next attempt.
WAITING_POLLS = 10
#: After this many polls the command looks again why nothing is sent.
OBSTACLE_POLLS = 20


@dataclass
class _Replay:
    """A replay on a shard. It is running if this command (`began`) or an earlier one started it."""

    shard: Shard
    note: ReplayNote
    running: bool
    began: bool = False
    progress: ReplayProgress = field(default_factory=ReplayProgress)
    #: Known once it has ended: whether another command cancelled it, and how many of its events became dead letters.
    cancelled: bool = False
    dead_letters: int = 0
    #: Why nothing was sent at the last look; empty if something was.
    obstacle: str = ""


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
        description="Whether each of its events was delivered or became a dead letter, or it was cancelled.",
    )
    dead_letters: Count = Field(description="How many of its events became dead letters, once it has ended.")
    left: Count = Field(
        validation_alias=AliasPath("progress", "left"), description="About how many are not delivered yet."
    )


class ReplaysDocument(ShardsDocument, title="sweeperd replay --json"):
    endpoint: Argument
    cancelled: bool = Field(description="Whether it was cancelled, by --cancel or while the command waited.")
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

    The span selects by time of expiry: 2026-11-21T12:00:05Z, 12:00, or 15m for 15 minutes ago. The endpoint's
    filters apply.

    The daemons that deliver do the work, and the command waits for them. If you interrupt the command, or Redis is not
    available for a moment, the replay continues, and the command says how to wait for it again. Each endpoint has one
    replay at a time.

    Exit code 1 if another command cancels the replay meanwhile, or if its note in Redis is lost; 3 if it was
    interrupted, or if all events were sent and some wait for their next attempt or became dead letters.
    """
    if cancel == (since is not None):
        raise click.UsageError("give either --since or --cancel")
    if since is None:
        # The endpoint may have been removed from the configuration.
        replays, ended = _cancel(change, name), True
    else:
        endpoint = endpoint_of(change.settings, name)
        shown = None if tenant is None else decode(tenant.encode("utf-8", "surrogateescape"))
        replays = _begin(change, lambda shard: _prepare(shard, endpoint, since, until, shown, event_type), name)
        ended = detach or _wait(change, replays, name)
    cancelled = cancel or any(each.cancelled for each in replays)
    values = {"endpoint": name, "cancelled": cancelled, "replays": replays}
    change.report(ReplaysDocument.model_validate(values))
    left = [each for each in replays if each.running and each.progress.goes_on]
    if again := [described(each.note) for each in left if not ended or (not detach and change.is_down(each.shard))]:
        how = f"`sweeperd replay --endpoint {name} {again[0]}` waits for it again"
        warn(f"the replay to {name} continues without this command; {how}, --cancel cancels it")
    change.end()
    waiting = sum(each.progress.left for each in replays if each.progress.only_waits)
    letters = sum(each.dead_letters for each in replays)
    if not ended:
        sys.exit(Exit.UNDELIVERED)
    if waiting and not detach:
        fail(f"all events were sent, and {waiting} wait for their next attempt", Exit.UNDELIVERED)
    if letters:
        hint = f"`sweeperd dead-letters list --endpoint {name}`"
        fail(f"all events were sent, and {letters} became dead letters: {hint}", Exit.UNDELIVERED)


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
    ahead = replay.end_if_ahead(shard)
    if span.until_ms > (ahead or now):
        fail(f"--until is in the future: it is {timestamp(now)} by Redis's clock", Exit.USAGE)
    check_note(shard, endpoint.name)
    note = ReplayStore(shard).read(endpoint.name)
    if note is not None:
        same_span = (note.since_ms, note.tenant, note.event_type) == (span.since_ms, tenant, event_type)
        same_end = until is None or note.until_ms == span.until_ms
        if note.cancelled or not same_span or not same_end:
            fail(_other(shard, note), Exit.FAILED)
        return _Replay(shard, note, running=True, progress=ReplayStore(shard).progress(note))
    if until is None and ahead:
        warn(f"{shard.name}: {left_out(ahead)}")
    if missing := retention_gap(shard, span.since_ms, "is not delivered"):
        warn(f"{shard.name}: {missing}")
    if gap := replay.filter_gap(shard, endpoint):
        warn(f"{shard.name}: {gap}")
    return _Replay(shard, replay.count_events(shard, endpoint, span), running=False)


def check_note(shard: Shard, name: str) -> None:
    """Exit if there is a note of a replay to this endpoint that cannot be read."""
    if ReplayStore(shard).is_unreadable(name):
        hint = f"`sweeperd replay --endpoint {name} --cancel` removes it"
        fail(f"shard {shard.name}: the note of a replay to {name} cannot be read; {hint}", Exit.FAILED)


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
                events = counted(each.note.events, "event")
                change.output.say(f"the replay to {name} on {each.shard.name} is already running: {events}")
        total = sum(each.note.events for each in replays if not each.running)
        if not total and not any(each.running for each in replays):
            change.output.say(f"no events for {name} in this span{change.among_those_up}")
        return f"Deliver {counted(total, 'event')} to {name} again?" if total else ""

    def begin(shard: Shard, each: _Replay) -> Iterator[Changed]:
        if each.running or not each.note.events:
            return
        result, note = replay.begin(shard, each.note)
        each.progress = ReplayProgress(False, note.events)
        if result != "begun":
            why = "another replay has started" if result == "running" else "the first events have been trimmed"
            change.fail(f"shard {shard.name}: {why} since the events were counted; run the command again")
            return
        yield _target(note), note.events
        each.note, each.running, each.began = note, True, True
        _look_for_obstacle(each)

    def target(each: _Replay) -> str:
        return "" if each.running or not each.note.events else _target(each.note)

    replays = change.carry_out(Action.REPLAY, find, question, begin, target)
    if any(each.began for each in replays):
        change.output.say(f"started the replay of {counted(total, 'event')} to {name}")
    return replays


def _wait(change: Change, replays: Sequence[_Replay], name: str) -> bool:
    """Wait until all replays have ended or only wait for their next attempts. False after a signal."""
    running, polls = [each for each in replays if each.running], 0
    total = sum(each.note.events for each in running)
    hidden = not (change.output.terminal and total)
    with stop_on_signals() as stop, click.progressbar(length=total, label=name, hidden=hidden) as bar:
        for number in itertools.count():
            for each in running:
                with change.catching(each.shard):
                    each.progress = ReplayStore(each.shard).progress(each.note)
                    if each.progress.lost:
                        why = f"the note of the replay to {name} was removed or damaged before the end"
                        change.fail(f"shard {each.shard.name}: {why}: how many events were sent is unknown")
                    elif number % OBSTACLE_POLLS == 0 and not each.progress.ended:
                        _look_for_obstacle(each)
            running = [each for each in running if each.progress.goes_on and not change.is_down(each.shard)]
            polls = polls + 1 if all(each.progress.only_waits for each in running) else 0
            bar.update(total - sum(each.progress.left for each in running) - bar.pos)
            if not running or polls >= WAITING_POLLS:
                break
            if stop.wait(POLL_EVERY):
                return False
    for each in replays:
        if each.running and each.progress.ended:
            with change.catching(each.shard):
                _look_back(each)
            if each.cancelled:
                change.fail(f"shard {each.shard.name}: the replay to {name} was cancelled: see `sweeperd actions`")
    ended = [each for each in replays if each.running and each.progress.ended and not each.cancelled]
    done = sum(each.note.events - each.dead_letters for each in ended)
    if done:
        change.output.say(f"{counted(done, 'event')} delivered to {name} again")
    return True


def _look_for_obstacle(each: _Replay) -> None:
    """Say why nothing is sent, once for each reason."""
    before, each.obstacle = each.obstacle, replay.obstacle(each.shard, each.note.endpoint)
    if each.obstacle and each.obstacle != before:
        warn(f"{each.shard.name}: {each.obstacle}")


def _look_back(each: _Replay) -> None:
    """Find out how the replay ended: its note is gone either way."""
    for _, action in read_actions(each.shard, b"%d" % each.note.made_at):
        if (action.action, action.target) == (Action.CANCEL_REPLAY, _target(each.note)):
            each.cancelled |= bool(action.count) or not action.finished
    each.dead_letters = replay.dead_letters(each.shard, each.note)
    if not streams.exactly(each.shard.client, each.shard.keys.events, [each.note.last])[0]:
        warn(
            f"{each.shard.name}: the stream no longer has the last event of the replay, so some may not have been sent"
        )


def _target(note: ReplayNote) -> str:
    """What the records of actions call the replay."""
    return f"{note.endpoint} {described(note)}"[:TARGET]


def _cancel(change: Change, name: str) -> list[_Replay]:
    """Cancel the replay on each shard, and remove its note if it cannot be read. Returns those that could be read."""

    def find(shard: Shard) -> tuple[_Replay | None, bool]:
        note = ReplayStore(shard).read(name)
        running = None if note is None else _Replay(shard, note, running=True)
        return running, note is None and ReplayStore(shard).is_unreadable(name)

    def question(found: Sequence[tuple[_Replay | None, bool]]) -> str:
        there = any(each or unreadable for each, unreadable in found)
        if not there:
            change.output.say(f"no replay to {name} is running{change.among_those_up}")
        return f"Cancel the replay to {name}?" if there else ""

    def cancel(shard: Shard, found: tuple[_Replay | None, bool]) -> Iterator[Changed]:
        each, unreadable = found
        if unreadable and replay.cancel_unreadable(shard, name):
            yield name, 1
            change.output.say(f"removed the note of the replay to {name} on {shard.name}, which could not be read")
        elif unreadable:
            change.fail(
                f"shard {shard.name}: events of the replay to {name} are still in flight; try again in a minute"
            )
        if each is None:
            return
        left = ReplayStore(shard).progress(each.note).left
        if replay.cancel(shard, each.note):
            yield _target(each.note), max(1, left)
            change.output.say(
                f"cancelled the replay to {name} on {shard.name}; not sent: about {counted(left, 'event')}"
            )

    def target(found: tuple[_Replay | None, bool]) -> str:
        each, unreadable = found
        if each is None:
            return name if unreadable else ""
        return _target(each.note)

    # Recorded first, for the commands that wait for its end.
    found = change.carry_out(Action.CANCEL_REPLAY, find, question, cancel, target, irreversible=True)
    return [each for each, _ in found if each is not None]
