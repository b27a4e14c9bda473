"""`sweeperd dead-letters`: lists, replays or drops dead letters."""

import heapq
import itertools
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import click
import redis
from pydantic import Field

from sweeperd.cli.change import Change, Changed, Verb, selecting
from sweeperd.cli.options import Exit, fail, limit_option
from sweeperd.cli.output import Output, printable, shortened, with_address
from sweeperd.cli.shards import Run, check_name, on_shards, warn
from sweeperd.config import EndpointSettings
from sweeperd.document import Body, Count, Document, Moment, Seconds, ShardsDocument, Truncated
from sweeperd.ops.actions import Action
from sweeperd.outbox import dead_letters
from sweeperd.outbox.dead_letters import PAGE, DeadLetter, DeadLetterFilter, Replayed
from sweeperd.outbox.endpoint_state import EndpointStateStore
from sweeperd.outbox.event import entry_of
from sweeperd.store.errors import describe, is_unanswered
from sweeperd.store.scripts import accepted
from sweeperd.store.shard import Shard
from sweeperd.text import counted, decode, span

_ID = re.compile(r"\d{1,19}-\d{1,19}", re.ASCII)

endpoint_option = click.option("--endpoint", metavar="NAME", help="Only this endpoint's.")
verbose_option = click.option("--verbose", "-v", is_flag=True, help="Print a line for each letter.")
tenant_option = click.option("--tenant", metavar="NAME", help="Only this tenant's.")


class LetterDocument(Document):
    """A dead letter."""

    id: str
    shard: str
    endpoint: str
    reason: str
    attempts: Count = Field(description="Hand-overs of the event, each with up to `webhooks.attempts` requests.")
    at: Moment = Field(validation_alias="at_ms")
    event: Body = Field(validation_alias="body", description="The body of the webhook.")


class ListedLetter(LetterDocument):
    """A dead letter in the list."""

    age_seconds: Seconds


class ChangedLetter(LetterDocument):
    """A dead letter and the result of its change."""

    result: Literal["replayed", "dropped", "left"] = Field(
        description="A letter is printed before it is dropped. If it then stays, it comes again, as `left`."
    )
    problem: str = Field(default="", description="Why it was not changed.")


class DeadLettersDocument(ShardsDocument, title="sweeperd dead-letters list --json"):
    dead_letters: list[ListedLetter]
    truncated: Truncated


class DeadLettersChangeDocument(
    ShardsDocument, title="sweeperd dead-letters replay --json, sweeperd dead-letters drop --json"
):
    """The command decides between `replayed` and `dropped`."""

    dead_letters: list[ChangedLetter]
    replayed: Count = 0
    dropped: Count = 0
    left: Count


@click.group("dead-letters")
def command() -> None:
    """Manage dead letters: events that were not delivered within webhooks.max_age, or that an operator skipped."""


@command.command("list")
@endpoint_option
@tenant_option
@limit_option(10_000, "Show up to this many.")
@on_shards()
def list_(run: Run, endpoint: str | None, tenant: str | None, limit: int) -> None:
    """List dead letters, newest first. `replay` and `drop` take the ids of the first column."""
    now = {shard.name: now_ms for shard, now_ms in run.each(Shard.read_clock)}
    _check_endpoint(run, endpoint)
    wanted = DeadLetterFilter(endpoint, tenant)
    newest = heapq.merge(
        *(
            run.until_down(each, dead_letters.read(each, wanted, newest_first=True))
            for each in run.shards
            if not run.is_down(each)
        ),
        key=lambda letter: letter.order,
        reverse=True,
    )
    letters, truncated = run.newest(newest, limit)
    run.table(
        ["id", "shard", "endpoint", "age", "reason", "attempts", "tenant", "reservation", "event_id"],
        (_cells(letter, _age(letter, now)) for letter in letters),
        lambda: DeadLettersDocument(
            dead_letters=[ListedLetter.made_of(letter, age_seconds=_age(letter, now)) for letter in letters],
            truncated=truncated,
        ),
    )


@command.command("replay")
@selecting(endpoint=endpoint_option, tenant=tenant_option)
@verbose_option
def replay(change: Change, **selected: Any) -> None:
    """
    Deliver dead letters to their endpoint again: by ID, by --endpoint, by --tenant, or --all.

    The webhook-id stays the same, and webhooks.max_age starts again. If an endpoint was removed from the
    configuration, or no longer subscribes to the tenant, its letters stay dead letters.
    """
    _change_letters(change, Verb(Action.REPLAY, "Deliver {} again?", "replayed", _replay), **selected)


@command.command("drop")
@selecting(endpoint=endpoint_option, tenant=tenant_option)
@verbose_option
def drop(change: Change, **selected: Any) -> None:
    """
    Delete dead letters permanently: by ID, by --endpoint, by --tenant, or --all.

    --json prints each letter in full before it is deleted, so you can keep a copy.
    """
    if change.output.as_json and sys.stdout.name == os.devnull:
        fail("standard output is closed, so no copy can be kept", Exit.FAILED)
    _change_letters(change, Verb(Action.DROP, "Delete {} permanently?", "dropped", _drop), **selected)


#: Why a letter was not changed, or ""; the error if Redis refused the change.
_Outcome = str | Exception
_Verb = Verb[Callable[[Shard, Sequence[DeadLetter], Sequence[EndpointSettings]], list[_Outcome]]]


def _replay(shard: Shard, letters: Sequence[DeadLetter], endpoints: Sequence[EndpointSettings]) -> list[_Outcome]:
    objections = [dead_letters.objection(letter, endpoints) for letter in letters]
    able = [letter.id for letter, objection in zip(letters, objections, strict=True) if not objection]
    changed = (each if isinstance(each, Exception) else each.why_not for each in dead_letters.replay(shard, able))
    return [objection or next(changed) for objection in objections]


def _drop(shard: Shard, letters: Sequence[DeadLetter], _endpoints: Sequence[EndpointSettings]) -> list[_Outcome]:
    removed = dead_letters.drop(shard, [letter.id for letter in letters])
    return [each if isinstance(each, Exception) else "" if each else Replayed.GONE.why_not for each in removed]


def _outcomes(
    verb: _Verb, shard: Shard, page: Sequence[DeadLetter], endpoints: Sequence[EndpointSettings]
) -> list[_Outcome]:
    """Change a page. Raises redis.RedisError if an answer was lost, so that the outcome is unknown."""
    try:
        return verb.act(shard, page, endpoints)
    except redis.RedisError as error:
        if is_unanswered(error):
            raise
        return [error] * len(page)


#: Reads the selected letters of a shard; and how many letters of each endpoint there were before the question.
_Found = tuple[Callable[[], Iterator[DeadLetter]], Counter[str]]


def _change_letters(
    change: Change, verb: _Verb, ids: tuple[str, ...], endpoint: str | None, tenant: str | None, verbose: bool
) -> None:
    for odd in (letter_id for letter_id in ids if not _ID.fullmatch(letter_id)):
        raise click.UsageError(f"'{printable(shortened(odd))}' is not an ID such as 1795248005123-0")
    _check_endpoint(change, endpoint)
    places, results = defaultdict[str, list[str]](list), _Results(change.output, verb.done, verbose=verbose)

    def find(shard: Shard) -> _Found:
        # Later letters are excluded, or a replay that fails again would be replayed again.
        last = None if ids else dead_letters.last_id(shard)

        def letters() -> Iterator[DeadLetter]:
            if ids:
                return iter(dead_letters.find(shard, ids))
            return dead_letters.read(shard, DeadLetterFilter(endpoint, tenant), last) if last else iter(())

        counts = Counter[str]()
        for letter in letters():
            counts[letter.endpoint] += 1
            if ids:
                places[letter.id].append(shard.name)
        return letters, counts

    def question(found: Sequence[_Found]) -> str:
        change.check_named(ids, places, "is not a dead letter")
        for letter_id, names in places.items():
            if len(names) > 1:
                raise click.UsageError(f"{letter_id} is on the shards {' and '.join(names)}; choose one with --shard")
        total = sum((counts for _, counts in found), Counter[str]())
        letters = f"{counted(total.total(), 'dead letter')} ({_names(total)})"
        return verb.question.format(letters) if total else ""

    def work(shard: Shard, here: _Found) -> Iterator[Changed]:
        letters, names, left = here[0](), set[str](), here[1].total()
        try:
            with change.output.bar(verb.done.capitalize(), left, hidden=verbose) as bar:
                while page := list(itertools.islice(letters, PAGE)):
                    if verb.action is Action.DROP:
                        results.copy(page)
                    outcomes = _outcomes(verb, shard, page, change.settings.consumers)
                    problems = [describe(each) if isinstance(each, Exception) else each for each in outcomes]
                    changed = [letter.endpoint for letter, problem in zip(page, problems, strict=True) if not problem]
                    yield from Counter(changed).items()
                    names.update(changed)
                    for letter, problem in zip(page, problems, strict=True):
                        results.add(letter, problem)
                    left -= len(page)
                    bar.update(len(page))
                    accepted(outcomes)
        except redis.RedisError as error:
            if not is_unanswered(error):
                results.miss(left, describe(error))
            raise
        results.miss(left, Replayed.GONE.why_not)
        for name in sorted(names) if verb.action is Action.REPLAY else ():
            if EndpointStateStore(shard).read(name).paused:
                warn(f"{name} is paused; its events wait until `sweeperd endpoints resume {name}`")

    irreversible = verb.action is Action.DROP
    change.carry_out(verb.action, find, question, work, lambda here: _names(here[1]), irreversible=irreversible)
    results.end(change)


def _names(letters: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {shortened(name)}" for name, count in sorted(letters.items()))


def _check_endpoint(run: Run, endpoint: str | None) -> None:
    """Exit if neither the configuration nor a dead letter names the endpoint."""
    known = {configured.name for configured in run.settings.consumers}
    if endpoint is None or endpoint in known:
        return

    def names(shard: Shard) -> set[str]:
        has_letters = next(dead_letters.read(shard, DeadLetterFilter(endpoint)), None) is not None
        return {endpoint} if has_letters else set(dead_letters.LetterCounts().read(shard).by_endpoint)

    known = known.union(*(found for _, found in run.each(names)))
    if not run.down:
        check_name("endpoint", endpoint, known)


class _Results:
    """
    Counts the letters. In JSON and with --verbose, each is printed as soon as it is changed, and memory stays bounded.
    In JSON, those to drop are printed before: there is no other copy.
    """

    def __init__(self, output: Output, done: str, *, verbose: bool) -> None:
        self._output = output
        self._done = done
        self._verbose = verbose
        #: Why letters were not changed, "" for those that were.
        self._counts = Counter[str]()
        #: How many are printed in JSON, and whether each was printed before its change.
        self._printed = 0
        self._copied = False

    def _separator(self) -> str:
        """The start of the JSON document, then a comma."""
        return "," if self._printed else json.dumps(with_address({}))[:-1] + ', "dead_letters": ['

    def _print(self, letter: DeadLetter, problem: str = "") -> None:
        result = {"result": "left", "problem": problem} if problem else {"result": self._done}
        document = json.dumps(ChangedLetter.made_of(letter, **result).as_json())
        click.echo(f"{self._separator()}\n{document}", nl=False)
        self._printed += 1

    def copy(self, page: Sequence[DeadLetter]) -> None:
        """Print in JSON what is changed next. `add` then prints only what was not changed. Raises OSError."""
        if self._output.as_json:
            for letter in page:
                self._print(letter)
            self._copied = True

    def add(self, letter: DeadLetter, problem: str) -> None:
        if self._output.as_json:
            if problem or not self._copied:
                self._print(letter, problem)
        elif self._verbose:
            body = letter.body or {}
            what = f"{letter.id} for {shortened(letter.endpoint)}: {body.get('event_id', 'no event')}"
            of = f" of {shortened(decode(letter.tenant))}" if letter.tenant else ""
            reservation = shortened(entry_of(body.get("data", {}))) or "unknown"
            text = f"{what}, reservation {reservation}{of}"
            self._output.say(f"{text}: {f'unchanged: {problem}' if problem else self._done}")
        self._counts[problem] += 1

    def miss(self, count: int, problem: str) -> None:
        """Letters that the operator was asked about, and that were gone then or not reached."""
        if count > 0:
            self._counts[problem] += count

    def end(self, change: Change) -> None:
        done = self._counts.pop("", 0)
        left = self._counts.total()
        if self._output.as_json:
            start = "" if self._printed else self._separator()
            click.echo(f'{start}], "{self._done}": {done}, "left": {left}, "down": {json.dumps(change.down)}}}')
        elif not done and not left and not change.at_least:
            if change.any_up:
                self._output.say(f"no dead letters match{change.among_those_up}")
        else:
            self._output.say(f"{change.at_least}{done} {self._done}" + (f", {left} unchanged" if left else ""))
            for problem, count in self._counts.most_common():
                self._output.say(f"{count} unchanged: {problem}")
        if left:
            change.fail(f"{left} could not be {self._done}")


def _age(letter: DeadLetter, now: dict[str, int]) -> float:
    return max(0.0, (now[letter.shard] - letter.at_ms) / 1000)


def _cells(letter: DeadLetter, age: float) -> list[object]:
    body = letter.body or {}
    return [
        letter.id,
        letter.shard,
        letter.endpoint,
        span(age),
        letter.reason,
        letter.attempts,
        decode(letter.tenant),
        entry_of(body.get("data", {})),
        body.get("event_id", "(lost)"),
    ]
