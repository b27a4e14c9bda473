"""`sweeperd quarantine`: lists, requeues, dismisses or adopts quarantined entries."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import click

from sweeperd.cli.change import Change, Changed, Verb, selecting
from sweeperd.cli.options import kind_option, limit_option
from sweeperd.cli.output import Cell, shortened
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
    StayingEntry,
    adopt,
    find_foreign,
    find_unreadable,
)
from sweeperd.ops.reconcile.report import Named
from sweeperd.store.scripts import batches
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kind_names, kinds_of
from sweeperd.sweep.kind import Kind
from sweeperd.sweep.reservations import RESERVATIONS
from sweeperd.text import candidates, counted, decode, span, whole

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
@click.option("--kind", metavar="NAME", help="Only this kind's.  [default: all]")
@on_shards()
def list_(run: Run, reason: str | None, tenant: str | None, limit: int, kind: str | None) -> None:
    """List entries with reason, age, tenant, and the amount that each holds in every scope."""
    wanted = QuarantineFilter(reason=reason, tenants=None if tenant is None else tuple(candidates(tenant)))
    names = (kind is None and kind_names(run.settings)) or [one_kind(run.settings, kind)]
    chosen = _kinds(run, names, reason)

    def listing(shard: Shard) -> QuarantinedShard:
        quarantines = {name: _quarantine(run, shard, name) for name in names}
        size = sum(quarantine.size() for quarantine in quarantines.values())
        found = [(name, each) for name in names for each in islice(quarantines[name].find(wanted), limit + 1)]
        found.sort(key=lambda row: row[1].at_ms)
        now = shard.read_clock()
        entries = [SetAsideDocument.of(name, entry, now) for name, entry in found[:limit]]
        return QuarantinedShard(shard=shard.name, quarantined=size, truncated=len(found) > limit, entries=entries)

    found = [listed for _, listed in run.each(listing)]
    run.table(
        ("shard", "id", "reason", "set aside", "tenant", "holds", "state", "kind"),
        (_cells(listed.shard, entry) for listed in found for entry in listed.entries),
        lambda: QuarantineDocument(shards=found),
    )
    if run.output.as_json:
        return
    for listed in found:
        if listed.truncated:
            click.echo(f"shard {listed.shard} has {listed.quarantined}; raise --limit for more", err=True)
    meanings = {why: meaning for each in chosen for why, meaning in each.reasons.items()}
    for why in sorted({entry.reason for listed in found for entry in listed.entries} & meanings.keys()):
        if run.output.terminal:
            run.output.say(f"{why}: {meanings[why]}", "dim")


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

    change.carry_out(Action.ADOPT, find, question, work, lambda _: " ".join(ids) or "all")
    taken = {text for text in ids if set(adopted).intersection(candidates(text))}
    change.check_named(ids, taken, "was not quarantined by another sweeper")
    change.report(AdoptDocument(adopted=len(adopted)))
    _say_count(change, "adopted", len(adopted))


_Verb = Verb[Callable[[Quarantine, QuarantineFilter], Iterator[list[QuarantineChange]]]]


@dataclass
class _Tally:
    """The results of a change, and what dismissed entries hold."""

    done: int = 0
    stay: int = 0
    #: The first entries that stay.
    stays: list[StayingEntry] = field(default_factory=list)
    #: Unit -> the amount that the entries hold in each of their scopes.
    held: Counter[str] = field(default_factory=Counter)
    #: The entries of which this cannot be read.
    unreadable: Named = field(default_factory=Named)

    def add(self, shard: Shard, page: Sequence[QuarantineChange]) -> None:
        staying = [each for each in page if each.problem]
        self.stay += len(staying)
        self.done += len(page) - len(staying)
        for each in staying[: NAMED - len(self.stays)]:
            self.stays.append(StayingEntry(shard=shard.name, id=decode(each.entry.id), reason=each.problem))

    def add_cost(self, entries: Sequence[SetAside], unreadable: Collection[bytes]) -> None:
        for entry in entries:
            unit, amount = decode(entry.unit), whole(entry.amount)
            if entry.id in unreadable:
                self.unreadable.add(entry.id)
            elif entry.state not in _FINAL and amount is not None:
                self.held[unit if unit in self.held or len(self.held) < UNITS else "of other units"] += amount

    @property
    def cost(self) -> str:
        """Continues `stays locked`; empty if nothing does."""
        sums = ", ".join(f"{amount} {unit}" for unit, amount in self.held.most_common(UNITS))
        locked = f" in each of their scopes: {sums}" if sums else ""
        if not self.unreadable.count:
            return locked
        return (
            f"{locked}; {self.unreadable} cannot be read: reconcile leaves them out, so what they held shows as drift"
        )


def _change_entries(change: Change, verb: _Verb, ids: tuple[str, ...], reason: str | None, kind: str | None) -> None:
    (chosen,) = _kinds(change, [one_kind(change.settings, kind)], reason)
    others = [name for name in kind_names(change.settings) if kind is None and name != chosen.name]
    seen, before, tally = set[str](), _Tally(), _Tally()
    #: What only another kind has in quarantine: an id, or "" for all that is selected, and that kind.
    elsewhere = dict[str, str]()

    def add_cost(to: _Tally, shard: Shard, entries: Sequence[SetAside]) -> None:
        if verb.action is Action.DISMISS:
            ids = [entry.id for entry in entries] if chosen.name == RESERVATIONS else []
            to.add_cost(entries, find_unreadable(shard, change.settings.sweep, ids) if ids else ())

    def look_elsewhere(shard: Shard, what: str, wanted: QuarantineFilter) -> None:
        for name in others:
            if any(True for _ in _quarantine(change, shard, name).find(wanted)):
                elsewhere.setdefault(what, name)

    def find(shard: Shard) -> tuple[QuarantineFilter, int]:
        quarantine = _quarantine(change, shard, chosen.name)
        if not ids:
            # The operator is not asked about entries that arrive later.
            until_ms = quarantine.last_ms()
            wanted = QuarantineFilter(reason=reason, until_ms=until_ms)
            entries = quarantine.find(wanted)
            while not change.yes and (page := list(islice(entries, BATCH))):
                add_cost(before, shard, page)
            look_elsewhere(shard, "", wanted)
            return wanted, sum(1 for _ in quarantine.find(wanted)) if reason else quarantine.size(until_ms)
        named = dict[bytes, None]()
        for text in ids:
            by_id = QuarantineFilter(tuple(candidates(text)))
            for entry in islice(quarantine.find(by_id), 1):
                seen.add(text)
                if entry.id not in named:
                    add_cost(before, shard, [entry])
                named[entry.id] = None
            if text not in seen:
                look_elsewhere(shard, text, by_id)
        return QuarantineFilter(tuple(named)), len(named)

    def question(found: Sequence[tuple[QuarantineFilter, int]]) -> str:
        total = sum(count for _, count in found)
        for text, name in elsewhere.items():
            if text not in seen and (ids or not total):
                what = f"{shortened(text)} is" if ids else "these entries are"
                change.fail(f"{what} in the quarantine of {name}: add --kind {name}")
        change.check_named(ids, seen | elsewhere.keys(), "is not in quarantine")
        return verb.question.format(_entries(total)) + before.cost if total else ""

    def work(shard: Shard, here: tuple[QuarantineFilter, int]) -> Iterator[Changed]:
        wanted, count = here
        looked_at = 0
        with change.output.bar(verb.done.capitalize(), count) as bar:
            for page in verb.act(_quarantine(change, shard, chosen.name), wanted):
                yield _target(wanted), sum(not each.problem for each in page)
                tally.add(shard, page)
                add_cost(tally, shard, [each.entry for each in page if not each.problem])
                looked_at += len(page)
                bar.update(len(page))
        if looked_at < count:
            change.fail(f"{_entries(count - looked_at)} had left the quarantine by then")

    change.carry_out(verb.action, find, question, work, lambda here: _target(here[0]))
    _report(change, verb, tally, chosen.reasons)


def _report(change: Change, verb: _Verb, tally: _Tally, reasons: Mapping[str, str]) -> None:
    if change.output.as_json:
        answer = {verb.done: tally.done, "stay": tally.stay, "stays": tally.stays}
        if verb.action is Action.DISMISS:
            answer["locked"] = dict(tally.held.most_common(UNITS))
            answer |= {"unreadable": tally.unreadable.count, "unreadable_ids": tally.unreadable.ids}
        change.report(QuarantineChangeDocument.model_validate(answer))
    else:
        _say_count(change, verb.done, tally.done)
        if tally.cost:
            change.output.say(f"what they hold stays locked{tally.cost}")
        if tally.stays:
            rows = [
                (row.shard, row.id, row.reason, reasons.get(row.reason.partition(" ")[0], "")) for row in tally.stays
            ]
            change.output.table(("shard", "id", "stays", ""), rows)
    if tally.stay:
        change.fail(f"{_entries(tally.stay)} not {verb.done}")


def _say_count(change: Change, done: str, count: int) -> None:
    """Say how many were changed; not if none was because of an error, which was told."""
    if count or change.at_least or not change.down:
        change.output.say(f"{done} {change.at_least}{_entries(count)}")


def _kinds(run: Run, names: Sequence[str], reason: str | None) -> list[Kind]:
    """These kinds, as on the first shard. Raises click.BadParameter if no entry of them can have this reason."""
    kinds = [kinds_of(run.settings, run.shards[0])[name] for name in names]
    known = dict.fromkeys(each for kind in kinds for each in kind.reasons)
    if reason is not None and reason not in known and not any(kind.more_reasons for kind in kinds):
        raise click.BadParameter(f"{reason!r} is not one of {', '.join(map(repr, known))}", param_hint="--reason")
    return kinds


def _quarantine(run: Run, shard: Shard, name: str) -> Quarantine:
    return Quarantine(shard, kinds_of(run.settings, shard)[name], run.settings.sweep.pipeline_depth)


def _target(wanted: QuarantineFilter) -> str:
    if wanted.ids is not None:
        return " ".join(map(decode, wanted.ids))
    return f"reason {wanted.reason}" if wanted.reason else "all"


def _entries(count: int) -> str:
    return counted(count, "entry", "entries")


def _cells(shard: str, entry: SetAsideDocument) -> Sequence[object]:
    reason, held = Cell(entry.reason or "?", "yellow"), f"{entry.amount} {entry.unit}".strip()
    return shard, entry.id, reason, span(entry.age_seconds), entry.tenant, held, entry.state, entry.kind
