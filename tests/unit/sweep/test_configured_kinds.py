"""Tests what the script of a configured kind is called with."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sweeperd.config import Settings
from sweeperd.store import Keys
from sweeperd.sweep import Kind
from tests.support.builders import configured_kind
from tests.support.kind_settings import SEAT_HOLD

TRACE = "0123456789abcdef0123456789abcdef"


def seat_hold(spread: float) -> Kind:
    """A kind whose ended hashes stay for 100 s and up to `spread` of that longer."""
    more = 'retention = "100s"\ngive_back = ["HINCRBY seats:{show} free {qty}"]\n'
    settings = Settings.model_validate(tomllib.loads(SEAT_HOLD + more) | {"sweep": {"audit_spread": spread}})
    return configured_kind(settings.kinds[0], settings, Keys("{p}:"))


def test_what_the_script_is_told() -> None:
    call = seat_hold(spread=0).call(b"\xff 1", TRACE)
    assert call.keys == [
        b"{p}:seats:hold:\xff 1",
        b"{p}:seats:ttl",
        b"{p}:sweeperd:events",
        b"{p}:sweeperd:quarantine:seat-hold",
    ]
    assert call.args == [b"\xff 1", b"{p}:", 100_000, TRACE, "", ""]


def test_which_keys_its_hashes_could_have() -> None:
    """Between the two fixed texts there is an id, and they do not overlap."""
    kind = dataclasses.replace(seat_hold(spread=0), stem=b"cart:", end=b":hold")
    assert kind.names(b"cart:x:hold")
    assert not any(map(kind.names, (b"cart:x", b"art:x:hold", b"cart::hold", b"cart:hold", b"cart:")))


@pytest.mark.parametrize(("spread", "most"), [(0.01, 101_000), (0.5, 150_000), (1, 200_000)])
def test_hashes_that_ended_together_are_not_all_removed_together(spread: float, most: int) -> None:
    kind = seat_hold(spread)
    lasting = sorted(int(kind.call(b"h", TRACE).args[2]) for _ in range(1000))
    assert lasting[0] >= 100_000, "never shorter than the retention"
    assert lasting[-1] <= most
    assert lasting[-1] - lasting[0] > (most - 100_000) / 2


DECLARED, SCRIPTED = {"active": {"state": "HELD"}}, {"script": "file:kind.lua", "writes": ["seats:*"]}
ASKS = {"unless": "EXISTS paid:{order}"}


@pytest.mark.parametrize(
    ("more", "reasons"),
    [
        (DECLARED, {"INVALID_STATE", "MISSING_FIELD"}),
        (DECLARED | ASKS, {"INVALID_STATE", "MISSING_FIELD"}),
        (DECLARED | ASKS | {"unless_max": "1h"}, {"INVALID_STATE", "MISSING_FIELD", "PROTECTED_TOO_LONG"}),
        (DECLARED | ASKS | {"unless_max": "1h", "protected": "expire"}, {"INVALID_STATE", "MISSING_FIELD"}),
        (SCRIPTED, {"SCRIPT_ERROR", "TOO_MANY_FIELDS"}),
        (SCRIPTED | {"fields": ["qty"]}, {"SCRIPT_ERROR"}),
        (SCRIPTED | {"fields": ["qty"], "unless": {"paid": "yes"}}, {"SCRIPT_ERROR"}),
        (SCRIPTED | {"fields": ["qty"]} | ASKS, {"SCRIPT_ERROR", "MISSING_FIELD"}),
    ],
)
def test_the_reasons_of_a_quarantine_are_those_that_an_entry_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], reasons: set[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kind.lua").write_text("return function() return {} end")
    kind = {"name": "seat-hold", "index": "seats:ttl", "key": "seats:hold:{id}", "deadline": "expires_at"}
    settings = Settings.model_validate({"kinds": [kind | {"ended": {"state": "EXPIRED"}} | more]})
    of_every_kind = {"WRONG_TYPE", "INVALID_EXPIRY", "INVALID_PLAN"}
    assert configured_kind(settings.kinds[0], settings).reasons.keys() == of_every_kind | reasons
