"""Tests how secrets are read from the settings, and that nothing shows them."""

import base64
import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from sweeperd.config import load
from sweeperd.errors import ConfigError
from tests.support.fixtures import Load
from tests.unit.config.shared import ENDPOINT, problems


def secret(config: Load, value: str, environment: dict[str, str] | None = None) -> str:
    settings = config(ENDPOINT + f"secrets = ['{value}']", environment)
    only: SecretStr
    (only,) = settings.webhooks.endpoints[0].secrets
    return only.get_secret_value()


WHSEC = "whsec_" + base64.b64encode(bytes(range(200, 232))).decode()


def test_forms_of_a_secret(config: Load, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("from a file\n")
    (tmp_path / "whsec").write_text(WHSEC + "\n")
    for text in ("plain text", "schlüssel", "file", "credential", WHSEC):
        assert secret(config, text) == text
        assert secret(config, "env:HOOK", {"HOOK": text}) == text
    assert secret(config, f"file:{tmp_path / 'plain'}") == "from a file"
    assert secret(config, f"file:{tmp_path / 'whsec'}") == WHSEC


AROUND = {
    "a line end": "{}\n",
    "spaces": " {}\t",
    "a BOM": "\ufeff{}\r\n",
    "quotes": '"{}"',
    "quotes and a line end": " '{}' \n",
    "curly quotes": "\u201c{}\u201d",
    "an invisible character": "{}\u200b",
    "a no-break space": "\xa0{}",
}
PREFIXED = {"upper case": "WHSEC_", "a version": "v1,whsec_", "both": "V1, Whsec_"}


@pytest.mark.parametrize("place", ["literal", "file", "credential", "env"])
@pytest.mark.parametrize("text", ["plain text", WHSEC])
@pytest.mark.parametrize("around", AROUND)
def test_what_copying_puts_around_a_secret_is_no_part_of_it(
    around: str, text: str, place: str, config: Load, tmp_path: Path
) -> None:
    damaged = AROUND[around].format(text)
    (tmp_path / "hook").write_text(damaged, encoding="utf-8")
    references = {"env": "env:HOOK", "file": f"file:{tmp_path}/hook", "credential": "credential:hook"}
    settings = config(
        ENDPOINT + f"secrets = [{json.dumps(references.get(place, damaged))}]",
        {"HOOK": damaged, "CREDENTIALS_DIRECTORY": str(tmp_path)},
    )
    assert [secret.get_secret_value() for secret in settings.webhooks.endpoints[0].secrets] == [text]


@pytest.mark.parametrize("prefix", PREFIXED)
def test_a_known_prefix_is_understood_however_it_is_written(prefix: str, config: Load) -> None:
    assert secret(config, WHSEC.replace("whsec_", PREFIXED[prefix])) == WHSEC


def test_a_file_is_found_from_the_file_of_the_settings(tmp_path: Path) -> None:
    """A service runs in another directory than a person who tries out the settings."""
    (tmp_path / "one.secret").write_text("from a file\n")
    (tmp_path / "url").write_text("redis://elsewhere:6379/0\n")
    lines = 'redis.url = "file:url"\n' + ENDPOINT + "secrets = ['file:one.secret']\n"
    (tmp_path / "config.toml").write_text(lines)
    settings = load(tmp_path / "config.toml", {})
    assert settings.webhooks.endpoints[0].secrets == [SecretStr("from a file")]
    assert settings.redis.url == SecretStr("redis://elsewhere:6379/0")
    assert settings.watched == (tmp_path / "one.secret",)


#: What is said of each -> secrets that are none. Pasted twice, URL-safe base64 would decode to another key.
NO_SECRETS = {
    "cannot be empty": ["", "whsec_", "WHSEC_", '""', "env:EMPTY", "file:{tmp}/empty"],
    "whsec_ is not base64": ["whsec_not base64!", "whsec_abcde", "whsec_YWJj ZGVm", "whsec_YWJjYW\u2026"],
    "whsk_ is not base64": ["whsk_no base64"],
    "32 or 64 bytes": ["whsk_", "whsk_" + "A" * 40],
    "another private key": ["whsk_" + "A" * 86],
    "/nowhere/at/all cannot be read: No such file": ["file:/nowhere/at/all"],
    "{tmp}/binary cannot be read: it is not UTF-8": ["file:{tmp}/binary"],
    "/dev/zero has more than 1,048,576 characters": ["file:/dev/zero"],
    "credential:NAME": ["credential:", "credential:..", "credential:../hook"],
    "$CREDENTIALS_DIRECTORY is not set": ["credential:hook"],
    "no variable MISSING": ["env:MISSING"],
    "damaged whsec_": [
        *("whsec-YWJj", "whsecYWJj", "SECRET=whsec_YWJj", "Bearer whsec_YWJj", '"whsec_YWJj', "env:JSON"),
        *("whsec_whsec_YWJjYWJj", "whsec_YWJjYWJjwhsec_YWJjYWJj"),
    ],
    "damaged whsk_": ["whsk_whsk_YWJj", "key: whsk_YWJj"],
    "whpk_ is a public key": ["whpk_YWJj"],
}


@pytest.mark.parametrize(
    ("value", "problem"), [(value, said) for said, values in NO_SECRETS.items() for value in values]
)
def test_a_secret_that_is_none(value: str, problem: str, config: Load, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ConfigError) as error:
        secret(config, value.replace("{tmp}", str(tmp_path)), {"EMPTY": "", "JSON": '{"key": "whsec_YWJj"}'})
    (line,) = problems(error)
    assert line.startswith(f"{tmp_path / 'config.toml'}: webhooks.endpoints[0].secrets[0]: ")
    assert problem.replace("{tmp}", str(tmp_path)) in line


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
    with pytest.raises(ConfigError, match=r"redis\.url: the file /nowhere/url cannot be read: No such file"):
        config('redis.url = "file:/nowhere/url"')
    (tmp_path / "url").write_text("hunter2")
    with pytest.raises(ConfigError, match=r"redis\.url: not a URL of Redis") as caught:
        config(f'redis.url = "file:{tmp_path}/url"')
    assert "hunter2" not in str(caught.value)


def test_a_credential_of_the_service_is_a_file_of_its_directory(config: Load, tmp_path: Path) -> None:
    (tmp_path / "hook").write_text(WHSEC + "\n")
    (tmp_path / "redis-url").write_text("redis://user:hunter2@cache/0\n")
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path), "SWEEPERD_REDIS__URL": "credential:redis-url"}
    settings = config(
        ENDPOINT + "secrets = ['credential:hook']\nproxy = 'env:PROXY'", environment | {"PROXY": "http://p:1"}
    )
    (endpoint,) = settings.webhooks.endpoints
    assert endpoint.secrets[0].get_secret_value() == WHSEC
    assert settings.redis.url.get_secret_value() == "redis://user:hunter2@cache/0"
    assert settings.watched == (tmp_path / "hook",)
    with pytest.raises(ConfigError, match=f"the file {tmp_path}/gone cannot be read: No such file"):
        secret(config, "credential:gone", environment)
