"""Tests what expire.lua is called with, and how its reply is read."""

from typing import Any

import pytest

from sweeperd.config import SweepSettings
from sweeperd.store import Keys
from sweeperd.sweep import Decision, Outcome
from sweeperd.sweep.kind import decision_of
from tests.support.builders import reservations_kind

TRACE = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("reply", "decision"),
    [
        ([b"not_found"], Decision(b"r1", Outcome.NOT_FOUND)),
        ([b"not_due"], Decision(b"r1", Outcome.NOT_DUE)),
        ([b"in_grace", 17], Decision(b"r1", Outcome.IN_GRACE, grace_end_ms=17)),
        ([b"skipped", b"COMMITTED"], Decision(b"r1", Outcome.SKIPPED, "COMMITTED")),
        (
            [b"quarantined", b"INVALID_STATE", b"acme"],
            Decision(b"r1", Outcome.QUARANTINED, "INVALID_STATE", tenant=b"acme"),
        ),
        ([b"quarantined", b"WRONG_TYPE", b""], Decision(b"r1", Outcome.QUARANTINED, "WRONG_TYPE")),
        ([b"expired", b"acme", 17, b"[]", b"[]"], Decision(b"r1", Outcome.EXPIRED, tenant=b"acme", lag_ms=17)),
        (
            [b"expired", b"", 1, b'["a","b\\/c"]', b'["d"]'],
            Decision(b"r1", Outcome.EXPIRED, lag_ms=1, missing=("a", "b/c"), closed=("d",)),
        ),
        (
            [b"expired", b"\xff", 1, b'["\xff"]', b"[]"],
            Decision(b"r1", Outcome.EXPIRED, tenant=b"\xff", lag_ms=1, missing=("\\xff",)),
        ),
    ],
)
def test_decision(reply: list[Any], decision: Decision) -> None:
    assert decision_of(b"r1", reply) == decision


def test_an_answer_of_another_script_is_a_fault() -> None:
    with pytest.raises(ValueError, match="vanished"):
        decision_of(b"r1", [b"vanished"])


def test_what_the_script_is_told() -> None:
    settings = SweepSettings.model_validate({"grace": "2s", "audit_retention": "1d", "audit_spread": 0})
    kind = reservations_kind(Keys("{p}:"), settings)
    call = kind.call(b"\xff 1", TRACE)
    assert call.keys == [
        b"{p}:reservation:res_\xff 1",
        b"{p}:reservation:ttl",
        b"{p}:sweeperd:events",
        b"{p}:sweeperd:quarantine",
    ]
    assert call.args == [b"\xff 1", b"{p}:budget:", 2000, 86_400_000, TRACE]
    assert (kind.index, kind.quarantine) == (b"{p}:reservation:ttl", b"{p}:sweeperd:quarantine")


@pytest.mark.parametrize(("spread", "most"), [(0.01, 101_000), (0.5, 150_000), (1, 200_000)])
def test_audit_trails_that_begin_together_do_not_end_together(spread: float, most: int) -> None:
    settings = SweepSettings.model_validate({"audit_retention": "100s", "audit_spread": spread})
    kind = reservations_kind(Keys(), settings)
    lasting = sorted(int(kind.call(b"r", TRACE).args[3]) for _ in range(10_000))
    width = most - 100_000
    assert lasting[0] >= 100_000, "never shorter than the retention"
    assert lasting[-1] <= most
    tenths = [sum(1 for ms in lasting if ms < 100_000 + width * part / 10) for part in range(1, 10)]
    assert all(abs(count - 1000 * part) < 300 for part, count in enumerate(tenths, 1)), "evenly"
