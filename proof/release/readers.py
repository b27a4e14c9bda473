"""Reads the figures of each step from its output."""

import json
import re

from proof.release import figures
from proof.release.step import Figures, Output

#: The last line of pytest.
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|deselected|error|errors|xfailed)\b")
#: The seed of the property tests, as tests/conftest.py prints it.
_SEED = re.compile(r"--hypothesis-seed=(\d+)")

#: The totals of the simulation.
_SEEDS = re.compile(
    r"^(\d+) seeds from (\d+) on: ([\d.]+) virtual hours in \d+ s; "
    r"(\d+) faults, (\d+) actions of operators, (\d+) invariants; failed: (.*)$",
    re.MULTILINE,
)
#: A planted bug, the seed that finds it, and the invariant that it breaks there.
_FINDING = re.compile(r"^\| (\S+) \| .* \| (\d+) \| ([^:|]+)", re.MULTILINE)
_FOUND = re.compile(r"^(\d+ of \d+) planted bugs found; missed: (.*)$", re.MULTILINE)


def tests(output: Output) -> Figures:
    """What pytest counted, the seed that it drew from, and the servers that the tests ran on."""
    counts = dict(reversed(pair) for pair in _COUNTS.findall(_last(output.text, " in ")))
    if "passed" not in counts:
        raise ValueError("pytest has printed no counts")
    counts.pop("deselected", None)
    seeds = _SEED.findall(output.text)
    return counts | ({"seed": seeds[-1]} if seeds else {})


def soak(name: str, output: Output) -> Figures:
    """The facts of a soak and how many verdicts hold, from the file of this name, which has each verdict."""
    found = json.loads((output.directory / name).read_text(encoding="utf-8"))
    verdicts = found["verdicts"]
    holding = sum(verdict["holds"] for verdict in verdicts)
    facts = {"minutes": f"{found['minutes']:g}", "verdicts": f"{holding} of {len(verdicts)} hold"}
    return facts | {fact: str(text) for fact, text in found["facts"].items()}


def simulation(output: Output) -> Figures:
    """Seeds, virtual hours, kinds of faults, and the seeds that failed."""
    seeds = _SEEDS.search(output.text)
    if not seeds:
        raise ValueError("the simulation has printed no totals")
    names = ("seeds", "first seed", "virtual hours", "faults", "actions of operators", "invariants", "failed")
    return dict(zip(names, seeds.groups(), strict=True))


def bugs(output: Output) -> Figures:
    """How many of the planted bugs were found, by which seeds, and which invariants they broke."""
    planted = _FOUND.search(output.text)
    if not planted:
        raise ValueError("the simulation has printed no totals")
    by = ", ".join(f"{name} {seed} ({invariant.strip()})" for name, seed, invariant in _FINDING.findall(output.text))
    return {"planted bugs found": planted[1], "missed": planted[2], "by seed": by}


def gate(output: Output) -> Figures:
    """Each ratio of the gate as its tables show it, and in how many runs it held unless it held in all."""
    found: dict[str, list[list[str]]] = {}
    for row in _gate_rows(output.text):
        found.setdefault(f"{row[0]}, {row[1]}", []).append(row)
    if not found:
        raise ValueError("the gate has printed no table")
    return {
        name: f"{', '.join(row[3] for row in rows)} (baseline {rows[0][2] or 'none'}"
        + (f"; holds in {held} of {len(rows)})" if held < len(rows) else ")")
        for name, rows in found.items()
        for held in [sum(row[-1] == "yes" for row in rows)]
    }


def planted(output: Output) -> Figures:
    """Like `gate`. Raises ValueError if no ratio was refused: the exit code may have another cause."""
    if all(row[-1] != "no" for row in _gate_rows(output.text)):
        raise ValueError("the gate has refused no ratio")
    return gate(output)


def document(output: Output) -> Figures:
    """Of a command of this folder: the figures that it kept."""
    found = json.loads((output.directory / figures.NAME).read_text(encoding="utf-8"))
    return {str(name): str(value) for name, value in found.items()}


def sbom(output: Output) -> Figures:
    """The components of the bill of materials, and how many there are of each licence."""
    path = output.directory / "sbom.cdx.json"
    components = json.loads(path.read_text(encoding="utf-8"))["components"]
    licences = [_licence(component) for component in components]
    missing = [one["name"] for one, licence in zip(components, licences, strict=True) if not licence]
    counts = {"components": str(len(components))}
    counts |= {licence: str(licences.count(licence)) for licence in sorted({one for one in licences if one})}
    return counts | ({"no licence named": ", ".join(missing)} if missing else {})


def _licence(component: dict[str, object]) -> str:
    """The licence of a component: its SPDX name where it has one."""
    found = []
    licences = component.get("licenses")
    for choice in licences if isinstance(licences, list) else []:
        one = choice.get("license", {})
        name = choice.get("expression") or one.get("id") or one.get("name", "")
        if name and "\n" not in name:
            found.append(name.removeprefix("License :: OSI Approved :: "))
    return found[0] if found else ""


def _last(text: str, holding: str) -> str:
    """The last line that holds this text."""
    return next((line for line in reversed(text.splitlines()) if holding in line), "")


def _gate_rows(text: str) -> list[list[str]]:
    """The rows of the gate's tables in a text: ratio | server | baseline | now | change | allowed | holds?"""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [row for row in lines if row[0] != "ratio" and set(row[0]) != {"-"}]
