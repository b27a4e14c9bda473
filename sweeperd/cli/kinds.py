"""`sweeperd kinds accept`: prove a kind by hand."""

from collections.abc import Iterator, Sequence

import click

from sweeperd.cli.change import Change, Changed, changing
from sweeperd.cli.shards import check_name
from sweeperd.ops.actions import Action
from sweeperd.ops.status import AcceptedKind, KindAcceptDocument
from sweeperd.store.shard import Shard
from sweeperd.sweep.backlog import Backlog, read_index_backlog
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.proof import prove


@click.group("kinds")
def command() -> None:
    """The configured kinds."""


@command.command("accept")
@click.argument("name")
@changing
def accept(change: Change, name: str) -> None:
    """
    Declare that the settings of a kind are right, although none of its entries was seen alive.

    The next tick takes the held entries out of the index: those without a hash, and those whose state the settings do
    not name. Nothing is given back for them and no event tells of them. First see `sweeperd check` and `sweeperd show`.
    """
    check_name("kind", name, [kind.name for kind in change.settings.kinds])

    accepted = list[AcceptedKind]()

    def find(shard: Shard) -> Backlog:
        return read_index_backlog(shard, kinds_of(change.settings, shard)[name], shard.read_clock())

    def question(found: Sequence[Backlog]) -> str:
        unproven = [backlog for backlog in found if not backlog.proven]
        held = sum(backlog.held for backlog in unproven)
        because = next((f" ({backlog.held_because})" for backlog in unproven if backlog.held_because), "")
        text = f"Accept the settings of {name}? {held} entries are held{because} and will leave the index."
        return text if unproven else ""

    def work(shard: Shard, backlog: Backlog) -> Iterator[Changed]:
        if not backlog.proven:
            prove(shard, kinds_of(change.settings, shard)[name])
            yield name, 1
        held = 0 if backlog.proven else backlog.held
        accepted.append(AcceptedKind(shard=shard.name, accepted=not backlog.proven, held=held))

    change.carry_out(Action.ACCEPT_KIND, find, question, work)
    change.report(KindAcceptDocument(kind=name, shards=accepted, down=change.down))
    for each in accepted:
        text = f"is accepted; held: {each.held}" if each.accepted else "is proven already"
        change.output.say(f"{name} {text} on {each.shard}")
