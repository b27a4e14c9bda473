"""`sweeperd kinds accept`: lets an operator vouch for the settings of a kind."""

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
from sweeperd.text import counted


@click.group("kinds")
def command() -> None:
    """The configured kinds."""


@command.command("accept")
@click.argument("name")
@changing
def accept(change: Change, name: str) -> None:
    """
    Accept the settings of a kind that has no entry alive to prove them.

    The next tick removes the held entries from the index: those without a hash, and those in a state that the settings
    do not name. It gives nothing back for them and sends no event. Look at `sweeperd check` and `sweeperd show` first.
    """
    check_name("kind", name, [kind.name for kind in change.settings.kinds])
    accepted = list[AcceptedKind]()

    def find(shard: Shard) -> Backlog:
        return read_index_backlog(shard, kinds_of(change.settings, shard)[name], shard.read_clock())

    def question(found: Sequence[Backlog]) -> str:
        unproven = [backlog for backlog in found if not backlog.proven]
        held = sum(backlog.held for backlog in unproven)
        because = next((f" ({backlog.held_because})" for backlog in unproven if backlog.held_because), "")
        entries = counted(held, "held entry", "held entries")
        text = f"Accept the settings of {name}? {entries}{because} will be removed from the index."
        return text if unproven else ""

    def work(shard: Shard, backlog: Backlog) -> Iterator[Changed]:
        if not backlog.proven:
            prove(shard, kinds_of(change.settings, shard)[name])
            yield name, 1
        held = 0 if backlog.proven else backlog.held
        accepted.append(AcceptedKind(shard=shard.name, accepted=not backlog.proven, held=held))

    change.carry_out(Action.ACCEPT_KIND, find, question, work, lambda _: name)
    change.report(KindAcceptDocument(kind=name, shards=accepted))
    for each in accepted:
        text = f"accepted, {counted(each.held, 'held entry', 'held entries')}" if each.accepted else "already proven"
        change.output.say(f"{name} on {each.shard}: {text}")
