"""A kind of the settings as the sweep takes it: what its script is called with."""

import tomllib

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
    assert call.args == [b"\xff 1", b"{p}:", 100_000, TRACE]


@pytest.mark.parametrize(("spread", "most"), [(0.01, 101_000), (0.5, 150_000), (1, 200_000)])
def test_hashes_that_ended_together_are_not_all_removed_together(spread: float, most: int) -> None:
    kind = seat_hold(spread)
    lasting = sorted(int(kind.call(b"h", TRACE).args[2]) for _ in range(1000))
    assert lasting[0] >= 100_000, "never shorter than the retention"
    assert lasting[-1] <= most
    assert lasting[-1] - lasting[0] > (most - 100_000) / 2
