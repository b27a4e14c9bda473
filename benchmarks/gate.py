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
    now: float | None
    goal: Goal

    @property
    def worsening(self) -> float | None:
        """The part by which the ratio is worse, negative if it is better; None if it was not measured both times."""
        return None if self.before is None or self.now is None else self.goal.worsening(self.before, self.now)

    @property
    def holds(self) -> bool:
        """Whether it is good enough. What cannot be compared is not: a gate that judges nothing would let all pass."""
        if self.before is None or self.now is None:
            return False
        worsening = self.goal.worsening(self.before, self.now)
        return worsening <= self.goal.tolerance or abs(self.now - self.before) <= self.goal.noise


def judge(rows: Sequence[Row], results: Mapping[str, Sequence[Measured]], baseline: Baseline) -> list[Judgement]:
    """Every ratio that has a goal, on every server that it was measured on, now or for the baseline."""
    judgements = []
    for row in rows:
        for one in results[row.name]:
            before = baseline.get(one.server, {}).get(row.name, {})
            for name, goal in row.goals.items():
                measured = all(name in sample.ratios for sample in one.samples)
                if measured or name in before:
                    now = one.median(name) if measured else None
                    judgements.append(Judgement(row.name, name, one.server, before.get(name), now, goal))
    return judgements


def read_baseline(path: Path) -> Baseline:
    """Empty if there is none."""
    baseline: Baseline = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return baseline


def update(judgements: Sequence[Judgement], path: Path) -> None:
    """Make these the baseline. What it has of other servers stays."""
    before = read_baseline(path)
    baseline = {server: {row: dict(ratios) for row, ratios in rows.items()} for server, rows in before.items()}
    for one in judgements:
        if one.now is not None:
            baseline.setdefault(one.server, {}).setdefault(one.row, {})[one.ratio] = round(one.now, 3)
    path.write_text(json.dumps(baseline, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def table(judgements: Sequence[Judgement]) -> Grid:
    """Ratio | server | baseline | now | change | how much worse it may be | holds?"""
    lines = []
    for one in judgements:
        worsening = one.worsening
        change = "" if worsening is None else f"{abs(worsening):.0%} {'worse' if worsening > 0 else 'better'}"
        verdict = "yes" if one.holds else "no"
        if one.before is None or one.now is None:
            verdict = "no baseline" if one.before is None else "not measured"
        before = "" if one.before is None else number(one.before)
        lines.append(
            [
                f"{one.row} {one.ratio}",
                one.server,
                before,
                "" if one.now is None else number(one.now),
                change,
                f"{one.goal.tolerance:.0%} worse",
                verdict,
            ]
        )
    return Grid("gate", ["ratio", "server", "baseline", "now", "change", "allowed", "holds?"], lines)
