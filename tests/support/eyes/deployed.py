"""What deploy/ asks of the metrics: each alert, and each query of the dashboard."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "sweeperd.rules.yaml"
RULE_TESTS = sorted(RULES.parent.glob("*.test.yaml"))
DASHBOARD = ROOT / "deploy" / "grafana" / "sweeperd.json"

#: What Grafana puts in the place of its variables.
_VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$shard": ".*", "$endpoint": ".*"}


@dataclass(frozen=True)
class Query:
    """One expression, as Prometheus gets it, and the labels that are shown with its result."""

    place: str
    expression: str
    shown: frozenset[str]

    @property
    def selectors(self) -> list[str]:
        """Each series that it reads: the metric's name and what is asked of its labels."""
        return re.findall(r"\b(?:sweeperd|process)_\w+(?:\{[^}]*\})?", self.expression)

    @property
    def labels(self) -> set[str]:
        """What it groups or joins by, and what is shown."""
        grouped = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", self.expression)
        return {label.strip() for group in grouped for label in group.split(",")} - {"le"} | self.shown


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    """The panels that show something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def alert_queries() -> list[Query]:
    """What the alerts ask."""
    return [
        Query(
            rule["alert"],
            rule["expr"],
            frozenset(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))),
        )
        for rule in alerts()
    ]


def dashboard_queries() -> list[Query]:
    """What the panels ask."""
    return [
        Query(
            panel["title"], filled_in(target["expr"]), frozenset(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        )
        for panel in panels()
        for target in panel["targets"]
    ]


def variable_queries() -> dict[str, tuple[str, str]]:
    """What fills the dashboard's variables: name -> selector and label."""
    found = {}
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert match, variable["name"]
            found[variable["name"]] = filled_in(match[1]), match[2]
    return found


def filled_in(expression: str) -> str:
    """With something in the place of Grafana's variables."""
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression
