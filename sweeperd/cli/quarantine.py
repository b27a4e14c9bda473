"""`sweeperd quarantine`."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import click

from sweeperd.cli.options import Exit, Options, fail, json_option, shard_option, yes_option
from sweeperd.cli.output import Cell, Output, printable, shortened, span
from sweeperd.cli.shards import tolerated
from sweeperd.config import Settings
from sweeperd.ops.ids import candidates
from sweeperd.ops.quarantine import Quarantine, QuarantineChange, QuarantineFilter, SetAside
from sweeperd.ops.reasons import REASONS
from sweeperd.store.shard import Shard
from sweeperd.text import decode

#: How many of those that stay are named, and how many units of what stays locked.
NAMED, UNITS = 100, 20
#: In these states a reservation holds nothing any more.
_FINAL = (b"COMMITTED", b"RELEASED", b"EXPIRED")

_reason_option = click.option(
    "--reason", type=click.Choice(list(REASONS)), help="Only those set aside for this reason."
)
_tenant_option = click.option("--tenant", metavar="TENANT", help="Only those of this tenant.")
_all_option = click.option("--all", "everything", is_flag=True, help="All of them.")
_ids_argument = click.argument("ids", metavar="[ID]...", nargs=-1)


@click.group("quarantine", short_help="What was set aside: list it, put it back after a repair, or dismiss it.")
def command() -> None:
    """
    Reservations that the sweep could not decide or not release exactly. They keep their state and their budget, and
    no sweep comes to them any more.
    """


@command.command("list")
@_reason_option
@_tenant_option
@click.option(
    "--limit",
    metavar="NUMBER",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="At most so many of each shard, the oldest first.",
)
@shard_option
@json_option
@click.pass_obj
def list_(
    options: Options, reason: str | None, tenant: str | None, limit: int, shard: str | None, as_json: bool
) -> None:
    """Reason, age, tenant, and what each holds in each of its scopes."""
    output, troubles, found = Output(as_json=as_json), list[str](), list[_Listed]()
    wanted = QuarantineFilter(reason=reason, tenants=None if tenant is None else tuple(candidates(tenant)))
    with options.shards(shard) as (settings, shards):
        for each in shards:
            with tolerated(each, troubles):
                quarantine = Quarantine(each, settings.sweep)
                entries = list(islice(quarantine.find(wanted), limit + 1))
                found.append(_Listed(each, quarantine.size(), each.read_clock(), entries[:limit], len(entries) > limit))
    if as_json:
        output.json({"shards": [listed.as_dict() for listed in found]})
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
    _end(troubles)


@command.command("requeue")
@_ids_argument
@_reason_option
@_all_option
@shard_option
@yes_option
@json_option
@click.pass_obj
def requeue(
    options: Options,
    ids: tuple[str, ...],
    reason: str | None,
    everything: bool,
    shard: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """
    Put entries back into the index after their repair, for the next sweep to decide: by ID, by --reason, or --all.

    What a sweep would only set aside again stays on the list, and is told of with the reason of now; the exit code is
    1 then.
    """
    change = _Change(Output(as_json=as_json), "requeued", "Put {} back into the index?", Quarantine.requeue)
    change.run(options, shard, _selection(ids, reason, everything), yes=yes)
    change.tell()
    change.end()


@command.command("dismiss")
@_ids_argument
@_reason_option
@_all_option
@shard_option
@yes_option
@json_option
@click.pass_obj
def dismiss(
    options: Options,
    ids: tuple[str, ...],
    reason: str | None,
    everything: bool,
    shard: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """
    Take entries off the list, and nothing else: by ID, by --reason, or --all.

    Their hashes and budgets stay as they are. What an ACTIVE one holds stays locked, and no sweep will release it.
    """
    question = "Take {} off the list? What they hold stays locked."
    change = _Change(Output(as_json=as_json), "dismissed", question, Quarantine.dismiss)
    change.run(options, shard, _selection(ids, reason, everything), yes=yes)
    change.tell(locked=True)
    change.end()


@dataclass(frozen=True)
class _Selection:
    """What was asked for: ids as they were typed, or all of a reason."""

    texts: tuple[str, ...]
    reason: str | None


def _selection(ids: tuple[str, ...], reason: str | None, everything: bool) -> _Selection:
    if (bool(ids), reason is not None, everything).count(True) != 1:
        raise click.UsageError("say which: by ID, by --reason, or --all")
    return _Selection(tuple(dict.fromkeys(ids)), reason)


@dataclass
class _Listed:
    """What a shard has set aside, as far as it is listed."""

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

    def as_dict(self) -> dict[str, Any]:
        return {
            "shard": self.shard.name,
            "quarantined": self.size,
            "more": self.more,
            "entries": [
                {
                    "id": decode(entry.id),
                    "reason": entry.reason,
                    "quarantined_at": entry.at_ms,
                    "age_seconds": max(0.0, (self.now_ms - entry.at_ms) / 1000),
                    "tenant": decode(entry.tenant),
                    "amount": decode(entry.amount),
                    "unit": decode(entry.unit),
                    "state": decode(entry.state),
                }
                for entry in self.entries
            ],
        }


def _held(entry: SetAside) -> str:
    return f"{decode(entry.amount)} {decode(entry.unit)}".strip()


@dataclass
class _Change:
    """A change of the list, over all shards, and what came of it."""

    output: Output
    verb: str
    #: What to ask before; {} stands for how many entries.
    question: str
    act: Callable[[Quarantine, QuarantineFilter], Iterator[list[QuarantineChange]]]
    troubles: list[str] = field(default_factory=list)
    done: int = 0
    stay: int = 0
    #: The first of those that stay: shard, id, why.
    stays: list[tuple[str, str, str]] = field(default_factory=list)
    #: Unit to what the entries that were done hold in each of their scopes.
    held: Counter[str] = field(default_factory=Counter)

    def run(self, options: Options, only: str | None, selection: _Selection, *, yes: bool) -> None:
        """Find them, ask, act. Ends the process where nobody says yes."""
        with options.shards(only) as (settings, shards):
            plan = self._plan(settings, shards, selection)
            total = sum(count for _, _, count in plan)
            if total:
                self.output.confirm(self.question.format(_entries(total)), yes=yes)
            with self._progress(total) as advance:
                for shard, wanted, _ in plan:
                    with tolerated(shard, self.troubles):
                        for page in self.act(Quarantine(shard, settings.sweep), wanted):
                            self._count(shard, page)
                            advance(len(page))

    def tell(self, *, locked: bool = False) -> None:
        """What was done, and what was not and why."""
        held = dict(self.held.most_common(UNITS))
        if self.output.as_json:
            stays = [{"shard": shard, "id": id_, "reason": reason} for shard, id_, reason in self.stays]
            answer = {self.verb: self.done, "stay": self.stay, "stays": stays}
            self.output.json(answer | ({"locked": held} if locked else {}))
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
            self.troubles.append(f"{_entries(self.stay)} not {self.verb}")
        _end(self.troubles)

    def _plan(
        self, settings: Settings, shards: Sequence[Shard], selection: _Selection
    ) -> list[tuple[Shard, QuarantineFilter, int]]:
        """Where they are, and how many."""
        plan, found = [], set[str]()
        for shard in shards:
            with tolerated(shard, self.troubles):
                quarantine = Quarantine(shard, settings.sweep)
                if not selection.texts:
                    wanted = QuarantineFilter(reason=selection.reason)
                    count = sum(1 for _ in quarantine.find(wanted)) if selection.reason else quarantine.size()
                    plan.append((shard, wanted, count))
                    continue
                ids = []
                for text in selection.texts:
                    for entry in islice(quarantine.find(QuarantineFilter(tuple(candidates(text)))), 1):
                        found.add(text)
                        ids.append(entry.id)
                plan.append((shard, QuarantineFilter(tuple(dict.fromkeys(ids))), len(set(ids))))
        down = bool(self.troubles)  # who knows what is on a shard that does not answer
        for text in selection.texts:
            if text not in found and not down:
                self.troubles.append(f"{shortened(printable(text))} is not in quarantine")
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
            if entry.state not in _FINAL and entry.amount.isdigit() and len(entry.amount) <= 19:
                self.held[unit if unit in self.held or len(self.held) < UNITS else "of other units"] += int(
                    entry.amount
                )

    @contextlib.contextmanager
    def _progress(self, total: int) -> Iterator[Callable[[int], None]]:
        if not self.output.terminal or total < NAMED:
            yield lambda _: None
            return
        with click.progressbar(length=total, label=self.verb.capitalize(), show_pos=True, file=sys.stderr) as bar:
            yield bar.update


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _end(troubles: Sequence[str]) -> None:
    if troubles:
        fail("\n".join(troubles), Exit.FAILED)
