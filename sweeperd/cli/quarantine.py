"""`sweeperd quarantine`: lists, requeues, dismisses or adopts quarantined entries."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import click

from sweeperd.cli.change import Change, Changed, Verb, selecting
from sweeperd.cli.options import kind_option, limit_option
from sweeperd.cli.output import Cell
from sweeperd.cli.shards import Run, on_shards, one_kind
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
    find_unreadable,
)
from sweeperd.ops.reconcile.report import Named
from sweeperd.store.scripts import batches
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.reservations import RESERVATIONS
from sweeperd.text import candidates, decode, span, whole

#: The most entries that are named if they stay, units that are summed, and entries that a round trip adopts.
NAMED, UNITS, BATCH = 100, 20, 100
#: The states in which a reservation holds nothing.
_FINAL = (b"COMMITTED", b"RELEASED", b"EXPIRED")

reason_option = click.option("--reason", metavar="REASON", help="Only entries with this reason.")


@click.group("quarantine")
def command() -> None:
    """
    Manage entries that the sweep could not decide or could not release exactly. A quarantined reservation keeps its
    state and its budget, and is no longer swept.
    """


@command.command("list")
@reason_option
@click.option("--tenant", metavar="TENANT", help="Only this tenant's.")
@limit_option(100_000, "Show up to this many per shard, oldest first.")
@kind_option
@on_shards()
def list_(run: Run, reason: str | None, tenant: str | None, limit: int, kind: str | None) -> None:
    """List entries with reason, age, tenant, and the amount that each holds in every scope."""
    wanted = QuarantineFilter(reason=reason, tenants=None if tenant is None else tuple(candidates(tenant)))
    name = _kind(run, kind, reason)

    def listing(shard: Shard) -> QuarantinedShard:
        quarantine = _quarantine(run, shard, name)
        size, found, now = quarantine.size(), list(islice(quarantine.find(wanted), limit + 1)), shard.read_clock()
        entries = [SetAsideDocument.of(entry, now) for entry in found[:limit]]
        return QuarantinedShard(shard=shard.name, quarantined=size, truncated=len(found) > limit, entries=entries)

    found = [listed for _, listed in run.each(listing)]
    run.table(
        ("shard", "id", "reason", "set aside", "tenant", "holds", "state"),
        (_cells(listed.shard, entry) for listed in found for entry in listed.entries),
        lambda: QuarantineDocument(shards=found),
    )
    if run.output.as_json:
        return
    for listed in found:
        if listed.truncated:
            click.echo(f"shard {listed.shard} has {listed.quarantined}; raise --limit for more", err=True)
    reasons = _reasons(run, name)
    for why in sorted({entry.reason for listed in found for entry in listed.entries} & reasons.keys()):
        if run.output.terminal:
            run.output.say(f"{why}: {reasons[why]}", "dim")


@command.command("requeue")
@selecting(reason=reason_option)
@kind_option
def requeue(change: Change, **selected: Any) -> None:
    """
    Put repaired entries back into the index for the next sweep: by ID, by --reason, or --all.

    An entry that a sweep would quarantine again stays. It is listed with its current reason, and the exit code is 1.
    """
    verb: _Verb = Verb(Action.REQUEUE, "Put {} back into the index?", "requeued", Quarantine.requeue)
    _change_entries(change, verb, **selected)


@command.command("dismiss")
@selecting(reason=reason_option)
@kind_option
def dismiss(change: Change, **selected: Any) -> None:
    """
    Remove entries from the quarantine and change nothing else: by ID, by --reason, or --all.

    Hashes and budgets stay unchanged, so what an ACTIVE entry holds stays locked, and no sweep will release it. If an
    entry cannot be read, `reconcile` leaves it out from then on, so what it held shows as drift of its budgets.
    """
    question = "Remove {} from the quarantine? What they hold stays locked"
    _change_entries(change, Verb(Action.DISMISS, question, "dismissed", Quarantine.dismiss), **selected)


@command.command("adopt")
@selecting("All of them; this reads all reservations.")
def adopt_(change: Change, ids: tuple[str, ...]) -> None:
    """
    Take over what another sweeper quarantined, so that `list` and `requeue` see it: by ID, or --all.

    Another sweeper only marks the reservation. `sweeperd reconcile` finds such marks.
    """
    adopted: list[bytes] = []

    def find(shard: Shard) -> list[bytes]:
        named = (entry for text in ids for entry in candidates(text))
        return list(dict.fromkeys(named if ids else find_foreign(shard, change.settings.sweep)))

    def question(found: Sequence[list[bytes]]) -> str:
        total = sum(map(len, found))
        return f"Adopt {'these' if ids else total} into the quarantine?" if total else ""

    def work(shard: Shard, wanted: Sequence[bytes]) -> Iterator[Changed]:
        target = ""
        for part in batches(wanted, BATCH):
            done = [entry for entry, taken in zip(part, adopt(shard, part), strict=True) if taken]
            target = target or " ".join(map(decode, done))
            yield target, len(done)
            adopted.extend(done)

    change.carry_out(Action.ADOPT, find, question, work)
    taken = {text for text in ids if set(adopted).intersection(candidates(text))}
    change.check_named(ids, taken, "was not quarantined by another sweeper")
    change.report(AdoptDocument(adopted=len(adopted)))
    change.output.say(f"adopted {_entries(len(adopted))}")


_Verb = Verb[Callable[[Quarantine, QuarantineFilter], Iterator[list[QuarantineChange]]]]


@dataclass
class _Cost:
    """What dismissed entries hold."""

    #: Unit -> the amount that the entries hold in each of their scopes.
    held: Counter[str] = field(default_factory=Counter)
    #: The entries of which this cannot be read.
    unreadable: Named = field(default_factory=Named)

    def add(self, entries: Sequence[SetAside], unreadable: Collection[bytes]) -> None:
        for entry in entries:
            unit, amount = decode(entry.unit), whole(entry.amount)
            if entry.id in unreadable:
                self.unreadable.add(entry.id)
            elif entry.state not in _FINAL and amount is not None:
                self.held[unit if unit in self.held or len(self.held) < UNITS else "of other units"] += amount

    def __str__(self) -> str:
        """Continues `stays locked`."""
        sums = ", ".join(f"{amount} {unit}" for unit, amount in self.held.most_common(UNITS))
        if not self.unreadable.count:
            return f" in each of their scopes: {sums}" if sums else ""
        lost = f"{self.unreadable} cannot be read: reconcile leaves them out, so what they held shows as drift"
        return f" in each of their scopes: {sums}; {lost}" if sums else f"; {lost}"


@dataclass
class _Tally:
    """The results of a change."""

    done: int = 0
    stay: int = 0
    #: Shard, id and reason of the first entries that stay.
    stays: list[tuple[str, str, str]] = field(default_factory=list)
    cost: _Cost = field(default_factory=_Cost)

    def add(self, shard: Shard, page: Sequence[QuarantineChange]) -> None:
        for each in page:
            entry = each.entry
            if each.problem:
                self.stay += 1
                if len(self.stays) < NAMED:
                    self.stays.append((shard.name, decode(entry.id), each.problem))
                continue
            self.done += 1


def _change_entries(change: Change, verb: _Verb, ids: tuple[str, ...], reason: str | None, kind: str | None) -> None:
    name, seen, tally, cost = _kind(change, kind, reason), set[str](), _Tally(), _Cost()

    def add_cost(to: _Cost, shard: Shard, entries: Sequence[SetAside]) -> None:
        if verb.action is Action.DISMISS:
            ids = [entry.id for entry in entries] if name == RESERVATIONS else []
            to.add(entries, find_unreadable(shard, change.settings.sweep, ids) if ids else ())

    def find(shard: Shard) -> tuple[QuarantineFilter, int]:
        quarantine = _quarantine(change, shard, name)
        if not ids:
            # The operator is not asked about entries that arrive later.
            until_ms = quarantine.last_ms()
            wanted = QuarantineFilter(reason=reason, until_ms=until_ms)
            entries = quarantine.find(wanted)
            while not change.yes and (page := list(islice(entries, BATCH))):
                add_cost(cost, shard, page)
            return wanted, sum(1 for _ in quarantine.find(wanted)) if reason else quarantine.size(until_ms)
        named = dict[bytes, None]()
        for text in ids:
            for entry in islice(quarantine.find(QuarantineFilter(tuple(candidates(text)))), 1):
                seen.add(text)
                if entry.id not in named:
                    add_cost(cost, shard, [entry])
                named[entry.id] = None
        return QuarantineFilter(tuple(named)), len(named)

    def question(found: Sequence[tuple[QuarantineFilter, int]]) -> str:
        change.check_named(ids, seen, "is not in quarantine")
        total = sum(count for _, count in found)
        return verb.question.format(_entries(total)) + str(cost) if total else ""

    def work(shard: Shard, here: tuple[QuarantineFilter, int]) -> Iterator[Changed]:
        wanted, count = here
        with change.output.bar(verb.done.capitalize(), count) as bar:
            for page in verb.act(_quarantine(change, shard, name), wanted):
                yield _target(wanted), sum(not each.problem for each in page)
                tally.add(shard, page)
                add_cost(tally.cost, shard, [each.entry for each in page if not each.problem])
                bar.update(len(page))

    change.carry_out(verb.action, find, question, work)
    _report(change, verb, tally, _reasons(change, name))


def _report(change: Change, verb: _Verb, tally: _Tally, reasons: Mapping[str, str]) -> None:
    cost = tally.cost
    if change.output.as_json:
        stays = [{"shard": shard, "id": id_, "reason": reason} for shard, id_, reason in tally.stays]
        answer = {verb.done: tally.done, "stay": tally.stay, "stays": stays}
        if verb.action is Action.DISMISS:
            answer["locked"] = dict(cost.held.most_common(UNITS))
            answer |= {"unreadable": cost.unreadable.count, "unreadable_ids": cost.unreadable.ids}
        change.report(QuarantineChangeDocument.model_validate(answer))
    else:
        change.output.say(f"{verb.done} {_entries(tally.done)}")
        if str(cost):
            change.output.say(f"what they hold stays locked{cost}")
        if tally.stays:
            rows = [(*row, reasons.get(row[2].partition(" ")[0], "")) for row in tally.stays]
            change.output.table(("shard", "id", "stays", ""), rows)
    if tally.stay:
        change.fail(f"{_entries(tally.stay)} not {verb.done}")


def _kind(run: Run, kind: str | None, reason: str | None) -> str:
    """The name of the selected kind. Raises click.BadParameter if its entries cannot have this reason."""
    name = one_kind(run.settings, kind)
    reasons = _reasons(run, name)
    may_have_more = kinds_of(run.settings, run.shards[0])[name].more_reasons
    if reason is not None and not may_have_more and reason not in reasons:
        raise click.BadParameter(f"{reason!r} is not one of {', '.join(map(repr, reasons))}", param_hint="--reason")
    return name


def _reasons(run: Run, kind: str) -> Mapping[str, str]:
    return kinds_of(run.settings, run.shards[0])[kind].reasons


def _quarantine(run: Run, shard: Shard, kind: str) -> Quarantine:
    return Quarantine(shard, kinds_of(run.settings, shard)[kind], run.settings.sweep.pipeline_depth)


def _target(wanted: QuarantineFilter) -> str:
    if wanted.ids is not None:
        return " ".join(map(decode, wanted.ids))
    return f"reason {wanted.reason}" if wanted.reason else "all"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _cells(shard: str, entry: SetAsideDocument) -> Sequence[object]:
    reason, held = Cell(entry.reason or "?", "yellow"), f"{entry.amount} {entry.unit}".strip()
    return shard, entry.id, reason, span(entry.age_seconds), entry.tenant, held, entry.state
