"""The alert rules, tested by promtool, and the text of each alert; the dashboard's shape."""

import itertools
import re
import shutil
import subprocess

import pytest
import yaml

from tests.support.eyes.deployed import RULE_TESTS, RULES, alerts, dashboard, panels

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")


def promtool(*arguments: object) -> None:
    done = subprocess.run(
        ["promtool", *map(str, arguments)], cwd=RULES.parent, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_understands_the_rules() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


@pytest.mark.slow
@needs_promtool
@pytest.mark.parametrize("file", RULE_TESTS, ids=lambda file: file.name)
def test_the_cases_of_the_alerts_hold(file: object) -> None:
    promtool("test", "rules", file)


def test_each_alert_has_a_case_that_fires_it_and_one_that_does_not() -> None:
    fires: set[str] = set()
    silent: set[str] = set()
    for file in RULE_TESTS:
        for case in yaml.safe_load(file.read_text())["tests"]:
            (name,) = {check["alertname"] for check in case["alert_rule_test"]}
            assert case["name"].startswith(f"{name} ")
            for check in case["alert_rule_test"]:
                (fires if check["exp_alerts"] else silent).add(name)
    assert fires == silent == {rule["alert"] for rule in alerts()}


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_each_alert_says_what_a_person_needs(rule: dict[str, dict[str, str]]) -> None:
    name, annotations = str(rule["alert"]), rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert len(annotations["summary"]) < 80
    assert annotations["runbook_url"] == f"https://sweeperd.github.io/sweeperd/latest/runbook/#{name.lower()}"
    # A threshold without its reason is never changed, or changed at random.
    assert re.search(rf"- alert: {name}\n +# ", RULES.read_text())


def test_every_panel_has_its_place() -> None:
    board = dashboard()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for one, other in itertools.combinations([panel["gridPos"] for panel in board["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_every_panel_says_what_it_shows(panel: dict[str, object]) -> None:
    assert panel["description"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["fieldConfig"]["defaults"]["unit"]  # type: ignore[index]
