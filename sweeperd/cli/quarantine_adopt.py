"""`sweeperd quarantine adopt`."""

from collections.abc import Sequence

import click

from sweeperd.cli.actions import leave_record
from sweeperd.cli.options import Options, json_option, shard_option, yes_option
from sweeperd.cli.output import Output, printable, shortened
from sweeperd.cli.troubles import Troubles, for_each_shard
from sweeperd.config import Settings
from sweeperd.ops.actions import Action
from sweeperd.ops.adopt import adopt, find_foreign
from sweeperd.ops.ids import candidates
from sweeperd.store.shard import Shard
from sweeperd.text import decode

#: How many are adopted in one round trip.
BATCH = 100


@click.command("adopt")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them; this walks over all reservations.")
@shard_option
@yes_option
@json_option
@click.pass_obj
def command(
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
        output.json({"adopted": count, "down": troubles.down})
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
