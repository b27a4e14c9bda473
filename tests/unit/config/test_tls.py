"""Tests the PEM files of an endpoint: refusals, and changes that a reload sees."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeperd.config import Settings, load
from sweeperd.errors import ConfigError
from tests.support.authority import Authority

Load = Callable[..., Settings]
ENDPOINT = '[[webhooks.endpoints]]\nname = "billing"\nurl = "https://billing.example.com/hook"\n'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """With the files that an endpoint may name."""
    authority = Authority(tmp_path)
    authority.ca("ca.pem")
    authority.client("cert.pem", "key.pem")
    authority.client("cert2.pem", "key2.pem")
    both = (tmp_path / "cert.pem").read_text() + (tmp_path / "key.pem").read_text()
    (tmp_path / "both.pem").write_text(both)
    (tmp_path / "empty.pem").write_text("")
    (tmp_path / "binary.pem").write_bytes(bytes(range(256)))
    return tmp_path


def read(directory: Path, lines: str, endpoint: str = ENDPOINT) -> Settings:
    (directory / "config.toml").write_text(endpoint + lines)
    return load(directory / "config.toml", {})


def test_paths_are_relative_to_the_file_of_the_settings(directory: Path) -> None:
    lines = 'ca = "ca.pem"\nclient_cert = "cert.pem"\nclient_key = "key.pem"\nproxy = "http://proxy.example:3128"\n'
    (endpoint,) = read(directory, lines).webhooks.endpoints
    assert endpoint.ca is not None
    assert endpoint.client_key is not None
    assert endpoint.ca.path == directory / "ca.pem"
    assert endpoint.client_key.path == directory / "key.pem"
    assert endpoint.proxy is not None
    assert "proxy.example" not in repr(endpoint)


def test_one_file_may_hold_certificate_and_key(directory: Path) -> None:
    assert read(directory, 'client_cert = "both.pem"').webhooks.endpoints[0].client_key is None


def test_a_reload_sees_that_a_file_has_changed(directory: Path) -> None:
    lines = 'client_cert = "cert.pem"\nclient_key = "key.pem"\n'
    before = read(directory, lines)
    assert read(directory, lines) == before
    for name in ("cert", "key"):
        (directory / f"{name}.pem").write_bytes((directory / f"{name}2.pem").read_bytes())
    assert read(directory, lines) != before


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_reload_sees_that_the_cas_of_the_environment_have_changed(directory: Path, variable: str) -> None:
    path, environment = directory / "config.toml", {variable: str(directory / "ca.pem")}
    path.write_text(ENDPOINT)
    before = load(path, environment)
    assert load(path, environment) == before
    assert before.watched == (directory / "ca.pem",)
    (directory / "ca.pem").write_bytes((directory / "cert.pem").read_bytes())
    assert load(path, environment) != before
    path.write_text(ENDPOINT + "ca = 'ca.pem'")
    assert load(path, environment) == load(path, {}), "the endpoint names its own"
    folder = directory / "folder"
    folder.mkdir()
    path.write_text(ENDPOINT)
    before = load(path, {variable: str(folder)})
    (folder / "new.pem").write_text("")
    assert load(path, {variable: str(folder)}) != before


@pytest.mark.parametrize(
    ("name", "problem"), [("none.pem", "cannot be read: No such file"), ("empty.pem", "holds no certificate")]
)
def test_cas_of_the_environment_that_cannot_be_read(directory: Path, name: str, problem: str) -> None:
    path, environment = directory / "config.toml", {"REQUESTS_CA_BUNDLE": str(directory / name)}
    path.write_text(ENDPOINT)
    with pytest.raises(ConfigError) as error:
        load(path, environment)
    assert str(error.value).startswith("environment: REQUESTS_CA_BUNDLE: ")
    assert problem in str(error.value)
    load(path, environment, secrets=False)
    path.write_text(ENDPOINT.replace("https:", "http:"))
    load(path, environment)


def encrypted(directory: Path) -> None:
    command = ["openssl", "pkey", "-aes256", "-passout", "pass:secret", "-in", "key.pem", "-out", "encrypted.pem"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


CERT = 'client_cert = "cert.pem"\nclient_key = '
#: (key, what is said) -> the lines.
REFUSED = {
    ("ca", "cannot be read"): ['ca = "none.pem"', 'ca = "."'],
    ("ca", "path of a PEM file"): ["ca = 5", 'ca = ""'],
    ("ca", "no certificate"): ['ca = "empty.pem"', 'ca = "binary.pem"', 'ca = "key.pem"'],
    ("client_cert", "cannot be read"): ['client_cert = "none.pem"'],
    ("client_cert", "no certificate"): ['client_cert = "key.pem"\nclient_key = "key.pem"'],
    ("client_key", "no private key in PEM form; name"): ['client_cert = "cert.pem"'],
    ("client_key", "cannot be read"): [CERT + '"none.pem"'],
    ("client_key", "no private key"): [CERT + '"empty.pem"', CERT + '"cert.pem"'],
    ("client_key", "another certificate"): [CERT + '"key2.pem"'],
    ("client_key", "has a password"): [CERT + '"encrypted.pem"'],
    ("client_key", "client_cert"): ['client_key = "key.pem"'],
    ("proxy", "https://"): ['proxy = "socks5://proxy.example"', 'proxy = "proxy.example:3128"'],
    ("proxy", "begin with http://"): ['proxy = "https://proxy.example"'],
    ("proxy", "no variable NONE"): ['proxy = "env:NONE"'],
}


@pytest.mark.parametrize(
    ("lines", "key", "problem"), [(lines, *about) for about, some in REFUSED.items() for lines in some]
)
def test_an_error_names_key_and_file(lines: str, key: str, problem: str, directory: Path) -> None:
    encrypted(directory)
    with pytest.raises(ConfigError) as raised:
        read(directory, lines)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(f"{directory / 'config.toml'}: webhooks.endpoints[0].{key}: ")
    assert problem in line


@pytest.mark.parametrize("key", ["ca", "client_cert"])
def test_certificates_need_https(key: str, directory: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key}: its url begins with http://"):
        read(directory, f'{key} = "both.pem"', ENDPOINT.replace("https:", "http:"))


def test_a_password_of_the_proxy_is_in_no_error(directory: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(directory, 'proxy = "ftp://user:hunter2@proxy.example"')
    assert "hunter2" not in str(raised.value)
