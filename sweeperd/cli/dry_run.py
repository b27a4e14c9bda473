"""`sweeperd --once --dry-run`: shows what one sweep would do, without a write."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from pydantic import Field

from sweeperd.cli.options import Exit, Options
from sweeperd.cli.output import Output, stage_bars
from sweeperd.cli.shards import Run
from sweeperd.document import Seconds, ShardsDocument
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Outcome
from sweeperd.sweep.preview import Preview, PreviewCounts, PreviewDocument, PreviewProgress, counts_of, preview_due


class DryRunDocument(PreviewCounts, ShardsDocument, title="sweeperd --once --dry-run --json"):
    """What one sweep would do, all shards together."""

    kinds: list[PreviewDocument] = Field(description="Each kind on each shard.")
    duration_seconds: Seconds


def run(options: Options) -> None:
    """Exit codes as of `--once`: 1 for a failure, and for entries that fail or are held."""
    started, output, counts = time.monotonic(), Output(as_json=options.as_json), Counter[Outcome]()
    with options.shards() as (settings, shards):
        command = Run(settings, shards, output, yes=False)
        previews = list[tuple[Shard, Preview]]()
        for shard in shards:
            for kind in kinds_of(settings, shard).values():
                with command.catching(shard), _bars(output, f"{shard.name}: {kind.name}") as progress:
                    previews.append((shard, preview_due(shard, kind, settings.sweep.batch_size, progress)))
        for _, preview in previews:
            counts.update(preview.counts)
        documents = [preview.document(shard) for shard, preview in previews]
        if output.as_json:
            duration = round(time.monotonic() - started, 6)
            values = counts_of(counts) | {"kinds": documents, "duration_seconds": duration}
            command.report(DryRunDocument.model_validate(values))
        else:
            for shard, preview in previews:
                place = preview.kind.name if len(shards) == 1 else f"{shard.name}: {preview.kind.name}"
                output.say(f"{place}: {preview.counts.total()} due: {preview.says}")
            show_previews(output, documents)
    command.end()
    if counts[Outcome.ERROR] or counts[Outcome.HELD]:
        sys.exit(Exit.FAILED)


def _bars(output: Output, place: str) -> contextlib.AbstractContextManager[PreviewProgress]:
    return stage_bars(lambda stage: f"{place}: {stage}", show=sys.stderr.isatty() and not output.as_json)


_COUNTERS = ("shard", "kind", "counter", "field", "holds", "change", "would hold", "entries")
_ENTRIES = ("shard", "kind", "outcome", "id", "detail", "why")


def show_previews(output: Output, previews: Sequence[PreviewDocument]) -> None:
    for columns, rows in ((_COUNTERS, list(_counters(previews))), (_ENTRIES, list(_entries(previews)))):
        if rows:
            output.say("")
            output.table(columns, rows)


def _counters(previews: Sequence[PreviewDocument]) -> Iterator[Sequence[object]]:
    for each in previews:
        for counter in each.counters:
            numbers = counter.holds, f"{counter.change:+d}", counter.would_hold, counter.entries
            yield each.shard, each.kind, counter.key, counter.field, *numbers


def _entries(previews: Sequence[PreviewDocument]) -> Iterator[Sequence[object]]:
    for each in previews:
        for entry in each.entries:
            yield each.shard, each.kind, entry.outcome.replace("_", " "), entry.id, entry.detail, entry.why
