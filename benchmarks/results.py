"""What was measured, as files: one for each row, with every round on each server, and on what it was measured."""

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
        "measured": [_rounded(asdict(one)) for one in sorted(kept.values(), key=lambda one: one.order)],
    }
    _path(directory, row.name).write_text(_compact(data) + "\n", encoding="utf-8")


def read(directory: Path, name: str) -> list[Measured]:
    """All there is of this row, the oldest Redis first, then Valkey; empty if it was not measured."""
    path = _path(directory, name)
    if not path.exists():
        return []
    data = json.loads(path.read_text(encoding="utf-8"))
    return [Measured(**{**one, "samples": [Sample(**sample) for sample in one["samples"]]}) for one in data["measured"]]


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
    """JSON, indented, but with a list of numbers on one line: a series has hundreds."""
    if isinstance(value, dict) and value:
        inner = " " * (indent + 2)
        lines = (f"{inner}{json.dumps(key)}: {_compact(below, indent + 2)}" for key, below in value.items())
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        inner = " " * (indent + 2)
        return "[\n" + ",\n".join(inner + _compact(item, indent + 2) for item in value) + "\n" + " " * indent + "]"
    return json.dumps(value, ensure_ascii=False)
