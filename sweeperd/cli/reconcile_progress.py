"""The progress of a walk on a terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from sweeperd.ops.reconcile import KindStage, WalkStage

#: (stage, keys done so far, keys expected in all)
StageProgress = Callable[[WalkStage | KindStage, int, int], None]


@contextlib.contextmanager
def shown_progress(shard: str) -> Iterator[StageProgress]:
    """A progress bar with an estimate, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    with contextlib.ExitStack() as bars:
        bar: Any = None
        at: WalkStage | KindStage | None = None

        def progress(stage: WalkStage | KindStage, done: int, total: int) -> None:
            nonlocal bar, at
            if stage is not at:
                bars.close()
                label = f"{shard}: {stage.value}"
                bar = bars.enter_context(click.progressbar(length=total, label=label, show_eta=True, file=sys.stderr))
                at = stage
            bar.length = total
            bar.update(min(done, total) - bar.pos)

        yield progress
