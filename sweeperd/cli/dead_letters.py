"""The commands that change dead letters: which letters, the question, and a line for each letter."""

import heapq
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Self

import click
from pydantic import Field

from sweeperd.cli.actions import leave_record
from sweeperd.cli.options import Options, json_option, shard_option, yes_option
from sweeperd.cli.output import Output, printable, shortened, with_address
from sweeperd.cli.shards import Troubles, check_name, warn
from sweeperd.config import Settings
from sweeperd.ops.actions import Action
from sweeperd.ops.document import Body, CommandDocument, Count, Document, Down, Moment, Seconds
from sweeperd.outbox import dead_letters
from sweeperd.outbox.dead_letters import PAGE, DeadLetter, DeadLetterFilter, Replayed
from sweeperd.outbox.endpoint_state import EndpointStateStore
from sweeperd.store.shard import Shard
from sweeperd.text import decode

_ID = re.compile(r"\d{1,19}-\d{1,19}", re.ASCII)

#: One letter of a change, and why it was left as it is; empty where it was changed.
LetterChange = tuple[DeadLetter, str]

endpoint_option = click.option("--endpoint", metavar="NAME", help="Only this endpoint's.")
tenant_option = click.option("--tenant", metavar="NAME", help="Only this tenant's.")

_selected = (
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    endpoint_option,
    tenant_option,
    click.option("--all", "everything", is_flag=True, help="All there are."),
    yes_option,
    json_option,
    shard_option,
    click.pass_obj,
)


def selecting(function: Callable[..., None]) -> Callable[..., None]:
    """The arguments of the commands that change something."""
    for decorator in reversed(_selected):
        function = decorator(function)
    return function


class Replay:
    """Deliver letters again."""

    question, done, action = "Deliver {} again?", "replayed", Action.REPLAY

    def act(self, shard: Shard, settings: Settings, letters: Sequence[DeadLetter]) -> Iterator[LetterChange]:
        objections = [dead_letters.objection(letter, settings.consumers) for letter in letters]
        able = [letter.id for letter, objection in zip(letters, objections, strict=True) if not objection]
        outcomes = iter(dead_letters.replay(shard, able))
        for letter, objection in zip(letters, objections, strict=True):
            yield letter, objection or next(outcomes).why_not

    def after(self, shard: Shard, endpoints: Iterable[str]) -> None:
        board = EndpointStateStore(shard)
        for name in sorted(endpoints):
            if board.read(name).paused:
                warn(f"{name} is paused: its events wait until `sweeperd endpoints resume {name}`")


class Drop:
    """Remove letters."""

    question, done, action = "Drop {} for good?", "dropped", Action.DROP

    def act(self, shard: Shard, _settings: Settings, letters: Sequence[DeadLetter]) -> Iterator[LetterChange]:
        removed = dead_letters.drop(shard, [letter.id for letter in letters])
        for letter, gone in zip(letters, removed, strict=True):
            yield letter, "" if gone else Replayed.GONE.why_not

    def after(self, _shard: Shard, _endpoints: Iterable[str]) -> None:
        """Dropping letters needs no hint."""


def change_letters(
    options: Options,
    change: Replay | Drop,
    ids: tuple[str, ...],
    endpoint: str | None,
    tenant: str | None,
    everything: bool,
    yes: bool,
    as_json: bool,
    shard: str | None,
) -> None:
    named = [bool(ids), bool(endpoint or tenant), everything]
    if sum(named) != 1:
        raise click.UsageError("name dead letters: either by their IDs, or by --endpoint and --tenant, or --all")
    for odd in (letter_id for letter_id in ids if not _ID.fullmatch(letter_id)):
        raise click.UsageError(f"'{printable(shortened(odd))}' is no ID of a dead letter, such as 1795248005123-0")
    output, troubles = Output(as_json=as_json), Troubles()
    with options.shards(shard) as (settings, shards):
        check_endpoint(settings, shards, endpoint, troubles)
        picked = _pick(shards, ids, DeadLetterFilter(endpoint, tenant), troubles)
        total = sum((picked_here.counts for picked_here in picked), Counter[str]())
        if total:
            parts = ", ".join(f"{count} of {shortened(name)}" for name, count in sorted(total.items()))
            several = f"{total.total()} dead letter{'s' if total.total() > 1 else ''} ({parts})"
            output.confirm(change.question.format(several), yes=yes)
        log = _Log(output, change.done)
        for here in picked:
            if troubles.is_down(here.shard):
                continue
            names = Counter[str]()
            try:
                with troubles.noted(here.shard):
                    for page in _pages(here.letters()):
                        changes = list(change.act(here.shard, settings, page))
                        names.update(letter.endpoint for letter, problem in changes if not problem)
                        for letter, problem in changes:
                            log.note(letter, problem)
                    change.after(here.shard, names)
            finally:  # also if the output takes no more lines
                for name, count in sorted(names.items()):
                    leave_record(here.shard, change.action, name, count)
        log.end(troubles)
    troubles.end()


class _Picked:
    """The selected letters of one shard: how many of each endpoint, and a way to read them page by page."""

    def __init__(self, shard: Shard, ids: Sequence[str], wanted: DeadLetterFilter) -> None:
        self.shard = shard
        # Letters that are written from now on are not selected: a replay that fails again is not replayed again.
        last = None if ids else dead_letters.last_id(shard)

        def letters() -> Iterator[DeadLetter]:
            if ids:
                return iter(dead_letters.find(shard, ids))
            return dead_letters.read(shard, wanted, last) if last else iter(())

        self.letters = letters
        self.counts = Counter(letter.endpoint for letter in letters())


def _pick(shards: Sequence[Shard], ids: Sequence[str], wanted: DeadLetterFilter, troubles: Troubles) -> list[_Picked]:
    ids = list(dict.fromkeys(ids))
    picked, places = [], {letter_id: list[str]() for letter_id in ids}
    for shard in shards:
        if troubles.is_down(shard):
            continue
        with troubles.noted(shard):
            here = _Picked(shard, ids, wanted)
            picked.append(here)
            for letter in here.letters() if ids else ():
                places[letter.id].append(shard.name)
    for letter_id, names in places.items():
        if not names:
            troubles.fail(f"there is no dead letter {letter_id}")
        elif len(names) > 1:
            raise click.UsageError(f"{letter_id} is on the shards {' and '.join(names)}; say which with --shard")
    return picked


def _pages(letters: Iterator[DeadLetter]) -> Iterator[list[DeadLetter]]:
    while page := list(itertools.islice(letters, PAGE)):
        yield page


class _Log:
    """Prints each letter as soon as it is changed, so that a crash loses no line and memory stays bounded."""

    def __init__(self, output: Output, done: str) -> None:
        self._output = output
        self._done = done
        self._counts = Counter[bool]()
        if output.as_json:
            click.echo(json.dumps(with_address({}))[:-1] + ', "dead_letters": [', nl=False)

    def note(self, letter: DeadLetter, problem: str) -> None:
        if self._output.as_json:
            become = {"result": "left", "problem": problem} if problem else {"result": self._done}
            document = json.dumps(ChangedLetter.of(letter, **become).as_json())
            click.echo(("," if self._counts else "") + "\n" + document, nl=False)
        else:
            body = letter.body or {}
            what = f"{letter.id} for {shortened(letter.endpoint)}: {body.get('event_id', 'no event')}"
            reservation = shortened(body.get("data", {}).get("reservation_id", "unknown"))
            tenant = shortened(decode(letter.tenant))
            result = f"left as it is: {problem}" if problem else self._done
            self._output.say(f"{what}, reservation {reservation} of {tenant}: {result}")
        self._counts[not problem] += 1

    def end(self, troubles: Troubles) -> None:
        done, left = self._counts[True], self._counts[False]
        if self._output.as_json:
            click.echo(f'], "{self._done}": {done}, "left": {left}, "down": {json.dumps(troubles.down)}}}')
        elif not self._counts:
            self._output.say("there are no such dead letters")
        else:
            self._output.say(f"{done} {self._done}" + (f", {left} left as they are" if left else ""))
        if left:
            troubles.fail(f"{left} could not be {self._done}")


def check_endpoint(settings: Settings, shards: Iterable[Shard], endpoint: str | None, troubles: Troubles) -> None:
    """Ends the process where the name is neither in the configuration nor on a dead letter."""
    if endpoint is None:
        return
    known = {configured.name for configured in settings.consumers}
    if endpoint in known:
        return
    for shard in shards:
        with troubles.noted(shard):
            if next(dead_letters.read(shard, DeadLetterFilter(endpoint)), None) is not None:
                return
            known |= dead_letters.count(shard)[0].keys()
    if not troubles.down:
        check_name("endpoint", endpoint, known)


# ---- what the commands print with --json


class LetterDocument(Document):
    """A dead letter."""

    id: str
    shard: str
    endpoint: str
    reason: str
    attempts: Count
    at: Moment
    event: Body = Field(description="The body of the webhook.")

    @classmethod
    def of(cls, letter: DeadLetter, **more: Any) -> Self:
        """`more`: the fields that a subclass adds."""
        return cls(
            id=letter.id,
            shard=letter.shard,
            endpoint=letter.endpoint,
            reason=letter.reason,
            attempts=letter.attempts,
            at=letter.at_ms,
            event=letter.body,
            **more,
        )


class ListedLetter(LetterDocument):
    """A dead letter of the list."""

    age_seconds: Seconds


class ChangedLetter(LetterDocument):
    """A dead letter that was to be changed."""

    result: Literal["replayed", "dropped", "left"]
    problem: str = Field(default="", description="Why it was left.")


class DeadLettersDocument(CommandDocument, title="sweeperd dead-letters list --json"):
    dead_letters: list[ListedLetter]
    more: bool
    down: Down


class DeadLettersChangeDocument(
    CommandDocument, title="sweeperd dead-letters replay --json, sweeperd dead-letters drop --json"
):
    """One of replayed and dropped is there, by the command."""

    dead_letters: list[ChangedLetter]
    replayed: Count = 0
    dropped: Count = 0
    left: Count
    down: Down


# ---- `sweeperd dead-letters`


@click.group("dead-letters", short_help="Deliveries that were given up on: list, replay, drop.")
def command() -> None:
    """Deliveries that were given up on, because the event was older than webhooks.max_age."""


@command.command("list")
@endpoint_option
@tenant_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@json_option
@shard_option
@click.pass_obj
def list_(
    options: Options, endpoint: str | None, tenant: str | None, limit: int, as_json: bool, shard: str | None
) -> None:
    """The newest first. The first column is what `replay` and `drop` take."""
    output, troubles = Output(as_json=as_json), Troubles()
    with options.shards(shard) as (settings, shards):
        now: dict[str, int] = {}
        usable = []
        for one in shards:
            with troubles.noted(one):
                now[one.name] = one.read_clock()
                usable.append(one)
        check_endpoint(settings, usable, endpoint, troubles)
        wanted = DeadLetterFilter(endpoint, tenant)
        newest = heapq.merge(
            *(_noted(troubles, one, dead_letters.read(one, wanted, newest_first=True)) for one in usable),
            key=lambda letter: letter.order,
            reverse=True,
        )
        letters = list(itertools.islice(newest, limit + 1))
        more, letters = len(letters) > limit, letters[:limit]
        if as_json:
            found = [ListedLetter.of(letter, age_seconds=_age(letter, now)) for letter in letters]
            output.json(DeadLettersDocument(dead_letters=found, more=more, down=troubles.down))
        else:
            columns = ["id", "shard", "endpoint", "age", "reason", "attempts", "tenant", "reservation", "event_id"]
            output.table(columns, ([*_cells(letter, _age(letter, now))] for letter in letters))
        if more:
            warn(f"there are more than {limit}; --limit shows more")
    troubles.end()


@command.command("replay")
@selecting
def replay(options: Options, **selected: Any) -> None:
    """
    Deliver dead letters to their endpoint again: by ID, by --endpoint, by --tenant, or --all.

    The webhook has the same webhook-id as before, and webhooks.max_age counts anew. A letter that would not reach its
    endpoint, because that is in the configuration no more or does not ask for the tenant any more, stays where it is.
    """
    change_letters(options, Replay(), **selected)


@command.command("drop")
@selecting
def drop(options: Options, **selected: Any) -> None:
    """
    Remove dead letters for good: by ID, by --endpoint, by --tenant, or --all.

    With --json they are printed whole, so that the output can serve as a copy.
    """
    change_letters(options, Drop(), **selected)


def _noted(troubles: Troubles, shard: Shard, letters: Iterator[DeadLetter]) -> Iterator[DeadLetter]:
    with troubles.noted(shard):
        yield from letters


def _age(letter: DeadLetter, now: dict[str, int]) -> float:
    return max(0.0, (now[letter.shard] - letter.at_ms) / 1000)


def _cells(letter: DeadLetter, age: float) -> list[object]:
    body = letter.body or {}
    return [
        letter.id,
        letter.shard,
        letter.endpoint,
        f"{age:.0f}s",
        letter.reason,
        letter.attempts,
        decode(letter.tenant),
        body.get("data", {}).get("reservation_id", ""),
        body.get("event_id", "(lost)"),
    ]
