"""Secrets in the settings: where they may stand, and that nothing shows them."""

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


DAMAGED = "looks like a damaged whsec_ secret: it must be whsec_ and base64, and nothing else"


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
        ("file:/nowhere/at/all", "the file /nowhere/at/all cannot be read: No such file or directory"),
        ("file:{tmp}/empty", "a secret cannot be empty"),
        ("file:{tmp}/binary", "the file {tmp}/binary cannot be read: it is not UTF-8"),
        ("credential:", "credential:NAME takes the name of one file, without a path"),
        ("credential:..", "credential:NAME takes the name of one file, without a path"),
        ("credential:../hook", "credential:NAME takes the name of one file, without a path"),
        (
            "credential:hook",
            "credential:hook cannot be read: $CREDENTIALS_DIRECTORY is not set, which systemd sets for the service",
        ),
        ("env:MISSING", "the environment has no variable MISSING"),
        ("env:EMPTY", "a secret cannot be empty"),
        ("WHSEC_", "a secret cannot be empty"),
        ('""', "a secret cannot be empty"),
        ("whsec_YWJj ZGVm", "what follows whsec_ is not base64"),
        *(
            (value, DAMAGED)
            for value in ("whsec-YWJj", "whsecYWJj", "SECRET=whsec_YWJj", "Bearer whsec_YWJj", '"whsec_YWJj')
        ),
        # Pasted twice: URL-safe base64 holds these letters too, so the text would decode to another key.
        ("whsec_whsec_YWJjYWJj", DAMAGED),
        ("whsec_YWJjYWJjwhsec_YWJjYWJj", DAMAGED),
        ("whsk_whsk_YWJj", DAMAGED.replace("whsec_", "whsk_")),
        ("whsec_YWJjYW\u2026", "what follows whsec_ is not base64"),
        ("env:JSON", DAMAGED),
        ("whpk_YWJj", "whpk_ is a public key, for the receiver; the secret is its private key, whsk_"),
        ("key: whsk_YWJj", DAMAGED.replace("whsec_", "whsk_")),
    ],
)
def test_a_secret_that_is_none(value: str, problem: str, config: Load, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ConfigError) as error:
        secret(config, value.replace("{tmp}", str(tmp_path)), {"EMPTY": "", "JSON": '{"key": "whsec_YWJj"}'})
    assert problems(error) == [
        f"{tmp_path / 'config.toml'}: webhooks.endpoints[0].secrets[0]: {problem.replace('{tmp}', str(tmp_path))}"
    ]


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
