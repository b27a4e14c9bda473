"""Keeps the verdicts on mutants, and prints them with the explanations of `explained.toml`."""

import hashlib
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proof.mutants.trial import Trial, Verdict

FOLDER = Path(__file__).parent
#: Digests on a line of the kept file.
ON_A_LINE = 12


def explanations() -> Mapping[str, str]:
    """A surviving mutant's name -> why no test can, or need, notice it."""
    text = (FOLDER / "explained.toml").read_text(encoding="utf-8")
    return {str(name): str(reason) for name, reason in tomllib.loads(text).items()}


def digest(name: str) -> str:
    """What a caught mutant is kept by."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def survivors(language: str) -> list[str]:
    """The names of the mutants that are kept as survivors."""
    return [f"{file}: {change}" for file, kept in _read(language).items() for change in kept["survived"]]


def verdicts(language: str, names: Iterable[str]) -> dict[str, Verdict]:
    """The kept verdicts on the mutants of these names; one that was never tried is missing."""
    survived = set(survivors(language))
    caught = {one for kept in _read(language).values() for line in kept["caught"] for one in line.split()}
    found = {name: Verdict.SURVIVED for name in names if name in survived}
    return found | {name: Verdict.CAUGHT for name in names if name not in survived and digest(name) in caught}


def keep(language: str, trials: Sequence[Trial], known: Collection[str]) -> None:
    """Keep these verdicts beside earlier ones. `known`: the names of all mutants; what is kept of others goes."""
    found = verdicts(language, known) | {trial.mutant.name: trial.verdict for trial in trials}
    files: dict[str, dict[str, list[str]]] = {}
    for name, verdict in sorted(found.items()):
        file, _, change = name.partition(": ")
        kept = files.setdefault(file, {"survived": [], "caught": []})
        kept[verdict].append(change if verdict is Verdict.SURVIVED else digest(name))
    for kept in files.values():
        caught = kept["caught"]
        kept["caught"] = [" ".join(caught[at : at + ON_A_LINE]) for at in range(0, len(caught), ON_A_LINE)]
    _path(language).write_text(json.dumps(files, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def show(trials: Sequence[Trial]) -> None:
    """Print a line for each file, then the survivors with their explanation."""
    explained = explanations()
    table = Table("file", "mutants", "caught", "explained", "open")
    for file in sorted({trial.mutant.file for trial in trials}):
        table.add_row(file, *map(str, _counts([one for one in trials if one.mutant.file == file], explained)))
    table.add_row("all", *map(str, _counts(trials, explained)), style="bold")
    console = Console()
    console.print(table)
    for mutant in (trial.mutant for trial in trials if trial.verdict is Verdict.SURVIVED):
        console.print(f"survived, line {mutant.line}: {escape(mutant.name)}", soft_wrap=True)
        console.print(f"    {escape(explained.get(mutant.name, 'not explained'))}", soft_wrap=True)


def _counts(trials: Sequence[Trial], explained: Mapping[str, str]) -> tuple[int, int, int, int]:
    survived = [trial.mutant.name for trial in trials if trial.verdict is Verdict.SURVIVED]
    known = sum(name in explained for name in survived)
    return len(trials), len(trials) - len(survived), known, len(survived) - known


def _read(language: str) -> dict[str, dict[str, list[str]]]:
    path = _path(language)
    kept: dict[str, dict[str, list[str]]] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return kept


def _path(language: str) -> Path:
    return FOLDER / "results" / f"{language}.json"
