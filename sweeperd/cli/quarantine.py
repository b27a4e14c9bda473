"""`sweeperd quarantine`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import click

from sweeperd.cli import quarantine_adopt
from sweeperd.cli.options import Options, json_option, kind_of, kind_option, shard_option
from sweeperd.cli.output import Cell, Output, timestamp
from sweeperd.cli.quarantine_change import Change, Selection, changing, reason_option
from sweeperd.cli.troubles import Troubles, for_each_shard
from sweeperd.ops.actions import Action
from sweeperd.ops.ids import candidates
from sweeperd.ops.quarantine import Quarantine, QuarantineFilter, SetAside
from sweeperd.store.shard import Shard
from sweeperd.sweep.reasons import REASONS
from sweeperd.text import decode, span


@click.group("quarantine", short_help="What was set aside: list it, put it back after a repair, or dismiss it.")
def command() -> None:
    """
    Reservations that the sweep could not decide or not release exactly. They keep their state and their budget, and
    no sweep comes to them any more.
    """


command.add_command(quarantine_adopt.command)


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

        def listing(each: Shard) -> _Listed:
            quarantine = Quarantine(each, settings, kind_of(settings, kind))
            entries = list(islice(quarantine.find(wanted), limit + 1))
            return _Listed(each, quarantine.size(), each.read_clock(), entries[:limit], len(entries) > limit)

        found = [listed for _, listed in for_each_shard(shards, listing, troubles)]
    if as_json:
        output.json({"shards": [listed.as_dict() for listed in found], "down": troubles.down})
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

    def as_dict(self) -> dict[str, Any]:
        return {
            "shard": self.shard.name,
            "quarantined": self.size,
            "more": self.more,
            "entries": [
                {
                    "id": decode(entry.id),
                    "reason": entry.reason,
                    "quarantined_at": timestamp(entry.at_ms),
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
