"""What the ledger's methods accept, and what they refuse before anything is sent."""

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import sweeperd
from sweeperd import ledger
from sweeperd.ledger import MAX_SCOPES, Ledger, LedgerError, models


def test_from_1_to_256_scopes() -> None:
    assert models.scope_list(["a", b"b"]) == [b"a", b"b"]
    assert len(models.scope_list(["a"] * MAX_SCOPES)) == 256
    for count in (0, 257):
        with pytest.raises(ValueError, match=str(count)):
            models.scope_list(["a"] * count)


@pytest.mark.parametrize("name", ["42", b"42", bytearray(b"42"), memoryview(b"42")])
def test_a_name_is_text_or_bytes(name: Any) -> None:
    assert models.name("tenant", name) == b"42"
    with pytest.raises(TypeError, match="one name"):
        models.scope_list(name)


@pytest.mark.parametrize("scopes", [{"a", "b"}, frozenset(["a"]), {"a": 1}, {"a": 1}.keys()])
def test_scopes_have_an_order(scopes: Any) -> None:
    """The order of a set differs between processes, and with it the request under an idempotency key."""
    with pytest.raises(TypeError, match=type(scopes).__name__):
        models.scope_list(scopes)


@pytest.mark.parametrize("name", [42, 0, True, 300_000_000, None, 1.5, ["a"], [97], uuid.uuid4()])
def test_nothing_else_is_a_name(name: Any) -> None:
    with pytest.raises(TypeError, match=type(name).__name__):
        models.name("tenant", name)
    with pytest.raises(TypeError, match=type(name).__name__):
        models.scope_list([name])


def test_the_hash_of_a_request_keeps_its_parts_apart() -> None:
    assert models.request_hash("ab", b"c") == models.request_hash(b"ab", "c")
    assert models.request_hash("ab", "c") != models.request_hash("a", "bc")


def test_durations_are_whole_milliseconds() -> None:
    assert models.milliseconds("ttl", timedelta(microseconds=1999), least=1) == 1
    with pytest.raises(ValueError, match="ttl"):
        models.milliseconds("ttl", timedelta(microseconds=999), least=1)


@pytest.mark.parametrize("url", ["http://127.0.0.1", "", "redis://:secret@[::1"])
def test_from_url_refuses_what_is_no_url_of_redis(url: str) -> None:
    with pytest.raises(ValueError, match="url") as raised:
        Ledger.from_url(url)
    assert "secret" not in str(raised.value)


def test_from_url_wants_a_hash_tag_for_a_cluster() -> None:
    with pytest.raises(ValueError, match="hash tag"):
        Ledger.from_url("redis+cluster://127.0.0.1:7000")
    Ledger.from_url("redis+cluster://127.0.0.1:7000", prefix="{a}:").close()


def test_from_url_refuses_a_prefix_that_holds_sweeperds() -> None:
    with pytest.raises(ValueError, match="sweeperd's own keys"):
        Ledger.from_url("redis://127.0.0.1", prefix="sweeperd:b:")


def test_help_shows_the_whole_api() -> None:
    for name in ledger.__all__:
        thing = getattr(ledger, name)
        if isinstance(thing, type):
            assert thing.__doc__, name
    for name, method in vars(Ledger).items():
        assert name.startswith("_") or not callable(method) or method.__doc__, name
    defined = {name for name, thing in vars(ledger.errors).items() if isinstance(thing, type)}
    assert {name for name in defined if issubclass(getattr(ledger.errors, name), LedgerError)} <= set(ledger.__all__)


def test_the_package_is_typed() -> None:
    assert (Path(sweeperd.__file__).parent / "py.typed").is_file()
