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


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("\ufeff[sweep]\nbatch_size = 1\n", "begins with a byte order mark", ""),
        (f"[sweep]\n# c\nbatch_size = {'9' * 5000}\n", "sweep.batch_size", "too many digits"),
        (f"[events]\ngroups = [\n{'9' * 5000}\n]", "events.groups", "too many digits"),
        (f"[[kinds]]\nname = 'a'\n[events]\ngroups = {'[' * 3000}{']' * 3000}\n", "events.groups", "nested too deeply"),
        (f"x = {'{a=' * 3000}1{'}' * 3000}", "x", "nested too deeply"),
    ],
    ids=["mark", "digits", "digits in a list", "lists", "tables"],
)
def test_a_value_that_python_cannot_hold(text: str, key: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load(path, {})
    (line,) = problems(error)
    assert line.startswith(f"{path}: {key}")
    assert problem in line


KIND = "[[kinds]]\nname = 'a'\nindex = 'i'\nkey = 'k:{id}'\ndeadline = 'd'\nretention = '0s'\n"


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        (KIND + "unless = 5", ["kinds[0].unless: must be text or a list or a table"]),
        (KIND + "unless = ['a', 1]", ["kinds[0].unless[1]: must be text"]),
        (KIND + "unless = [[['a']]]", ["kinds[0].unless[0]: must be text"]),
        (KIND + "unless = { a = 1 }", ["kinds[0].unless.a: must be text"]),
        (KIND + "give_back = [5]", ["kinds[0].give_back[0]: must be text or a list"]),
        (KIND + "give_back = [['HINCRBY', 1]]", ["kinds[0].give_back[0][1]: must be text"]),
        (KIND + "sums = [{ key = 'a' }]", ["kinds[0].sums[0].field: is missing", "kinds[0].sums[0].of: is missing"]),
        (KIND + "max_writes = 1.5", ["kinds[0].max_writes: must be a whole number"]),
        (KIND + "protected = 5", ['kinds[0].protected: must be "quarantine" or "expire"']),
        (ENDPOINT + "max_rate = 0", ["webhooks.endpoints[0].max_rate: must be greater than 0"]),
        (ENDPOINT + "max_rate = nan", ["webhooks.endpoints[0].max_rate: must be a number"]),
        (ENDPOINT + "headers = { a = { b = 1 } }", ["webhooks.endpoints[0].headers.a: must be text"]),
        (ENDPOINT + 'secrets = ["file:a\\u0000b"]', None),
        (ENDPOINT + 'ca = "a\\u0000b"', None),
        (
            "[events]\ngroups = " + json.dumps([str(n) for n in range(65)]),
            ["events.groups: has 65 items; up to 64 are allowed"],
        ),
    ],
)
def test_what_the_validator_says_is_said_in_our_words(toml: str, expected: list[str] | None, config: Load) -> None:
    with pytest.raises(ConfigError) as error:
        config(toml)
    lines = [line.partition("config.toml: ")[2] for line in problems(error)]
    assert lines == expected if expected else "its name holds a NUL" in lines[0]


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
        ("SWEEPERD_SWEEEP__INTERVAL", "5s", "SWEEPERD_SWEEEP", "unknown key; did you mean SWEEPERD_SWEEP?"),
        ("SWEEPERD_REDIS__ULR", "x", "SWEEPERD_REDIS__ULR", "unknown key; did you mean SWEEPERD_REDIS__URL?"),
        ("SWEEPERD_SWEEP__BATCH_SIZE", "many", "SWEEPERD_SWEEP__BATCH_SIZE", "must be a whole number"),
        ("SWEEPERD_SWEEP__BATCH_SIZE", "0", "SWEEPERD_SWEEP__BATCH_SIZE", "must be at least 1"),
        ("SWEEPERD_SWEEP__BATCH_SIZE__X", "0", "SWEEPERD_SWEEP__BATCH_SIZE", "must be a whole number"),
        ("SWEEPERD_SWEEP__INTERVAL", "5", "SWEEPERD_SWEEP__INTERVAL", DURATION),
        ("SWEEPERD_METRICS__TENANT_LABEL", "maybe", "SWEEPERD_METRICS__TENANT_LABEL", "must be true or false"),
        ("SWEEPERD_REDIS__URL", "http://x", "SWEEPERD_REDIS__URL", NO_REDIS_URL),
        ("SWEEPERD_SHARDS", "eu", "SWEEPERD_SHARDS", "is not JSON"),
        ("SWEEPERD_SHARDS", "[" * 100_000, "SWEEPERD_SHARDS", "nested too deeply"),
        ("SWEEPERD_SHARDS", "9" * 5000, "SWEEPERD_SHARDS", "too many digits"),
        ("SWEEPERD_SWEEP__BATCH_SIZE", "9" * 5000, "SWEEPERD_SWEEP__BATCH_SIZE", "must be a whole number"),
        ("SWEEPERD_SHARDS", '{"name": "x"}', "SWEEPERD_SHARDS", "must be a list"),
        ("SWEEPERD_SHARDS", '[{"name": "x"}]', "SWEEPERD_SHARDS[0].url: ", "is missing"),
        ("SWEEPERD_SHARDS", '[{"name": "x", "url": "redis://a", "prefx": 1}]', "SWEEPERD_SHARDS[0].prefx", "prefix?"),
        ("SWEEPERD_WEBHOOKS__ENDPOINTS", "[{", "SWEEPERD_WEBHOOKS__ENDPOINTS", "is not JSON"),
        ("SWEEPERD_WEBHOOKS__ENDPOINTS", '{"name": "x"}', "SWEEPERD_WEBHOOKS__ENDPOINTS", "must be a list"),
        ("SWEEPERD_WEBHOOKS__ENDPOINTS", '[{"name": "x"}]', "SWEEPERD_WEBHOOKS__ENDPOINTS[0].url: ", "is missing"),
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


@pytest.mark.parametrize("variable", ["SWEEPERD_HTTP__PORT", "SWEEPERD_WEBHOOKS__BATCH_SIZE"])
def test_a_variable_that_is_like_no_other_gets_no_proposal(variable: str, config: Load) -> None:
    with pytest.raises(ConfigError) as error:
        config("", {variable: "5"})
    assert problems(error) == [f"environment: {variable}: unknown key"]


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
