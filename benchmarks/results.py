"""What was measured, as files: one for each row, with every round on each Redis, and on what it was measured."""

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

#: The committed results.
DIRECTORY = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Measured:
    """All rounds of one row on one Redis."""

    redis: str
    python: str
    sweeperd: str
    cores: int
    quick: bool
    sizes: Mapping[str, int]
    samples: Sequence[Sample]

    @property
    def version(self) -> str:
        """Major and minor version of the Redis: `7.0`."""
        return ".".join(self.redis.split(".")[:2])

    def values(self, name: str) -> list[float]:
        """One ratio or figure, of each round. Raises KeyError where there is none of that name."""
        return [sample.value(name) for sample in self.samples]

    def median(self, name: str) -> float:
        """Its median."""
        return median(self.values(name))


def measured(redis: str, sizes: Mapping[str, int], samples: Sequence[Sample], *, quick: bool) -> Measured:
    """What these samples, just taken, were taken on."""
    return Measured(redis, platform.python_version(), __version__, os.cpu_count() or 1, quick, sizes, samples)


def write(directory: Path, row: Row, found: Sequence[Measured]) -> None:
    """Put these into the row's file. What the file has of other versions of Redis stays."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = {one.version: one for one in [*read(directory, row.name), *found]}
    data = {
        "row": row.name,
        "what": row.what,
        "against": row.against,
        "measured": [_rounded(asdict(kept[version])) for version in sorted(kept, key=_numbers)],
    }
    _path(directory, row.name).write_text(_compact(data) + "\n", encoding="utf-8")


def read(directory: Path, name: str) -> list[Measured]:
    """All there is of this row, the oldest Redis first; empty where it was not measured."""
    path = _path(directory, name)
    if not path.exists():
        return []
    data = json.loads(path.read_text(encoding="utf-8"))
    return [Measured(**{**one, "samples": [Sample(**sample) for sample in one["samples"]]}) for one in data["measured"]]


def _path(directory: Path, name: str) -> Path:
    return directory / f"{name}.json"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


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
