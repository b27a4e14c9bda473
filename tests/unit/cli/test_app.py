"""The command line: options, exit codes, and what goes to which output."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from sweeperd import __version__
from sweeperd.cli import main
from tests.support.servers import free_port

pytestmark = pytest.mark.usefixtures("bare_environment", "log_restored")

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in a directory without any configuration."""
    monkeypatch.chdir(tmp_path)

    def invoked(*arguments: str, **environment: str) -> Result:
        return CliRunner().invoke(main, arguments, env={"SWEEPERD_LOG__FORMAT": "text"} | environment)

    return invoked


def test_version(run: Run) -> None:
    result = run("--version")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"sweeperd, version {__version__}\n"


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(option: str, run: Run) -> None:
    result = run(option)
    assert (result.exit_code, result.stderr) == (0, "")
    options = {option for parameter in main.params for option in parameter.opts}
    assert [told for told in (*options, "--help", "demo", "Exit codes: 0") if told not in result.stdout] == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--twice"], "No such option"),
        (["status", "--config", "a.toml"], "before the subcommand: sweeperd --config ... status"),
        (["endpoints", "pause", "x", "--log-level=debug"], "sweeperd --log-level ... endpoints pause"),
        (["endpoints", "--role", "all", "list"], "sweeperd --role ... endpoints"),
        (["status", "--cofig", "a.toml"], "No such option"),
        *(
            (line.split(), f"{line.split()[0]} goes with --once")
            for line in ("--json", "--json demo", "--metrics-file a.prom", "--metrics-push http://gateway:9091")
        ),
        (["--exit-zero-on-pending"], "--exit-zero-on-pending goes with --once"),
        (["--delivery-limit", "5m"], "--delivery-limit goes with --once"),
        (["--once", "--delivery-limit", "soon"], "'soon'"),
        (["--once", "--delivery-limit", "0s"], "'0s'"),
        (["--once", "demo"], "--once"),
        (["nonsense"], "'nonsense'"),
        (["statsu"], "did you mean status"),
        (["status", "--interval", "3"], "--watch"),
        (["expired", "--json", "--format", "csv"], "--format csv"),
        (["--log-level", "loud"], "'loud'"),
        (["--log-format", "xml"], "'xml'"),
        (["--config"], "--config"),
        (["--config", "."], "directory"),
    ],
)
def test_bad_options(arguments: list[str], problem: str, run: Run) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in result.stderr


MODES = pytest.mark.parametrize("mode", [[], ["--once"], ["--once", "--json"]], ids=" ".join)


@MODES
def test_bad_configuration_has_a_line_for_each_problem(mode: list[str], run: Run, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text("colour = 1\n[sweep]\nbatch_size = 0\ninterval = '5'\n")
    result = run("--config", str(path), *mode)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    for key in ("colour", "sweep.batch_size", "sweep.interval"):
        assert [line for line in lines if line.startswith(f"sweeperd: {path}: {key}: ") and not line.endswith(": ")]
    assert len(lines) == 3


@MODES
def test_a_bad_variable(mode: list[str], run: Run) -> None:
    result = run(*mode, SWEEPERD_SWEEP__BATCHSIZE="5")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "did you mean SWEEPERD_SWEEP__BATCH_SIZE" in result.stderr


@MODES
def test_the_end_of_a_start_is_json_if_the_log_is(mode: list[str], run: Run) -> None:
    result = run("--config", "gone.toml", *mode, SWEEPERD_LOG__FORMAT="json")
    line = json.loads(result.stderr)
    assert (result.exit_code, result.stdout, line["level"]) == (2, "", "ERROR")
    for option in ([], ["--log-format", "text"]):
        text = run("--config", "gone.toml", *option, *mode, SWEEPERD_LOG__FORMAT="json" if option else "text")
        assert (text.exit_code, text.stdout, text.stderr) == (2, "", f"sweeperd: {line['message']}\n")
        assert line["message"].startswith("gone.toml: ")


def test_the_file_in_the_working_directory_is_found(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("colour = 1")
    assert "config.toml: colour" in run("--once").stderr
    (tmp_path / "named.toml").write_text("size = 1")
    assert "named.toml: size" in run("--once", SWEEPERD_CONFIG="named.toml").stderr


@pytest.mark.parametrize("mode", [["--once"], ["--once", "--json"]], ids=" ".join)
def test_redis_is_not_there(mode: list[str], run: Run) -> None:
    result = run(*mode, SWEEPERD_REDIS__URL=f"redis://:hush@127.0.0.1:{free_port()}/0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("sweeperd: redis is not available: redis://127.0.0.1:")
    assert result.stderr.count("\n") == 1
    assert "hush" not in result.stderr


def test_the_port_is_taken(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(SWEEPERD_HTTP__LISTEN=address)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert f"http.listen: cannot listen on {address}" in result.stderr


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        (
            "sweeperd.cli.app",
            ("sweeperd.runtime.once", "sweeperd.runtime.service", "requests", "prometheus_client", "rich"),
        ),
        ("sweeperd.cli.once", ("sweeperd.runtime.service", "sweeperd.ops", "sweeperd.web", "apscheduler", "rich")),
        ("sweeperd.runtime.service", ("sweeperd.runtime.once", "sweeperd.demo", "rich")),
        ("sweeperd.runtime.process", ("sweeperd.cli", "sweeperd.config", "click", "pydantic", "redis", "threading")),
    ],
    ids=["any command", "once", "daemon", "before anything else"],
)
def test_nobody_waits_for_the_import_of_what_he_does_not_run(module: str, spared: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert module in done.stdout.split()
    assert not [name for name in done.stdout.split() if name in spared]


#: Commands that only read: they send no webhook.
READ_ONLY = ["status", "show", "expired", "check", "reconcile", "actions", "quarantine list", "dead-letters list"]


def test_a_command_that_sends_nothing_imports_little() -> None:
    lines = [f"main([*{line.split()!r}, '--help'], standalone_mode=False)" for line in READ_ONLY]
    program = "\n".join(["import sys", "from sweeperd.cli import main", *lines, "print(*sys.modules, file=sys.stderr)"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("Usage:") == len(READ_ONLY)
    modules = set(done.stderr.split())
    assert {f"sweeperd.cli.{name}" for name in ("check", "status", "quarantine", "reconcile")} <= modules
    spared = {"requests", "prometheus_client", "apscheduler", "rich", "html", "urllib.request"}
    assert not {*spared, "sweeperd.metrics", "sweeperd.tracing"} & modules


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--version"], {}),
        (["--help"], {}),
        ([], {"_SWEEPERD_COMPLETE": "bash_source"}),
        ([], {"_SWEEPERD_COMPLETE": "bash_complete", "COMP_WORDS": "sweeperd st", "COMP_CWORD": "1"}),
        ([], {"_SWEEPERD_COMPLETE": "bash_complete", "COMP_WORDS": "sweeperd --", "COMP_CWORD": "1"}),
    ],
    ids=["version", "help", "completion", "commands", "options"],
)
def test_what_needs_no_settings_imports_neither_them_nor_redis(arguments: list[str], variables: dict[str, str]) -> None:
    done = imported(arguments, variables)
    assert done.returncode == 0, done.stderr
    heavy = {"redis", "pydantic", "rich", "prometheus_client", "opentelemetry", "sweeperd.config", "sweeperd.metrics"}
    assert not heavy & set(done.stderr.split())


def imported(arguments: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A run of the command that ends with the imported modules on standard error."""
    program = "\n".join(
        [
            "import atexit, sys",
            "atexit.register(lambda: print(*sys.modules, file=sys.stderr))",
            f"sys.argv = ['sweeperd', *{arguments!r}]",
            "from sweeperd.__main__ import run",
            "run()",
        ]
    )
    env = os.environ | variables
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.stdout
    return done


@pytest.mark.parametrize(
    ("arguments", "spared"),
    [
        (["endpoints", "keygen"], {"redis", "pydantic", "opentelemetry", "requests", "rich", "sweeperd.config"}),
        (
            ["status"],
            {
                *("opentelemetry", "psutil", "requests", "rich", "prometheus_client", "apscheduler"),
                *("sweeperd.metrics", "sweeperd.delivery", "sweeperd.runtime.service", "sweeperd.ops.status_report"),
                *("sweeperd.ops.quarantine", "sweeperd.ops.reconcile.report", "sweeperd.ops.reconcile.subjects"),
            },
        ),
    ],
    ids=["keygen", "status"],
)
def test_a_command_imports_only_what_it_runs(arguments: list[str], spared: set[str]) -> None:
    # It ends with 1 if it needs a Redis, since there is none.
    done = imported(arguments, {"SWEEPERD_REDIS__URL": "redis://127.0.0.1:1", "SWEEPERD_CONFIG": os.devnull})
    assert done.returncode == int("redis" not in spared)
    modules = set(done.stderr.splitlines()[-1].split())
    assert "sweeperd.webhook_keys" in modules
    assert not spared & modules
    if arguments == ["status"]:
        assert "redis" in modules


def test_the_help_of_each_command_is_in_the_list() -> None:
    shown = CliRunner().invoke(main, ["--help"], terminal_width=200).output
    context = click.Context(main)
    for name in main.list_commands(context):
        assert re.search(rf"^  {name} +[A-Z].*[.?]$", shown, re.MULTILINE), name
        assert main.get_command(context, name) is not None
