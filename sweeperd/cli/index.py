"""`sweeperd index`: adds existing entries to the index of a kind."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from sweeperd.cli.change import Change, Changed, changing
from sweeperd.cli.output import printable, stage_bars
from sweeperd.cli.shards import check_name
from sweeperd.config.kinds import KindSettings
from sweeperd.ops.actions import Action
from sweeperd.ops.reconcile.indexing import MEANINGS, IndexDocument, IndexedShardDocument, Survey, add_missing, survey
from sweeperd.ops.reconcile.subjects import Subject, subject_of
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.store.shard import Shard
from sweeperd.text import counted, decode


@click.command("index")
@click.option("--kind", metavar="NAME", required=True, help="The kind, one of [[kinds]].")
@click.option(
    "--match",
    metavar="PATTERN",
    default="*",
    show_default=False,
    help="Only ids that match, such as 'user-*'.  [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be added, and change nothing.")
@click.option("--rate", type=click.IntRange(1), help="Up to this many keys per second.  [default: adapts to Redis]")
@changing
def command(change: Change, kind: str, match: str, dry_run: bool, rate: int | None) -> None:
    """
    Add existing entries to the index of a kind, so that sweeps find them.

    Walks the keys of the kind under live traffic, shows what they are, asks, and adds each living entry that the index
    lacks. A kind without `deadline` takes the TTL of a key as its deadline, and the key becomes persistent. Entries
    that have ended, were quarantined or were dismissed are never added. Run an interrupted command again.

    Exit codes: 0 done, or nothing to do; 1 a shard could not be walked; 2 bad option or configuration.
    """
    check_name("kind", kind, [each.name for each in change.settings.kinds])
    (settings,) = (each for each in change.settings.kinds if each.name == kind)
    if settings.key is None:
        raise click.UsageError(f"the entries of {kind} have no keys: add them to {settings.index} with ZADD")
    if not dry_run:
        change.output.check_consent("Add the entries to the index?", yes=change.yes)
    surveys, added = dict[str, Survey](), Counter[str]()

    @contextmanager
    def walked(shard: Shard) -> Iterator[Subject]:
        """The subject, with a progress bar on a terminal."""
        subject = subject_of(shard, change.settings, kind, Throttle(rate))
        with stage_bars(lambda _: f"{shard.name}: index", show=sys.stderr.isatty()) as subject.progress:
            yield subject

    def find(shard: Shard) -> Survey:
        with walked(shard) as subject:
            surveys[shard.name] = survey(subject, match)
        return surveys[shard.name]

    def question(found: Sequence[Survey]) -> str:
        count = 0 if dry_run else sum(each.counts["to_index"] for each in found)
        if count and not change.yes:
            _say(change, surveys, settings, match)
        return f"Add {counted(count, 'entry', 'entries')} to {settings.index}?" if count else ""

    def work(shard: Shard, found: Survey) -> Iterator[Changed]:
        if dry_run or not found.counts["to_index"]:
            return
        with walked(shard) as subject:
            for count in add_missing(subject, match):
                added[shard.name] += count
                yield kind, count

    change.carry_out(Action.INDEX, find, question, work, lambda _: "" if dry_run else kind)
    shards = [
        IndexedShardDocument.made_of(found, shard=name, kind=kind, added=added[name]) for name, found in surveys.items()
    ]
    change.report(IndexDocument(dry_run=dry_run, shards=shards))
    if dry_run or change.yes or not any(found.counts["to_index"] for found in surveys.values()):
        _say(change, surveys, settings, match)
    if not dry_run:
        for each in shards:
            change.output.say(f"{each.shard}: {counted(each.added, 'entry', 'entries')} added to {settings.index}")


def _say(change: Change, surveys: dict[str, Survey], kind: KindSettings, match: str) -> None:
    """Print what was found, and what the service has to change."""
    for name, found in surveys.items():
        if not found.counts:
            wrong = "is `key` right?" if match == "*" else f"with an id like {match}"
            change.output.say(printable(f"{name}: there is no key {kind.key}{':' * (match == '*')} {wrong}"))
        for outcome, meaning in MEANINGS.items():
            if count := found.counts[outcome]:
                ids = ", ".join(map(decode, found.ids[outcome]))
                change.output.say(printable(f"{name}: {count} {outcome} ({meaning}): {ids}{', ...' * (count > 10)}"))
        if found.overdue:
            change.output.say(f"{name}: {found.overdue} of them are overdue, and expire with the next sweep")
        if found.counts["unknown"]:
            change.output.say(printable(f"{name}: {found.held_because}: is `active` right?"))
        if found.counts["wrong_deadline"]:
            change.output.say(f"{name}: correct `deadline` or `unit`, or what your service writes, and run this again")
        if found.counts["to_index"] and kind.deadline is None:
            change.output.say(
                f"{name}: the keys become persistent. Your service may go on calling EXPIRE, which renews an entry; it "
                "has to add each new entry to the index"
            )
        elif found.counts["to_index"]:
            change.output.say(
                f"{name}: your service has to add each new entry to the index, in the step that writes it"
            )
