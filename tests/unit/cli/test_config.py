"""`sweeperd config`, its schema, and `sweeperd init`."""

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from sweeperd.cli import main
from sweeperd.config import load
from tests.docs.generate import SCHEMAS
from tests.support.documents import ROOT
from tests.unit.config.test_example import turned_on

pytestmark = pytest.mark.usefixtures("bare_environment", "log_restored")
HUSH = "hush-hush"


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


def schema() -> Any:
    result = run("config", "schema")
    assert result.exit_code == 0
    return json.loads(result.stdout)


# ---- the effective settings


def test_each_setting_with_its_source_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        f"""
        redis = {{ url = "redis://u:{HUSH}@cache:6380/3" }}
        sweep = {{ batch_size = 5, interval = "90s" }}
        webhooks.max_age = "9h"
        [[webhooks.endpoints]]
        name = "billing"
        url = "https://u:{HUSH}@billing.example.com/{HUSH}"
        secrets = ["{HUSH}", "file:missing"]
        headers = {{ X-Key = "{HUSH}" }}
        proxy = "env:MISSING"
        timeout = "3s"
        """
    )
    given = {"SWEEPERD_CONFIG": str(path), "SWEEPERD_SWEEP__BATCH_SIZE": "7", "SWEEPERD_HTTP__HOSTS": '["a"]'}
    result = run("config", "--json", **given)
    assert HUSH not in result.output + run("config", **given).output
    document = json.loads(result.stdout)
    jsonschema.validate(document, json.loads((SCHEMAS / "config-print.schema.json").read_text()))
    found = {each["key"]: (each["value"], each["source"]) for each in document["settings"]}
    assert document["file"] == str(path)
    expected = {
        "redis.url": ("redis://cache:6380/3", "file"),
        "redis.socket_timeout": ("5s", "default"),
        "sweep.batch_size": (7, "environment"),
        "sweep.interval": ("90s", "file"),
        "sweep.memory_limit": ("110%", "default"),
        "reconcile.interval": ("1d", "default"),
        "http.hosts": (["a"], "environment"),
        "webhooks.endpoints[0].url": ("https://billing.example.com/…", "file"),
        "webhooks.endpoints[0].secrets": (["**********", "file:missing"], "file"),
        "webhooks.endpoints[0].headers": ({"X-Key": "**********"}, "file"),
        "webhooks.endpoints[0].proxy": ("**********", "file"),
        "webhooks.endpoints[0].start": ("now", "default"),
        "webhooks.endpoints[0].timeout": ("3s", "file"),
        "webhooks.endpoints[0].max_age": ("9h", "inherited"),
        "webhooks.endpoints[0].attempts": (3, "inherited"),
        "webhooks.endpoints[0].redelivery_max": ("1h", "inherited"),
    }
    assert {key: found[key] for key in expected} == expected


def test_a_list_of_the_environment_has_it_as_its_source() -> None:
    kinds = json.dumps([{"name": "a", "index": "i", "key": "k:{id}", "deadline": "d", "retention": "0s"}])
    document = json.loads(run("config", "--json", SWEEPERD_CONFIG="/dev/null", SWEEPERD_KINDS=kinds).stdout)
    sources = {each["key"]: each["source"] for each in document["settings"] if each["key"].startswith("kinds")}
    assert (sources["kinds[0].name"], sources["kinds[0].grace"]) == ("environment", "default")
    assert run("config", SWEEPERD_CONFIG="/dev/null", SWEEPERD_KINDS="5").exit_code == 2


# ---- the schema

SHIPPED = [*(ROOT / "examples").glob("*/config.toml"), *(ROOT / "deploy").rglob("*.toml"), ROOT / "config.example.toml"]


@pytest.mark.parametrize("path", SHIPPED, ids=str)
def test_each_file_that_is_shipped_fits(path: Path) -> None:
    jsonschema.validate(tomllib.loads(path.read_text(encoding="utf-8")), schema())


@pytest.mark.parametrize("table", ["kinds", "shards", "webhooks.endpoints"])
def test_each_example_of_a_list_fits(table: str) -> None:
    jsonschema.validate(tomllib.loads(turned_on(table)), schema())


@pytest.mark.parametrize(
    ("toml", "at"),
    [
        ("[sweep]\nbatchsize = 5", ["sweep"]),
        ("[sweep]\nbatch_size = 0", ["sweep", "batch_size"]),
        ("[sweep]\ninterval = 5", ["sweep", "interval"]),
        ('[sweep]\nmemory_limit = "5"', ["sweep", "memory_limit"]),
        ("[[kinds]]\nname = 'A'\nindex = 'i'\nkey = 'k:{id}'\ndeadline = 'd'", ["kinds", 0, "name"]),
        ("[[webhooks.endpoints]]\nname = 'a'", ["webhooks", "endpoints", 0]),
        ("[[webhooks.endpoints]]\nname = 'a'\nurl = 'http://a'\nstart = 'then'", ["webhooks", "endpoints", 0, "start"]),
    ],
)
def test_an_editor_marks_a_mistake_where_it_is(toml: str, at: list[Any]) -> None:
    (error,) = jsonschema.Draft202012Validator(schema()).iter_errors(tomllib.loads(toml))
    assert list(error.absolute_path) == at


# ---- the first settings


@pytest.mark.parametrize("kind", [True, False])
def test_init_writes_settings_that_load(kind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("init", *(["--kind"] if kind else []))
    assert result.exit_code == 0, result.output
    commands = [line for line in result.stdout.splitlines() if line.startswith("  sweeperd")]
    assert len(commands) == 3
    settings = load(Path("config.toml"), {})
    assert [each.name for each in settings.kinds] == (["seat-hold"] if kind else [])
    assert settings.reservations.enabled is not kind
    (endpoint,) = settings.webhooks.endpoints
    assert endpoint.secrets[0].get_secret_value() == Path("webhook-secret").read_text().strip()
    assert Path("webhook-secret").stat().st_mode & 0o777 == 0o600
    text = Path("config.toml").read_text()
    assert text.startswith("#:schema https://")
    jsonschema.validate(tomllib.loads(text), schema())
    assert all(f"\n# {line}" in text for line in ("The address of the receiver", "The secrets that sign"))


@pytest.mark.parametrize("there", ["config.toml", "webhook-secret"])
def test_init_overwrites_nothing(there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(there).write_text("mine")
    assert run("init").exit_code == 2
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]


def test_init_writes_the_file_that_config_names(tmp_path: Path) -> None:
    result = run("--config", str(tmp_path / "a.toml"), "init", "--reservations")
    assert result.exit_code == 0
    assert f"sweeperd --config {tmp_path / 'a.toml'} check" in result.stdout
    assert load(tmp_path / "a.toml", {}).reservations.enabled
    assert run("--config", str(tmp_path / "missing" / "a.toml"), "init").exit_code == 1
