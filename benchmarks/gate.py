"""
The gate: a short set of rows beside the committed baseline. Only ratios are compared, so that the machine that the
baseline was taken on and the one that is judged need not be the same.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Measured
from benchmarks.row import Goal, Row
from benchmarks.rows import (
    batched,
    commands,
    delivery,
    expire,
    grace,
    kinds,
    ledger,
    politeness,
    relay,
    throughput,
    tracing,
)
from benchmarks.table import Grid, number

BASELINE = Path(__file__).parent / "baseline.json"
#: On PYTHONPATH, this makes every sweep 30 % slower.
PLANTED = Path(__file__).parent / "planted"
ROUNDS = 7

#: Each with the goals of its ratios, which say what is worse. A ratio that says more about the machine's network than
#: about sweeperd is not among them.
ROWS: tuple[Row, ...] = (
    throughput.AGAINST_LIMIT,
    expire.ROW,
    grace.ROW,
    ledger.ROW,
    delivery.AT_DEFAULT,
    batched.AGAINST_SINGLE,
    kinds.ROW,
    politeness.ROW,
    relay.ROW,
    tracing.ROW,
    commands.ROW,
)

#: Server (`Redis 7.0`) -> row -> ratio -> its median.
Baseline = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Judgement:
    """One ratio beside its baseline."""

    row: str
    ratio: str
    server: str
    before: float | None
    now: float
    goal: Goal

    @property
    def worsening(self) -> float | None:
        """The part by which the ratio is worse, negative if it is better; None if nothing was measured before."""
        return None if self.before is None else self.goal.worsening(self.before, self.now)

    @property
    def holds(self) -> bool:
        """Whether it is good enough. What has no baseline is not: a gate that judges nothing would let all pass."""
        if self.before is None or self.worsening is None:
            return False
        return self.worsening <= self.goal.tolerance or abs(self.now - self.before) <= self.goal.noise


def judge(rows: Sequence[Row], results: Mapping[str, Sequence[Measured]], baseline: Baseline) -> list[Judgement]:
    """Every ratio that has a goal, on every server that it was measured on."""
    return [
        Judgement(
            row.name,
            name,
            one.server,
            baseline.get(one.server, {}).get(row.name, {}).get(name),
            one.median(name),
            goal,
        )
        for row in rows
        for one in results[row.name]
        for name, goal in row.goals.items()
        if all(name in sample.ratios for sample in one.samples)
    ]


def read_baseline(path: Path) -> Baseline:
    """Empty if there is none."""
    baseline: Baseline = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return baseline


def update(judgements: Sequence[Judgement], path: Path) -> None:
    """Make these the baseline. What it has of other servers stays."""
    before = read_baseline(path)
    baseline = {server: {row: dict(ratios) for row, ratios in rows.items()} for server, rows in before.items()}
    for one in judgements:
        baseline.setdefault(one.server, {}).setdefault(one.row, {})[one.ratio] = round(one.now, 3)
    path.write_text(json.dumps(baseline, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def table(judgements: Sequence[Judgement]) -> Grid:
    """Ratio | server | baseline | now | change | how much worse it may be | holds?"""
    lines = []
    for one in judgements:
        worsening = one.worsening
        change = "" if worsening is None else f"{abs(worsening):.0%} {'worse' if worsening > 0 else 'better'}"
        verdict = "no baseline" if worsening is None else "yes" if one.holds else "no"
        before = "" if one.before is None else number(one.before)
        lines.append(
            [
                f"{one.row} {one.ratio}",
                one.server,
                before,
                number(one.now),
                change,
                f"{one.goal.tolerance:.0%} worse",
                verdict,
            ]
        )
    return Grid("gate", ["ratio", "server", "baseline", "now", "change", "allowed", "holds?"], lines)
