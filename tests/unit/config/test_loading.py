"""Tests where settings come from: the file, its places, and the environment."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from sweeperd.config import CONFIG_PLACES, Settings, load
from sweeperd.errors import ConfigError
from tests.support.fixtures import Load
from tests.unit.config.shared import DEFAULTS, DURATION, ENDPOINT, NO_REDIS_URL, flat, problems


def test_no_file_at_all(tmp_path: Path) -> None:
    assert load(None, {}, places=[tmp_path / "nowhere.toml"]) == Settings()


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"[sweep\n", "is not TOML: "), (b"a = 1\na = 2", "is not TOML: "), (b'[keys]\nprefix = "\xff"', "is not UTF-8")],
)
def test_a_file_that_cannot_be_parsed(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load(path, {})
    assert str(error.value).startswith(f"{path}: {problem}")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file"):
        load(tmp_path / "missing.toml", {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, {})


# ---- where the file is searched


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    system = tmp_path / "etc.toml"
    assert (Path("config.toml"), Path("/etc/sweeperd/config.toml")) == CONFIG_PLACES
    named, given = tmp_path / "named.toml", tmp_path / "given.toml"

    def found(path: Path | None = None, **environment: str) -> str:
        return load(path, environment, places=[CONFIG_PLACES[0], system]).keys.prefix

    assert found() == ""
    system.write_text("keys.prefix = 'system'")
    assert found() == "system"
    (tmp_path / "config.toml").write_text("keys.prefix = 'here'")
    assert found() == "here"
    named.write_text("keys.prefix = 'named'")
    assert found(SWEEPERD_CONFIG=str(named)) == "named"
    assert found(SWEEPERD_CONFIG="") == "here"
    given.write_text("keys.prefix = 'given'")
    assert found(given, SWEEPERD_CONFIG=str(named)) == "given"


def test_a_file_that_is_named_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").touch()
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read"):
        load(None, {"SWEEPERD_CONFIG": "gone.toml"})


# ---- the environment


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("SWEEPERD_REDIS__URL", "rediss://cache:6380/3", "redis.url", "rediss://cache:6380/3"),
        ("SWEEPERD_REDIS__URL", "unix:///run/redis.sock", "redis.url", "unix:///run/redis.sock"),
        ("SWEEPERD_KEYS__PREFIX", "{tenant-a}:", "keys.prefix", "{tenant-a}:"),
        ("SWEEPERD_SWEEP__BATCH_SIZE", "7", "sweep.batch_size", 7),
        ("SWEEPERD_SWEEP__INTERVAL", "250ms", "sweep.interval", timedelta(milliseconds=250)),
        ("SWEEPERD_SHUTDOWN_GRACE", "3s", "shutdown_grace", timedelta(seconds=3)),
        ("SWEEPERD_METRICS__TENANT_LABEL", "false", "metrics.tenant_label", False),
        ("SWEEPERD_METRICS__TENANT_LABEL", "0", "metrics.tenant_label", False),
        ("SWEEPERD_METRICS__TENANT_LABEL", "true", "metrics.tenant_label", True),
        ("SWEEPERD_HTTP__LISTEN", "", "http.listen", ""),
        ("SWEEPERD_HTTP__HOSTS", '["sweeperd"]', "http.hosts", ["sweeperd"]),
        ("SWEEPERD_RECONCILE__INTERVAL", "", "reconcile.interval", None),
        ("SWEEPERD_LOG__FORMAT", "json", "log.format", "json"),
    ],
)
def test_environment(variable: str, text: str, key: str, value: object, config: Load) -> None:
    assert dict(flat(config("", {variable: text}))) == DEFAULTS | {key: value}


def test_every_key_can_be_overridden(config: Load) -> None:
    others = {str: "text", int: "9", float: "0.9", timedelta: "9s", bool: "false"}
    special = {
        "redis.url": "redis://other:1/2",
        "sweep.memory_limit": "120%",
        "webhooks.redelivery_max": "2h",
        "events.balances": "true",
        "cycles.enabled": "true",
        "cycles.spike_factor": "9",
        "metrics.tenant_length": "99",
        "http.listen": "other:1",
        "http.runbook": "https://wiki.internal/runbook",
        "http.entries": "true",
        "log.level": "error",
        "log.format": "text",
    }
    for key, value in DEFAULTS.items():
        if isinstance(value, list):
            continue
        variable = "SWEEPERD_" + key.replace(".", "__").upper()
        changed = dict(flat(config("", {variable: special.get(key) or others[type(value)]})))
        assert {name for name in changed if changed[name] != DEFAULTS[name]} == {key}


def test_endpoints_from_the_environment(config: Load) -> None:
    endpoints = [{"name": "audit", "url": "http://audit/", "secrets": ["env:AUDIT_SECRET"], "tenants": ["acme"]}]
    environment = {"SWEEPERD_WEBHOOKS__ENDPOINTS": json.dumps(endpoints), "AUDIT_SECRET": "s3"}
    (endpoint,) = config(ENDPOINT, environment).webhooks.endpoints
    assert (endpoint.name, endpoint.tenants) == ("audit", ["acme"])
    assert endpoint.secrets[0].get_secret_value() == "s3"


def test_environment_goes_before_the_file(config: Load) -> None:
    toml = "[sweep]\nbatch_size = 5\npipeline_depth = 6"
    sweep = config(toml, {"SWEEPERD_SWEEP__BATCH_SIZE": "7"}).sweep
    assert (sweep.batch_size, sweep.pipeline_depth) == (7, 6)


@pytest.mark.parametrize(
    ("variable", "text", "named", "problem"),
    [
        (
            "SWEEPERD_SWEEP__BATCHSIZE",
            "5",
            "SWEEPERD_SWEEP__BATCHSIZE",
            "unknown key; did you mean SWEEPERD_SWEEP__BATCH_SIZE?",
        ),
        ("SWEEPERD_SWEEEP__INTERVAL", "5s", "SWEEPERD_SWEEEP", "unknown key"),
        ("SWEEPERD_SWEEP__BATCH_SIZE", "many", "SWEEPERD_SWEEP__BATCH_SIZE", "valid integer"),
        ("SWEEPERD_SWEEP__BATCH_SIZE", "0", "SWEEPERD_SWEEP__BATCH_SIZE", "greater than or equal to 1"),
        ("SWEEPERD_SWEEP__BATCH_SIZE__X", "0", "SWEEPERD_SWEEP__BATCH_SIZE", "valid integer"),
        ("SWEEPERD_SWEEP__INTERVAL", "5", "SWEEPERD_SWEEP__INTERVAL", DURATION),
        ("SWEEPERD_METRICS__TENANT_LABEL", "maybe", "SWEEPERD_METRICS__TENANT_LABEL", "valid boolean"),
        ("SWEEPERD_REDIS__URL", "http://x", "SWEEPERD_REDIS__URL", NO_REDIS_URL),
        ("SWEEPERD_SHARDS", "eu", "SWEEPERD_SHARDS", "is not JSON"),
        ("SWEEPERD_SHARDS", '{"name": "x"}', "SWEEPERD_SHARDS", "valid list"),
        ("SWEEPERD_SHARDS", '[{"name": "x"}]', "SWEEPERD_SHARDS[0].url: ", "Field required"),
        ("SWEEPERD_SHARDS", '[{"name": "x", "url": "redis://a", "prefx": 1}]', "SWEEPERD_SHARDS[0].prefx", "prefix?"),
        ("SWEEPERD_WEBHOOKS__ENDPOINTS", "[{", "SWEEPERD_WEBHOOKS__ENDPOINTS", "is not JSON"),
        ("SWEEPERD_WEBHOOKS__ENDPOINTS", '{"name": "x"}', "SWEEPERD_WEBHOOKS__ENDPOINTS", "valid list"),
        ("SWEEPERD_WEBHOOKS__ENDPOINTS", '[{"name": "x"}]', "SWEEPERD_WEBHOOKS__ENDPOINTS[0].url: ", "Field required"),
    ],
)
def test_an_error_in_the_environment_names_the_variable(
    variable: str, text: str, named: str, problem: str, config: Load
) -> None:
    with pytest.raises(ConfigError) as error:
        config("", {variable: text})
    (line,) = problems(error)
    assert line.startswith(f"environment: {named}")
    assert problem in line


def test_a_section_and_a_key_of_it(config: Load) -> None:
    with pytest.raises(ConfigError, match=r"^environment: SWEEPERD_SWEEP"):
        config("", {"SWEEPERD_SWEEP": "5", "SWEEPERD_SWEEP__INTERVAL": "5s"})


def test_variables_of_a_cluster_are_ignored(config: Load) -> None:
    environment = {
        "SWEEPERD_SERVICE_HOST": "10.0.0.1",
        "SWEEPERD_PORT": "tcp://10.0.0.1:9464",
        "SWEEPERD_PORT_9464_TCP_ADDR": "10.0.0.1",
        "SWEEP__BATCH_SIZE": "5",
    }
    assert config("", environment) == Settings()
