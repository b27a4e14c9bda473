"""Settings: the defaults, every way to be wrong, the environment, and secrets that stay secret."""

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from sweeperd.config import Settings, load
from sweeperd.config import loading as config_module
from sweeperd.errors import ConfigError
from sweeperd.store.shard import open_shards
from tests.support.fixtures import Load

#: The contract's section 8.
DEFAULTS = {
    "redis.url": "redis://127.0.0.1:6379/0",
    "redis.connect_timeout": timedelta(seconds=5),
    "redis.socket_timeout": timedelta(seconds=5),
    "keys.prefix": "",
    "shards": [],
    "sweep.interval": timedelta(seconds=5),
    "sweep.grace": timedelta(0),
    "sweep.batch_size": 1000,
    "sweep.pipeline_depth": 50,
    "sweep.pipeline_depth_min": 4,
    "sweep.batch_time": timedelta(milliseconds=2),
    "sweep.max_lag": timedelta(seconds=15),
    "sweep.time_budget": timedelta(seconds=30),
    "sweep.lease_ttl": timedelta(seconds=15),
    "sweep.audit_retention": timedelta(days=30),
    "sweep.audit_spread": 0.01,
    "reservations.enabled": True,
    "kinds": [],
    "reconcile.interval": timedelta(days=1),
    "reconcile.rate": 1000,
    "events.retention": timedelta(days=30),
    "events.wait_replicas": 0,
    "events.wait_timeout": timedelta(seconds=1),
    "events.attempts_kept": 1000,
    "webhooks.concurrency": 16,
    "webhooks.one_core": "auto",
    "webhooks.timeout": timedelta(seconds=10),
    "webhooks.connect_timeout": timedelta(seconds=5),
    "webhooks.attempts": 3,
    "webhooks.backoff_initial": timedelta(seconds=1),
    "webhooks.backoff_max": timedelta(seconds=30),
    "webhooks.redelivery_initial": timedelta(seconds=30),
    "webhooks.redelivery_max": timedelta(hours=1),
    "webhooks.probe_max": timedelta(minutes=1),
    "webhooks.max_age": timedelta(hours=72),
    "webhooks.endpoints": [],
    "cycles.enabled": False,
    "cycles.spike_factor": 5,
    "cycles.spike_window": timedelta(minutes=5),
    "http.listen": "127.0.0.1:9464",
    "http.hosts": [],
    "http.runbook": "",
    "metrics.tenant_label": True,
    "metrics.tenant_limit": 1000,
    "metrics.tenant_length": 64,
    "log.level": "info",
    "log.format": "auto",
    "shutdown_grace": timedelta(seconds=25),
}

ENDPOINT = '[[webhooks.endpoints]]\nname = "billing"\nurl = "https://billing.example.com/hook"\n'


def flat(section: BaseModel, stem: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value; secrets as they are."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from flat(value, f"{stem}{name}.")
        else:
            yield stem + name, value.get_secret_value() if isinstance(value, SecretStr) else value


def problems(error: pytest.ExceptionInfo[ConfigError]) -> list[str]:
    return str(error.value).splitlines()


def test_defaults(config: Load) -> None:
    settings = config("")
    assert dict(flat(settings)) == DEFAULTS
    assert settings.http.address == ("127.0.0.1", 9464)


def test_no_file_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "CONFIG_PLACES", (tmp_path / "nowhere.toml",))
    assert load(None, {}) == Settings()


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("5s", timedelta(seconds=5)),
        ("10m", timedelta(minutes=10)),
        ("72h", timedelta(hours=72)),
        ("30d", timedelta(days=30)),
    ],
)
def test_units(text: str, duration: timedelta, config: Load) -> None:
    assert config(f'[events]\nretention = "{text}"').events.retention == duration


def test_an_endpoint(config: Load) -> None:
    settings = config(ENDPOINT + 'tenants = ["acme", "globex"]\nsecrets = ["s3"]\nheaders = {"X-Team" = "ops"}')
    (endpoint,) = settings.webhooks.endpoints
    assert (endpoint.name, endpoint.tenants) == ("billing", ["acme", "globex"])
    assert endpoint.url.get_secret_value() == "https://billing.example.com/hook"
    assert [secret.get_secret_value() for secret in endpoint.secrets] == ["s3"]
    assert {name: value.get_secret_value() for name, value in endpoint.headers.items()} == {"X-Team": "ops"}


def test_an_endpoint_with_name_and_url_alone(config: Load) -> None:
    (endpoint,) = config(ENDPOINT).webhooks.endpoints
    assert (endpoint.secrets, endpoint.tenants, endpoint.headers) == ([], None, {})


def test_reconcile_can_be_turned_off(config: Load) -> None:
    assert config('[reconcile]\ninterval = ""').reconcile.interval is None


@pytest.mark.parametrize(
    ("listen", "address"),
    [("", None), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:9464", ("::1", 9464)), (":0", ("", 0))],
)
def test_listen(listen: str, address: tuple[str, int] | None, config: Load) -> None:
    assert config(f'[http]\nlisten = "{listen}"').http.address == address


DURATION = "a duration is text such as"
NO_REDIS_URL = "not a URL of Redis"
NO_HTTP_URL = "not a URL with http:// or https:// and a host"
ASTRAY = "an @ after the host: user and password are written with %2F"


@pytest.mark.parametrize(
    ("toml", "key", "problem"),
    [
        ("colour = 1", "colour", "unknown key"),
        ("[sweeep]\ninterval = '5s'", "sweeep", "unknown key; did you mean sweep?"),
        ("[sweep]\nbatchsize = 5", "sweep.batchsize", "unknown key; did you mean batch_size?"),
        ("batch_size = 5", "batch_size", "unknown key; did you mean sweep.batch_size?"),
        *(
            (f"[[webhooks.endpoints]]\nname = 'hook'\nurl = '{url}'", "webhooks.endpoints[0].url", problem)
            for url, problem in [
                ("https://user:/sesame@one/hook", ASTRAY),
                ("https://user:7/sesame@one/hook", ASTRAY),
                ("https://user:7#sesame@one/hook", ASTRAY),
                ("https://user:?sesame@one/hook", ASTRAY),
                ("https:///hook", NO_HTTP_URL),
            ]
        ),
        (ENDPOINT + "secret = 'x'", "webhooks.endpoints[0].secret", "unknown key; did you mean secrets?"),
        ("[sweep]\nbatch_size = '1000'", "sweep.batch_size", "valid integer"),
        ("[sweep]\nbatch_size = true", "sweep.batch_size", "valid integer"),
        ("[sweep]\nbatch_size = 10.5", "sweep.batch_size", "valid integer"),
        ("[sweep]\nbatch_size = 0", "sweep.batch_size", "greater than or equal to 1"),
        ("[sweep]\nbatch_size = -1", "sweep.batch_size", "greater than or equal to 1"),
        ("[sweep]\npipeline_depth = 0", "sweep.pipeline_depth", "greater than or equal to 1"),
        ("[sweep]\npipeline_depth_min = 0", "sweep.pipeline_depth_min", "greater than or equal to 1"),
        ("[sweep]\npipeline_depth_min = 51", "sweep", "pipeline_depth_min is greater than pipeline_depth"),
        ("[sweep]\nbatch_time = '0ms'", "sweep.batch_time", "longer than nothing"),
        ("[sweep]\ninterval = 5", "sweep.interval", DURATION),
        ("[sweep]\ninterval = '5'", "sweep.interval", DURATION),
        ("[sweep]\ninterval = '5 s'", "sweep.interval", DURATION),
        ("[sweep]\ninterval = '5w'", "sweep.interval", DURATION),
        ("[sweep]\ninterval = '0.5s'", "sweep.interval", DURATION),
        ("[sweep]\ninterval = ''", "sweep.interval", DURATION),
        ("[sweep]\ninterval = '-5s'", "sweep.interval", DURATION),
        ("[sweep]\ninterval = '0s'", "sweep.interval", "must be longer than nothing"),
        ("[sweep]\naudit_spread = -0.1", "sweep.audit_spread", "greater than or equal to 0"),
        ("[sweep]\naudit_spread = 1.1", "sweep.audit_spread", "less than or equal to 1"),
        ("[sweep]\naudit_spread = nan", "sweep.audit_spread", "finite number"),
        ("[sweep]\naudit_retention = '9999999999d'", "sweep.audit_retention", DURATION),
        ("[sweep]\nlease_ttl = 15", "sweep.lease_ttl", DURATION),
        ("[sweep]\nlease_ttl = '0s'", "sweep.lease_ttl", 'must be from "1s" to "10m"'),
        ("[sweep]\nlease_ttl = '999ms'", "sweep.lease_ttl", 'must be from "1s" to "10m"'),
        ("[sweep]\nlease_ttl = '11m'", "sweep.lease_ttl", 'must be from "1s" to "10m"'),
        ("sweep = 5", "sweep", "valid dictionary"),
        ("[keys]\nprefix = 5", "keys.prefix", "valid string"),
        ("[metrics]\ntenant_label = 'yes'", "metrics.tenant_label", "valid boolean"),
        ("[metrics]\ntenant_label = 1", "metrics.tenant_label", "valid boolean"),
        ("[log]\nlevel = 'loud'", "log.level", "must be 'debug', 'info', 'warning' or 'error'"),
        ("[log]\nformat = 'xml'", "log.format", "must be 'auto', 'text' or 'json'"),
        ("[reconcile]\ninterval = '0s'", "reconcile.interval", "longer than nothing"),
        ("[reconcile]\ninterval = 'daily'", "reconcile.interval", "a duration is text"),
        ("[reconcile]\nrate = 0", "reconcile.rate", "greater than or equal to 1"),
        ("[http]\nlisten = '9464'", "http.listen", 'must be "host:port"'),
        ("[http]\nlisten = '127.0.0.1:99999'", "http.listen", "a port is a number from 0 (any free one) to 65535"),
        ("[http]\nlisten = 'localhost:http'", "http.listen", 'must be "host:port"'),
        ("[http]\nhosts = ['sweeperd:9464']", "http.hosts[0]", "match pattern"),
        ("[http]\nlisten = 'localhost:65536'", "http.listen", "a port is a number from 0 (any free one) to 65535"),
        ("[redis]\nurl = ''", "redis.url", NO_REDIS_URL),
        ("[redis]\nurl = 'http://127.0.0.1'", "redis.url", NO_REDIS_URL),
        ("[redis]\nurl = '127.0.0.1:6379'", "redis.url", NO_REDIS_URL),
        ("[redis]\nurl = 'redis://127.0.0.1:six/0'", "redis.url", NO_REDIS_URL),
        ("[redis]\nurl = 'redis://127.0.0.1:66000/0'", "redis.url", "from 1 to 65535"),
        ("[redis]\nurl = 'redis://127.0.0.1/0?socket_timeout=long'", "redis.url", NO_REDIS_URL),
        ("[redis]\nurl = 'redis://127.0.0.1/0?colour=1'", "redis.url", NO_REDIS_URL),
        ("[redis]\nurl = 5", "redis.url", "valid string"),
        ("[webhooks]\nconcurrency = 0", "webhooks.concurrency", "greater than or equal to 1"),
        ("[webhooks]\nattempts = 0", "webhooks.attempts", "greater than or equal to 1"),
        ("[webhooks]\nbackoff_initial = '5s'\nbackoff_max = '4s'", "webhooks", "backoff_max is shorter than"),
        ("[webhooks]\nredelivery_initial = '2h'", "webhooks", "redelivery_max is shorter than redelivery_initial"),
        ("[webhooks]\nendpoints = 'billing'", "webhooks.endpoints", "valid list"),
        (ENDPOINT + ENDPOINT, "webhooks", "two endpoints are named billing"),
        (
            "[webhooks]\nconcurrency = 1\n" + ENDPOINT + ENDPOINT.replace("billing", "audit"),
            "webhooks",
            "concurrency must be at least the number of endpoints, 2",
        ),
        (ENDPOINT.replace('"billing"', '"bill ing"'), "webhooks.endpoints[0].name", "should match pattern"),
        (ENDPOINT.replace('"billing"', '""'), "webhooks.endpoints[0].name", "should match pattern"),
        (ENDPOINT.replace("name", "nom"), "webhooks.endpoints[0].name", "Field required"),
        (ENDPOINT.replace("https:", "ftp:"), "webhooks.endpoints[0].url", NO_HTTP_URL),
        (ENDPOINT.replace("https://billing.example.com", ""), "webhooks.endpoints[0].url", NO_HTTP_URL),
        (ENDPOINT.replace("billing.example.com", ""), "webhooks.endpoints[0].url", NO_HTTP_URL),
        (ENDPOINT.replace("example.com", "example.com:0"), "webhooks.endpoints[0].url", "from 1 to 65535"),
        (ENDPOINT.replace("example.com", "example.com:99999"), "webhooks.endpoints[0].url", "from 1 to 65535"),
        (ENDPOINT.replace("example.com", "example.com:x"), "webhooks.endpoints[0].url", NO_HTTP_URL),
        (ENDPOINT + "events = []", "webhooks.endpoints[0].events", "an empty list would discard every event"),
        (ENDPOINT + "scopes = []", "webhooks.endpoints[0].scopes", "an empty list would discard every event"),
        (ENDPOINT + "events = ['Reservation Expired']", "webhooks.endpoints[0].events[0]", "should match pattern"),
        (ENDPOINT + "scopes = ['tenant:*/x']", "webhooks.endpoints[0].scopes[0]", "should match pattern"),
        (ENDPOINT + "tenants = []", "webhooks.endpoints[0].tenants", "an empty list would discard every event"),
        (ENDPOINT + "tenants = 'acme'", "webhooks.endpoints[0].tenants", "valid list"),
        (ENDPOINT + "secrets = 'x'", "webhooks.endpoints[0].secrets", "valid list"),
        (ENDPOINT + "secrets = ['a', 5]", "webhooks.endpoints[0].secrets[1]", "a secret is text"),
        (ENDPOINT + "headers = {'X Y' = ''}", "webhooks.endpoints[0].headers", "'X Y' is not the name of a header"),
        (ENDPOINT + 'headers = {"X-Y" = "a\\nb"}', "webhooks.endpoints[0].headers", "X-Y cannot stand in a header"),
    ],
)
def test_an_error_names_file_key_and_what_is_wrong(
    toml: str, key: str, problem: str, config: Load, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        config(toml)
    prefix = f"{tmp_path / 'config.toml'}: {key}: "
    assert [line for line in problems(error) if line.startswith(prefix) and problem in line], str(error.value)


@pytest.mark.parametrize(
    "name",
    ["webhook-id", "Webhook-Signature", "X-Cycles-Signature", "Traceparent", "user-agent", "content-type", "Host"],
)
def test_headers_of_sweeperd_are_reserved(name: str, config: Load) -> None:
    with pytest.raises(ConfigError, match=rf"webhooks\.endpoints\[0\]\.headers: {name} is set by sweeperd itself"):
        config(ENDPOINT + f'headers = {{"{name}" = "x"}}')


def test_every_problem_has_its_line(config: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        config("colour = 1\n[sweep]\nbatch_size = 0\ninterval = 5")
    starts = {line.removeprefix(f"{tmp_path / 'config.toml'}: ").partition(":")[0] for line in problems(error)}
    assert starts == {"colour", "sweep.batch_size", "sweep.interval"}
    assert len(problems(error)) == 3


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
    assert (Path("config.toml"), Path("/etc/sweeperd/config.toml")) == config_module.CONFIG_PLACES
    monkeypatch.setattr(config_module, "CONFIG_PLACES", (Path("config.toml"), system))
    named, given = tmp_path / "named.toml", tmp_path / "given.toml"

    def found(path: Path | None = None, **environment: str) -> str:
        return load(path, environment).keys.prefix

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
        "webhooks.one_core": "on",
        "webhooks.redelivery_max": "2h",
        "cycles.enabled": "true",
        "metrics.tenant_length": "99",
        "http.listen": "other:1",
        "http.runbook": "https://wiki.internal/runbook",
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


# ---- shards

SHARDS = """
[[shards]]
name = "eu"
url = "redis://eu/0"
[[shards]]
name = "us"
url = "rediss://us:6380/1"
prefix = "{us}:"
"""


def test_without_a_list_there_is_one_shard(config: Load) -> None:
    (shard,) = config("[redis]\nurl = 'redis://cache/3'\n[keys]\nprefix = 'x:'").all_shards
    assert (shard.name, shard.url.get_secret_value(), shard.prefix) == ("default", "redis://cache/3", "x:")


def test_many_shards(config: Load) -> None:
    settings = config(SHARDS + "[redis]\nsocket_timeout = '3s'")
    told = [(shard.name, shard.url.get_secret_value(), shard.prefix) for shard in settings.all_shards]
    assert told == [("eu", "redis://eu/0", ""), ("us", "rediss://us:6380/1", "{us}:")]
    shards = open_shards(settings)
    assert [(shard.name, shard.address, shard.keys.prefix) for shard in shards] == [
        ("eu", "redis://eu/0", b""),
        ("us", "rediss://us:6380/1", b"{us}:"),
    ]
    assert {shard.socket_timeout for shard in shards} == {3.0}, "the time-outs are for all of them"


def test_the_same_redis_with_another_prefix_is_another_shard(config: Load) -> None:
    shards = [{"name": name, "url": "redis://one/0", "prefix": name} for name in ("a", "b")]
    assert len(config("", {"SWEEPERD_SHARDS": json.dumps(shards)}).all_shards) == 2


def test_an_event_is_known_by_its_shard(config: Load) -> None:
    """The same reservation id may be in use on two of them."""
    eu, us = open_shards(config(SHARDS))
    (alone,) = open_shards(config(""))
    (renamed, _) = open_shards(config(SHARDS.replace('"eu"', '"default"')))
    assert len({eu.origin, us.origin, alone.origin}) == 3
    assert renamed.origin == alone.origin, "the first of several can go on as before"


@pytest.mark.parametrize(
    ("toml", "key", "problem"),
    [
        ("[redis]\nurl = 'redis://x'\n" + SHARDS, "settings", "redis.url and [[shards]] cannot both be set"),
        ("[keys]\nprefix = ''\n" + SHARDS, "settings", "keys.prefix and [[shards]] cannot both be set"),
        (SHARDS.replace('"us"', '"eu"'), "settings", "two shards are named eu"),
        (SHARDS.replace('"us"', '"u s"'), "shards[1].name", "should match pattern"),
        (SHARDS.replace('name = "us"', ""), "shards[1].name", "Field required"),
        (SHARDS.replace('url = "redis://eu/0"', ""), "shards[0].url", "Field required"),
        (SHARDS.replace("redis://eu", "http://eu"), "shards[0].url", NO_REDIS_URL),
        (SHARDS + "timeout = '5s'", "shards[1].timeout", "unknown key"),
        (
            SHARDS.replace("rediss://us:6380/1", "redis://eu/0").replace("{us}:", ""),
            "settings",
            "the shards eu and us have the same url and prefix",
        ),
        (
            SHARDS + "[webhooks]\nconcurrency = 3\n" + ENDPOINT + ENDPOINT.replace("billing", "audit"),
            "settings",
            "webhooks.concurrency must be at least the number of shards times the number of endpoints, 4",
        ),
    ],
)
def test_shards_that_cannot_be(toml: str, key: str, problem: str, config: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        config(toml)
    assert [line for line in problems(error) if line.startswith(f"{tmp_path / 'config.toml'}: {key}: ")]
    assert problem in str(error.value)


def test_concurrency_suffices_for_one_of_each(config: Load) -> None:
    toml = SHARDS + "[webhooks]\nconcurrency = 4\n" + ENDPOINT + ENDPOINT.replace("billing", "audit")
    assert config(toml).webhooks.concurrency == 4


def test_shards_from_the_environment(config: Load) -> None:
    shards = [{"name": "asia", "url": "redis://asia"}, {"name": "africa", "url": "redis://africa", "prefix": "p:"}]
    settings = config(SHARDS, {"SWEEPERD_SHARDS": json.dumps(shards)})
    assert [(shard.name, shard.prefix) for shard in settings.all_shards] == [("asia", ""), ("africa", "p:")]


def test_one_redis_in_the_environment_and_shards_in_the_file(config: Load) -> None:
    with pytest.raises(ConfigError, match=r"^environment: settings: redis\.url and \[\[shards\]\] cannot both be set"):
        config(SHARDS, {"SWEEPERD_REDIS__URL": "redis://other"})


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


# ---- secrets


def secret(config: Load, value: str, environment: dict[str, str] | None = None) -> str:
    settings = config(ENDPOINT + f"secrets = ['{value}']", environment)
    only: SecretStr
    (only,) = settings.webhooks.endpoints[0].secrets
    return only.get_secret_value()


WHSEC = "whsec_" + base64.b64encode(bytes(range(200, 232))).decode()


def test_forms_of_a_secret(config: Load, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("from a file\n")
    (tmp_path / "whsec").write_text(WHSEC + "\n")
    for text in ("plain text", "schlüssel", WHSEC):
        assert secret(config, text) == text
        assert secret(config, "env:HOOK", {"HOOK": text}) == text
    assert secret(config, f"file:{tmp_path / 'plain'}") == "from a file"
    assert secret(config, f"file:{tmp_path / 'whsec'}") == WHSEC


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "a secret cannot be empty"),
        ("whsec_", "a secret cannot be empty"),
        ("whsec_not base64!", "what follows whsec_ is not base64"),
        ("whsk_", "what follows whsk_ is not 32 or 64 bytes in base64"),
        ("whsk_" + "A" * 40, "what follows whsk_ is not 32 or 64 bytes in base64"),
        ("whsk_no base64", "what follows whsk_ is not base64"),
        ("whsk_" + "A" * 86, "the public key in whsk_ belongs to another private key"),
        ("whsec_abcde", "what follows whsec_ is not base64"),
        ("file:/nowhere/at/all", "the file cannot be read: No such file or directory"),
        ("file:{tmp}/empty", "a secret cannot be empty"),
        ("file:{tmp}/binary", "the file cannot be read: it is not UTF-8"),
        ("env:MISSING", "the environment has no variable MISSING"),
        ("env:EMPTY", "a secret cannot be empty"),
    ],
)
def test_a_secret_that_is_none(value: str, problem: str, config: Load, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ConfigError) as error:
        secret(config, value.replace("{tmp}", str(tmp_path)), {"EMPTY": ""})
    assert problems(error) == [f"{tmp_path / 'config.toml'}: webhooks.endpoints[0].secrets[0]: {problem}"]


HUSH = "hush-hush"
SECRETIVE = f"""
[redis]
url = "redis://user:{HUSH}@cache/0"
[[webhooks.endpoints]]
name = "billing"
url = "https://user:{HUSH}@billing.example.com/{HUSH}"
secrets = ["{HUSH}"]
headers = {{ Authorization = "Bearer {HUSH}" }}
"""


def test_repr_tells_no_secret(config: Load) -> None:
    settings = config(SECRETIVE)
    (endpoint,) = settings.webhooks.endpoints
    assert endpoint.headers["Authorization"].get_secret_value() == f"Bearer {HUSH}"
    for shown in (settings, settings.redis, settings.webhooks, endpoint):
        assert HUSH not in f"{shown!r} {shown!s} {shown.model_dump()} {shown.model_dump_json()}"


@pytest.mark.parametrize(
    "toml",
    [
        SECRETIVE + "colour = 1",
        SECRETIVE.replace("redis://", "nonsense://"),
        SECRETIVE.replace("https://", "nonsense://"),
        SECRETIVE.replace("cache/0", "cache:x/0"),
        SECRETIVE.replace("[redis]", "[[shards]]\nname = 'x'") + f"[[shards]]\nname = 'x'\nurl = 'redis://:{HUSH}@b'",
        SECRETIVE.replace("[redis]", "[[shards]]").replace("redis://", "nonsense://"),
        SECRETIVE + f"[[shards]]\nname = 'x'\nurl = 'redis://:{HUSH}@cache'",
        SECRETIVE.replace(f'secrets = ["{HUSH}"]', f'secrets = ["whsec_{HUSH}"]'),
        SECRETIVE.replace(f'secrets = ["{HUSH}"]', f'secrets = "{HUSH}"'),
        SECRETIVE.replace(f'"Bearer {HUSH}"', f'"{HUSH}\\n"'),
        SECRETIVE.replace(f'"Bearer {HUSH}"', f'["{HUSH}"]'),
        SECRETIVE.replace("Authorization", "User-Agent"),
        SECRETIVE.replace('["', '"'),
        SECRETIVE + SECRETIVE.partition("cache/0")[2][2:],
        SECRETIVE.replace("[redis]", "[sweep]\nbatch_size = 0\n[redis]"),
    ],
)
def test_errors_tell_no_secret(toml: str, config: Load) -> None:
    with pytest.raises(ConfigError) as error:
        config(toml)
    assert HUSH not in str(error.value)
    assert HUSH not in repr(error.value)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SWEEPERD_REDIS__URL", f"nonsense://:{HUSH}@cache"),
        ("SWEEPERD_SHARDS", f'[{{"name": "x", "url": "nonsense://:{HUSH}@cache"}}]'),
        ("SWEEPERD_SHARDS", f'[{{"url": {HUSH}}}]'),
        ("SWEEPERD_WEBHOOKS__ENDPOINTS", f'[{{"name": "x", "url": "nonsense://:{HUSH}@host/"}}]'),
        ("SWEEPERD_WEBHOOKS__ENDPOINTS", f'[{{"name": "x", "url": "http://:{HUSH}@host/", "secrets": "{HUSH}"}}]'),
        ("SWEEPERD_WEBHOOKS__ENDPOINTS", f'[{{"secrets": {HUSH}}}]'),
    ],
)
def test_errors_in_the_environment_tell_no_secret(variable: str, text: str, config: Load) -> None:
    with pytest.raises(ConfigError) as error:
        config("", {variable: text})
    assert HUSH not in str(error.value)


def test_the_url_of_redis_may_stand_in_a_file_or_in_the_environment(config: Load, tmp_path: Path) -> None:
    url = "redis://sweeperd:hunter2@redis:6379/0"
    (tmp_path / "url").write_text(url + "\n")
    settings = config(f'redis.url = "file:{tmp_path}/url"')
    assert settings.redis.url.get_secret_value() == url
    assert "hunter2" not in repr(settings)
    assert config("", {"SWEEPERD_REDIS__URL": f"file:{tmp_path}/url"}).redis.url.get_secret_value() == url
    assert config('redis.url = "env:REDIS"', {"REDIS": url}).redis.url.get_secret_value() == url
    with pytest.raises(ConfigError, match=r"redis\.url: the file cannot be read: No such file"):
        config('redis.url = "file:/nowhere/url"')
    (tmp_path / "url").write_text("hunter2")
    with pytest.raises(ConfigError, match=r"redis\.url: not a URL of Redis") as caught:
        config(f'redis.url = "file:{tmp_path}/url"')
    assert "hunter2" not in str(caught.value)
