"""
`python -m tests.support.prometheusrule`: write the alert rules as a PrometheusRule for the Prometheus operator. Run it
after a change of deploy/prometheus/sweeperd.rules.yaml; a test compares the two files.
"""

import textwrap
from pathlib import Path

from tests.support.eyes.deployed import ROOT, RULES

MANIFEST = ROOT / "deploy" / "k8s" / "components" / "prometheusrule" / "prometheusrule.yaml"
HEAD = """\
# The rules of deploy/prometheus/sweeperd.rules.yaml, written by `python -m tests.support.prometheusrule`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: sweeperd
  labels:
    app.kubernetes.io/name: sweeperd
spec:
"""


def manifest(rules: Path = RULES) -> str:
    """The text of the PrometheusRule with these rules."""
    return HEAD + textwrap.indent(rules.read_text(encoding="utf-8"), "  ", lambda line: bool(line.strip()))


if __name__ == "__main__":
    MANIFEST.write_text(manifest(), encoding="utf-8")
