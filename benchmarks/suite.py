"""Measures rows in rounds, the servers in turn."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.lab import Lab
from benchmarks.results import Measured, measured
from benchmarks.row import Row, Sample
from sweeperd.store.embedded import Binary
from tests.support.host import cpu_time

#: Told before each round: the row, the server, the number of the round.
Told = Callable[[Row, Binary, int], None]


def measure(row: Row, binaries: Sequence[Binary], rounds: int, *, quick: bool, told: Told) -> list[Measured]:
    """
    All rounds of one row. The servers take turns, so that what else the machine does strikes them alike; each
    round says which part of the machine its host gave to others meanwhile (`stolen`).
    """
    samples: dict[Binary, list[Sample]] = {binary: [] for binary in binaries}
    sizes: dict[str, int] = {}
    for number in range(1, rounds + 1):
        for binary, taken in samples.items():
            told(row, binary, number)
            before = cpu_time()
            with tempfile.TemporaryDirectory(prefix="sweeperd-bench-") as directory:
                sample = row.measure(Lab(binary, Path(directory), quick, sizes))
            stolen = cpu_time().stolen_since(before)
            taken.append(replace(sample, figures=sample.figures | {"stolen": stolen}))
    return [measured(binary, sizes, taken, quick=quick) for binary, taken in samples.items()]
