"""
Adds `--sweeperd-config` to pytest, which proves each kind. A `conftest.py` enables the plugin:

    pytest_plugins = ["sweeperd.kit.pytest_plugin"]
"""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sweeperd", "kinds of sweeperd")
    group.addoption("--sweeperd-config", metavar="FILE", help="Prove each kind of these settings on a temporary Redis.")
    samples = {"metavar": "KIND=FILE", "help": "JSON with entries to prove a kind with. May be repeated."}
    group.addoption("--sweeperd-samples", action="append", default=[], **samples)


def pytest_configure(config: pytest.Config) -> None:
    if file := settings_file(config):
        if not file.exists():
            raise pytest.UsageError(f"--sweeperd-config: there is no {file}")
        if str(file) not in config.args:
            config.args.append(str(file))
        config.pluginmanager.import_plugin("sweeperd.kit.pytest_kinds")


def settings_file(config: pytest.Config) -> Path | None:
    file = config.getoption("--sweeperd-config")
    return (config.invocation_params.dir / file).resolve() if file else None
