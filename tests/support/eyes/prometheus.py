"""A Prometheus for the tests: on a free port of loopback, with data of its own, and what its HTTP API says."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.harness import eventually
from tests.support.servers import free_port

needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed")


class Prometheus:
    """Scrapes this target each `interval` while the `with` block lasts, and evaluates these rules as often."""

    def __init__(self, target: str, directory: Path, rules: str, interval: str = "200ms") -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        self._directory = directory
        (directory / "rules.yaml").write_text(rules)
        times = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
        scrapes = [{"job_name": "sweeperd", "static_configs": [{"targets": [target]}]}]
        (directory / "prometheus.yaml").write_text(
            yaml.safe_dump({"global": times, "rule_files": ["rules.yaml"], "scrape_configs": scrapes})
        )

    def __enter__(self) -> "Prometheus":
        with (self._directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._directory / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={self._directory / 'data'}",
                    f"--web.listen-address={self._url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )
        eventually(self._ready)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now; fails where Prometheus does not understand it."""
        found: list[dict[str, Any]] = self._ask("query", {"query": expression})["result"]
        return found

    def series(self, selector: str) -> list[dict[str, str]]:
        """The labels of each series that was ever scraped and that the selector means."""
        found: list[dict[str, str]] = self._ask("series", {"match[]": selector})
        return found

    def firing(self) -> dict[str, dict[str, str]]:
        """The alerts that fire: name -> labels."""
        alerts = self._ask("alerts", {})["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}

    def _ask(self, what: str, parameters: dict[str, str]) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def _ready(self) -> bool:
        assert self._process.poll() is None, (self._directory / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=1):
                return True
        except OSError:
            return False
