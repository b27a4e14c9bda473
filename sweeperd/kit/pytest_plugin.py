"""
Runs each property on each kind under pytest. A `conftest.py` names the plugin:

    pytest_plugins = ["sweeperd.kit.pytest_plugin"]
"""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("sweeperd", "kinds of sweeperd")
    group.addoption(
        "--sweeperd-config", metavar="FILE", help="Prove each kind of these settings on a Redis of its own."
    )
    group.addoption(
        "--sweeperd-samples",
        metavar="KIND=FILE",
        action="append",
        default=[],
        help="Entries to prove a kind with, JSON. May be repeated.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The settings file becomes a file with tests."""
    if file := settings_file(config):
        if not file.exists():
            raise pytest.UsageError(f"--sweeperd-config: there is no {file}")
        if str(file) not in config.args:
            config.args.append(str(file))
        # Only a run with the option needs the kit.
        config.pluginmanager.import_plugin("sweeperd.kit.pytest_kinds")


def settings_file(config: pytest.Config) -> Path | None:
    """The file of the option; None without the option."""
    file = config.getoption("--sweeperd-config")
    return (config.invocation_params.dir / file).resolve() if file else None
