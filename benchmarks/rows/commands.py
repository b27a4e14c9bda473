"""The CPU time of quick commands, next to importing the libraries that they need."""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.lab import Lab
from benchmarks.row import Goal, Row, Sample
from tests.support.harness import command, environment

#: Command -> the libraries to import in comparison.
COMMANDS = {"keygen": ("endpoints keygen", "click, pydantic"), "status": ("status", "click, redis, pydantic")}


def measure(lab: Lab) -> Sample:
    """Each command and its imports in turn, without the first run, which reads files and writes bytecode."""
    runs = lab.size("runs", 9, 2)
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(lab.directory / "bytecode")}
    ratios, figures = dict[str, float](), dict[str, float]()
    with lab.server() as server:
        env = os.environ | environment(server.url) | bytecode
        for name, (arguments, libraries) in COMMANDS.items():
            imports = [sys.executable, "-c", f"import {libraries}"]
            pairs = [(_cpu(command(*arguments.split()), env), _cpu(imports, env)) for _ in range(runs + 1)][1:]
            ratios[name] = median(ours / theirs for ours, theirs in pairs)
            figures[f"{name}_cpu_seconds"] = median(ours for ours, _ in pairs)
    return Sample(ratios, figures)


def _cpu(arguments: Sequence[str], env: Mapping[str, str]) -> float:
    """Seconds of CPU time that this process takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(arguments, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


ROW = Row(
    "commands",
    "CPU time of `endpoints keygen` and `status`",
    "importing click and pydantic, for `status` also redis",
    {"keygen": Goal("at_most", 1.4), "status": Goal("at_most", 1.4)},
    measure,
)
