"""What mutation tests found: kept as JSON, printed as a table. Survivors are explained in `explained.toml`."""

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proof.mutants.trial import Trial, Verdict

RESULTS = Path(__file__).parent / "results"
_EXPLAINED = Path(__file__).parent / "explained.toml"


def explanations() -> Mapping[str, str]:
    """A surviving mutant's name -> why no test can, or need, notice it."""
    text = _EXPLAINED.read_text(encoding="utf-8")
    return {str(name): str(reason) for name, reason in tomllib.loads(text).items()}


def row(trial: Trial) -> dict[str, Any]:
    """One trial as it is kept."""
    mutant = trial.mutant
    return {
        "mutant": mutant.name,
        "line": mutant.line,
        "kind": mutant.kind,
        "verdict": trial.verdict.value,
        "caught_by": trial.caught_by,
    }


def read(name: str) -> list[dict[str, Any]]:
    """The trials that are kept of a language; none where it was never tried."""
    path = RESULTS / f"{name}.json"
    kept: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return kept


def keep(name: str, rows: Sequence[Mapping[str, Any]], known: Collection[str]) -> Path:
    """
    Keep the trials of a language beside the earlier ones of other mutants. `known`: the names of all mutants that there
    are; what is kept of others goes. Returns where.
    """
    new = {one["mutant"] for one in rows}
    rows = [*(one for one in read(name) if one["mutant"] in known and one["mutant"] not in new), *rows]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    lines = ",\n".join(
        json.dumps(one) for one in sorted(rows, key=lambda one: (file_of(one), one["line"], one["mutant"]))
    )
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return path


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each file, then the survivors with their explanation."""
    explained = explanations()
    table = Table("file", "mutants", "caught", "explained", "open")
    for file in sorted({file_of(one) for one in rows}):
        table.add_row(file, *map(str, _counts([one for one in rows if file_of(one) == file], explained)))
    table.add_row("all", *map(str, _counts(rows, explained)), style="bold")
    console = Console()
    console.print(table)
    for one in rows:
        if one["verdict"] == Verdict.SURVIVED:
            console.print(f"survived, line {one['line']}: {escape(one['mutant'])}", soft_wrap=True)
            console.print(f"    {escape(explained.get(one['mutant'], 'not explained'))}", soft_wrap=True)


def file_of(one: Mapping[str, Any]) -> str:
    """The file of a kept trial."""
    return str(one["mutant"]).partition(": ")[0]


def _counts(rows: Sequence[Mapping[str, Any]], explained: Mapping[str, str]) -> tuple[int, int, int, int]:
    survivors = [one["mutant"] for one in rows if one["verdict"] == Verdict.SURVIVED]
    known = sum(name in explained for name in survivors)
    return len(rows), len(rows) - len(survivors), known, len(survivors) - known
