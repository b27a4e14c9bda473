"""Defines a step of a release and the result that is kept of it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: What a step found, by name, in words: `{"seed": "7", "verdicts": "21 of 21 hold"}`.
Figures = dict[str, str]


@dataclass(frozen=True)
class Output:
    """What a command left."""

    code: int
    text: str
    #: The folder that the command wrote its files into.
    directory: Path


#: Reads the figures of a step. Raises ValueError or OSError if they are not there: the step has failed then.
Read = Callable[[Output], Figures]


def no_figures(_: Output) -> Figures:
    """Of a command whose exit code says all."""
    return {}


@dataclass(frozen=True)
class Step:
    """One step: its name, what it shows, the command, and how its result is read. Exit code 0 means that it holds."""

    name: str
    shows: str
    command: tuple[str, ...]
    read: Read = no_figures
    #: The environment, in addition to that of the release.
    env: Mapping[str, str] = field(default_factory=dict)
    #: Files of the command that are kept with the evidence.
    keeps: tuple[str, ...] = ()
    #: It judges the findings, which may change while the product does not, so it is never left out.
    judges_findings: bool = False


@dataclass(frozen=True)
class Result:
    """A step that was run: on which commit, when, for how long, how busy the host was, and what came of it."""

    step: str
    shows: str
    commit: str
    #: UTC, RFC 3339.
    began: str
    seconds: float
    command: str
    holds: bool
    figures: Figures
    #: The load averages of the host before and after, its cores, the share of its time that it did not get; Python, the
    #: system and the servers there.
    host: Figures
    #: Why it does not hold: the end of what the command printed.
    trouble: str = ""
    files: tuple[str, ...] = ()

    @property
    def unchecked(self) -> bool:
        """Whether the step found nothing to try, or nothing to try it with."""
        return bool(self.figures) and all(text.startswith("not ") for text in self.figures.values())


def write(result: Result, directory: Path) -> None:
    """Keep it instead of an earlier result of that step."""
    directory.mkdir(parents=True, exist_ok=True)
    document = json.dumps(asdict(result), indent=1, ensure_ascii=False)
    (directory / f"{result.step}.json").write_text(document + "\n", encoding="utf-8")


def read(directory: Path, step: str) -> Result | None:
    """The result of a step; None if there is none."""
    path = directory / f"{step}.json"
    if not path.exists():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    return Result(**{**document, "files": tuple(document["files"])})
