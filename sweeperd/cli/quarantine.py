"""The commands that change the quarantine: which entries, the question, the progress and the result."""

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import click

from sweeperd.cli.actions import leave_record
from sweeperd.cli.options import Options, json_option, kind_option, shard_option, yes_option
from sweeperd.cli.output import Cell, Output, printable, shortened
from sweeperd.cli.shards import Troubles, for_each_shard, one_kind
from sweeperd.config import Settings
from sweeperd.ops.actions import Action
from sweeperd.ops.quarantine import (
    AdoptDocument,
    Quarantine,
    QuarantineChange,
    QuarantineChangeDocument,
    QuarantineDocument,
    QuarantinedShard,
    QuarantineFilter,
    SetAside,
    SetAsideDocument,
    adopt,
    find_foreign,
)
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.reservations import REASONS
from sweeperd.text import candidates, decode, span, whole

#: How many of the entries that stay are named, and how many units are summed.
NAMED, UNITS = 100, 20
#: In these states a reservation holds nothing any more.
_FINAL = (b"COMMITTED", b"RELEASED", b"EXPIRED")

reason_option = click.option("--reason", metavar="REASON", help="Only those set aside for this reason.")
_OPTIONS = (
    click.argument("ids", metavar="[ID]...", nargs=-1),
    reason_option,
    click.option("--all", "everything", is_flag=True, help="All of them."),
    kind_option,
    shard_option,
    yes_option,
    json_option,
    click.pass_obj,
)


@dataclass(frozen=True)
class Selection:
    """The entries that an operator names: ids as typed, or all of one reason."""

    texts: tuple[str, ...]
    reason: str | None
    #: The kind of the entries; None: the kind that `one_kind` takes.
    kind: str | None = None


def _selection(ids: tuple[str, ...], reason: str | None, everything: bool, kind: str | None) -> Selection:
    if (bool(ids), reason is not None, everything).count(True) != 1:
        raise click.UsageError("say which: by ID, by --reason, or --all")
    return Selection(tuple(dict.fromkeys(ids)), reason, kind)


def changing(command: Callable[..., None]) -> Callable[..., None]:
    """The options of the commands that change the list; the command gets a `selection`."""

    @functools.wraps(command)
    def with_selection(
        options: Options, ids: tuple[str, ...], reason: str | None, everything: bool, kind: str | None, **rest: Any
    ) -> None:
        command(options, selection=_selection(ids, reason, everything, kind), **rest)

    decorated: Callable[..., None] = with_selection
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


@dataclass
class Change:
    """A change of the list over all shards, and its result."""

    output: Output
    verb: str
    action: Action
    #: What to ask before; {} stands for how many entries.
    question: str
    act: Callable[[Quarantine, QuarantineFilter], Iterator[list[QuarantineChange]]]
    troubles: Troubles = field(default_factory=Troubles)
    done: int = 0
    stay: int = 0
    #: The first entries that stay: shard, id, reason.
    stays: list[tuple[str, str, str]] = field(default_factory=list)
    #: Unit -> the amount that the changed entries hold in each of their scopes.
    held: Counter[str] = field(default_factory=Counter)

    def run(self, options: Options, only: str | None, selection: Selection, *, yes: bool) -> None:
        """Find the entries, ask, act. Ends the process where the operator does not agree."""
        with options.shards(only) as (settings, shards):
            kind = _kind(settings, shards, selection.kind, selection.reason)
            plan = self._plan(settings, shards, selection, kind)
            total = sum(count for _, _, count in plan)
            if total:
                self.output.confirm(self.question.format(_entries(total)), yes=yes)
            with self._progress(total) as advance:
                for shard, wanted, _ in plan:
                    done = self.done
                    with self.troubles.noted(shard):
                        for page in self.act(_quarantine(settings, shard, kind), wanted):
                            self._count(shard, page)
                            advance(len(page))
                    leave_record(shard, self.action, _target(wanted), self.done - done)

    def show(self, *, locked: bool = False) -> None:
        """Print what was done, and what was not done and why."""
        held = dict(self.held.most_common(UNITS))
        if self.output.as_json:
            stays = [{"shard": shard, "id": id_, "reason": reason} for shard, id_, reason in self.stays]
            answer = {self.verb: self.done, "stay": self.stay, "stays": stays, "down": self.troubles.down}
            answer |= {"locked": held} if locked else {}
            self.output.json(QuarantineChangeDocument.model_validate(answer))
            return
        self.output.say(f"{self.verb} {_entries(self.done)}")
        if locked and held:
            sums = ", ".join(f"{amount} {unit}" for unit, amount in held.items())
            self.output.say(f"still locked in each of their scopes: {sums}")
        if self.stays:
            self.output.table(("shard", "id", "stays", ""), [(*row, REASONS.get(row[2], "")) for row in self.stays])

    def end(self) -> None:
        """The exit code, and a line for each trouble. Ends the process where there is one."""
        if self.stay:
            self.troubles.fail(f"{_entries(self.stay)} not {self.verb}")
        self.troubles.end()

    def _plan(
        self, settings: Settings, shards: Sequence[Shard], selection: Selection, kind: str
    ) -> list[tuple[Shard, QuarantineFilter, int]]:
        """For each shard: which entries are named, and how many they are."""
        plan, found = [], set[str]()
        for shard in shards:
            with self.troubles.noted(shard):
                quarantine = _quarantine(settings, shard, kind)
                if not selection.texts:
                    # What is set aside while the operator thinks is not what the question was about.
                    wanted = QuarantineFilter(reason=selection.reason, until_ms=shard.read_clock())
                    count = sum(1 for _ in quarantine.find(wanted)) if selection.reason else quarantine.size()
                    plan.append((shard, wanted, count))
                    continue
                ids = []
                for text in selection.texts:
                    for entry in islice(quarantine.find(QuarantineFilter(tuple(candidates(text)))), 1):
                        found.add(text)
                        ids.append(entry.id)
                plan.append((shard, QuarantineFilter(tuple(dict.fromkeys(ids))), len(set(ids))))
        if not self.troubles.down:  # an entry may be on a shard that does not answer
            for text in selection.texts:
                if text not in found:
                    self.troubles.fail(f"{shortened(printable(text))} is not in quarantine")
        return plan

    def _count(self, shard: Shard, page: Sequence[QuarantineChange]) -> None:
        for each in page:
            entry = each.entry
            if each.problem:
                self.stay += 1
                if len(self.stays) < NAMED:
                    self.stays.append((shard.name, decode(entry.id), each.problem))
                continue
            self.done += 1
            unit = decode(entry.unit)
            amount = whole(entry.amount)
            if entry.state not in _FINAL and amount is not None:
                self.held[unit if unit in self.held or len(self.held) < UNITS else "of other units"] += amount

    @contextlib.contextmanager
    def _progress(self, total: int) -> Iterator[Callable[[int], None]]:
        if not self.output.terminal or total < NAMED:
            yield lambda _: None
            return
        with click.progressbar(length=total, label=self.verb.capitalize(), show_pos=True, file=sys.stderr) as bar:
            yield bar.update


def _kind(settings: Settings, shards: Sequence[Shard], kind: str | None, reason: str | None) -> str:
    """The name of the kind that is meant. Raises click.BadParameter if no entry of the kind can have this reason."""
    name = one_kind(settings, kind)
    reasons = kinds_of(settings, shards[0])[name].reasons
    if reason is not None and reasons and reason not in reasons:
        raise click.BadParameter(f"{reason!r} is not one of {', '.join(map(repr, reasons))}", param_hint="--reason")
    return name


def _quarantine(settings: Settings, shard: Shard, kind: str) -> Quarantine:
    return Quarantine(shard, kinds_of(settings, shard)[kind], settings.sweep.pipeline_depth)


def _target(wanted: QuarantineFilter) -> str:
    """Which entries, for the record."""
    if wanted.ids is not None:
        return " ".join(map(decode, wanted.ids))
    return f"reason {wanted.reason}" if wanted.reason else "all"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


# ---- `sweeperd quarantine adopt`


#: How many are adopted in one round trip.
BATCH = 100


@click.command("adopt")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them; this walks over all reservations.")
@shard_option
@yes_option
@json_option
@click.pass_obj
def adopt_command(
    options: Options, ids: tuple[str, ...], everything: bool, shard: str | None, yes: bool, as_json: bool
) -> None:
    """
    Take over what another sweeper set aside: by ID, or --all. `quarantine list` and `requeue` work for it afterwards.

    Another sweeper marks the reservation only. `sweeperd reconcile` finds such marks.
    """
    if bool(ids) == everything:
        raise click.UsageError("say which: by ID, or --all")
    output, troubles = Output(as_json=as_json), Troubles()
    with options.shards(shard) as (settings, shards):
        found = for_each_shard(shards, lambda each: _candidates(settings, each, ids), troubles)
        total = sum(len(wanted) for _, wanted in found)
        if total:
            output.confirm(f"Take {'these' if ids else total} into the quarantine?", yes=yes)
        wanted_on = dict(found)
        done = for_each_shard([each for each, _ in found], lambda each: _adopt(each, wanted_on[each]), troubles)
    adopted = {entry for _, entries in done for entry in entries}
    for text in ids:
        if not adopted.intersection(candidates(text)) and not troubles.down:
            troubles.fail(f"{shortened(printable(text))} has no mark of another sweeper")
    count = sum(len(entries) for _, entries in done)
    if as_json:
        output.json(AdoptDocument(adopted=count, down=troubles.down))
    else:
        output.say(f"adopted {count} {'entry' if count == 1 else 'entries'}")
    troubles.end()


def _candidates(settings: Settings, shard: Shard, ids: Sequence[str]) -> list[bytes]:
    if ids:
        return list(dict.fromkeys(entry for text in ids for entry in candidates(text)))
    return list(dict.fromkeys(find_foreign(shard, settings.sweep)))


def _adopt(shard: Shard, ids: Sequence[bytes]) -> list[bytes]:
    done = []
    for start in range(0, len(ids), BATCH):
        part = ids[start : start + BATCH]
        done += [entry for entry, adopted in zip(part, adopt(shard, part), strict=True) if adopted]
    leave_record(shard, Action.ADOPT, " ".join(map(decode, done)), len(done))
    return done


# ---- `sweeperd quarantine`


@click.group("quarantine", short_help="What was set aside: list it, put it back after a repair, or dismiss it.")
def command() -> None:
    """
    Reservations that the sweep could not decide or not release exactly. They keep their state and their budget, and
    no sweep comes to them any more.
    """


command.add_command(adopt_command)


@command.command("list")
@reason_option
@click.option("--tenant", metavar="TENANT", help="Only those of this tenant.")
@click.option(
    "--limit",
    metavar="NUMBER",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="At most so many of each shard, the oldest first.",
)
@kind_option
@shard_option
@json_option
@click.pass_obj
def list_(
    options: Options,
    reason: str | None,
    tenant: str | None,
    limit: int,
    kind: str | None,
    shard: str | None,
    as_json: bool,
) -> None:
    """Reason, age, tenant, and what each holds in each of its scopes."""
    output, troubles = Output(as_json=as_json), Troubles()
    wanted = QuarantineFilter(reason=reason, tenants=None if tenant is None else tuple(candidates(tenant)))
    with options.shards(shard) as (settings, shards):
        name = _kind(settings, shards, kind, reason)

        def listing(each: Shard) -> _Listed:
            quarantine = _quarantine(settings, each, name)
            entries = list(islice(quarantine.find(wanted), limit + 1))
            return _Listed(each, quarantine.size(), each.read_clock(), entries[:limit], len(entries) > limit)

        found = [listed for _, listed in for_each_shard(shards, listing, troubles)]
    if as_json:
        output.json(QuarantineDocument(shards=[listed.document for listed in found], down=troubles.down))
    else:
        output.table(
            ("shard", "id", "reason", "set aside", "tenant", "holds", "state"),
            (row for listed in found for row in listed.rows()),
        )
        for listed in found:
            if listed.more:
                click.echo(f"there are more on shard {listed.shard.name}, {listed.size} in all: see --limit", err=True)
        for name in sorted({entry.reason for listed in found for entry in listed.entries} & REASONS.keys()):
            if output.terminal:
                output.say(f"{name}: {REASONS[name]}", "dim")
    troubles.end()


@command.command("requeue")
@changing
def requeue(options: Options, shard: str | None, selection: Selection, yes: bool, as_json: bool) -> None:
    """
    Put entries back into the index after their repair, for the next sweep to decide: by ID, by --reason, or --all.

    An entry that a sweep would set aside again stays on the list. It is named with its present reason, and the exit
    code is 1.
    """
    question = "Put {} back into the index?"
    change = Change(Output(as_json=as_json), "requeued", Action.REQUEUE, question, Quarantine.requeue)
    change.run(options, shard, selection, yes=yes)
    change.show()
    change.end()


@command.command("dismiss")
@changing
def dismiss(options: Options, shard: str | None, selection: Selection, yes: bool, as_json: bool) -> None:
    """
    Take entries off the list, and change nothing else: by ID, by --reason, or --all.

    Their hashes and budgets stay as they are. What an ACTIVE one holds stays locked, and no sweep will release it.
    """
    question = "Take {} off the list? What they hold stays locked."
    change = Change(Output(as_json=as_json), "dismissed", Action.DISMISS, question, Quarantine.dismiss)
    change.run(options, shard, selection, yes=yes)
    change.show(locked=True)
    change.end()


@dataclass
class _Listed:
    """The entries of one shard that are listed."""

    shard: Shard
    size: int
    now_ms: int
    entries: list[SetAside]
    more: bool

    def rows(self) -> Iterator[Sequence[object]]:
        for entry in self.entries:
            age = span(max(0.0, (self.now_ms - entry.at_ms) / 1000))
            reason = Cell(entry.reason or "?", "yellow")
            yield (
                self.shard.name,
                decode(entry.id),
                reason,
                age,
                decode(entry.tenant),
                _held(entry),
                decode(entry.state),
            )

    @property
    def document(self) -> QuarantinedShard:
        entries = [SetAsideDocument.of(entry, self.now_ms) for entry in self.entries]
        return QuarantinedShard(shard=self.shard.name, quarantined=self.size, more=self.more, entries=entries)


def _held(entry: SetAside) -> str:
    return f"{decode(entry.amount)} {decode(entry.unit)}".strip()
