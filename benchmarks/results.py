"""Keeps what was measured: a file for each row, with the median and every round on each server."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.row import Row, Sample
from sweeperd import __version__
from sweeperd.store.embedded import Binary

#: The committed results.
DIRECTORY = Path(__file__).parent / "results"
#: How long a line of a file may be if it can be broken.
LINE = 140


@dataclass(frozen=True)
class Measured:
    """All rounds of one row on one server. `redis`: its version; `name`: `Redis` or `Valkey`."""

    redis: str
    python: str
    sweeperd: str
    cores: int
    quick: bool
    sizes: Mapping[str, int]
    samples: Sequence[Sample]
    name: str = "Redis"

    @property
    def server(self) -> str:
        """The server with its major and minor version: `Redis 7.0`."""
        return f"{self.name} {'.'.join(self.redis.split('.')[:2])}"

    @property
    def order(self) -> tuple[str, tuple[int, ...]]:
        """What servers are sorted by: the name, then the version."""
        return self.name, tuple(int(part) for part in self.redis.split("."))

    def values(self, name: str) -> list[float]:
        """One ratio or figure, of each round. Raises KeyError if there is none of that name."""
        return [sample.value(name) for sample in self.samples]

    def median(self, name: str) -> float:
        """Its median."""
        return median(self.values(name))


def measured(binary: Binary, sizes: Mapping[str, int], samples: Sequence[Sample], *, quick: bool) -> Measured:
    """What these samples, just taken, were taken on."""
    python, cores = platform.python_version(), os.cpu_count() or 1
    return Measured(binary.version, python, __version__, cores, quick, sizes, samples, binary.name)


def write(directory: Path, row: Row, found: Sequence[Measured]) -> None:
    """Put these into the row's file. What the file has of other servers stays."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = {one.server: one for one in [*read(directory, row.name), *found]}
    data = {
        "row": row.name,
        "what": row.what,
        "against": row.against,
        "measured": [_rounded(_columns(one)) for one in sorted(kept.values(), key=lambda one: one.order)],
    }
    _path(directory, row.name).write_text(_compact(data) + "\n", encoding="utf-8")


def read(directory: Path, name: str) -> list[Measured]:
    """All there is of this row, the oldest Redis first, then Valkey; empty if it was not measured."""
    path = _path(directory, name)
    if not path.exists():
        return []
    data = json.loads(path.read_text(encoding="utf-8"))
    return [_measured(one) for one in data["measured"]]


def _columns(one: Measured) -> dict[str, Any]:
    """The rounds by ratio and figure, with their medians. A round that lacks one has null there."""
    document = asdict(one)
    samples = document.pop("samples")
    for part in ("ratios", "figures"):
        names = dict.fromkeys(name for sample in samples for name in sample[part])
        rounds = {name: [sample[part].get(name) for sample in samples] for name in names}
        document[part] = {
            name: {"median": median(value for value in values if value is not None), "rounds": values}
            for name, values in rounds.items()
        }
    series = [sample["series"] for sample in samples]
    return document | ({"series": series} if any(series) else {})


def _measured(document: dict[str, Any]) -> Measured:
    """The opposite of `_columns`."""
    ratios, figures = document.pop("ratios"), document.pop("figures")
    count = max(len(kept["rounds"]) for kept in (*ratios.values(), *figures.values()))
    series = document.pop("series", [{}] * count)

    def values(part: dict[str, Any], number: int) -> dict[str, float]:
        rounds = {name: kept["rounds"][number] for name, kept in part.items()}
        return {name: value for name, value in rounds.items() if value is not None}

    samples = [Sample(values(ratios, number), values(figures, number), series[number]) for number in range(count)]
    return Measured(**document, samples=samples)


def _path(directory: Path, name: str) -> Path:
    return directory / f"{name}.json"


def _rounded(value: Any) -> Any:
    """Six digits are more than any clock here is good for."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(below) for below in value]
    return value


def _compact(value: Any, indent: int = 0) -> str:
    """JSON, indented, but on one line what fits there, and a list of numbers however long."""
    line, inner = json.dumps(value, ensure_ascii=False), " " * (indent + 1)
    if len(line) + indent <= LINE or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_compact(below, indent + 1)}" for key, below in value.items()]
    elif any(isinstance(item, dict) for item in value):
        parts = [_compact(item, indent + 1) for item in value]
    else:
        return line
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(parts) + f"\n{' ' * indent}{closing}"
