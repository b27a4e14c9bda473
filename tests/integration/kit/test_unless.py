"""`prove` of a kind with `unless`: each form holds, and faults in what protects are caught and named."""

from typing import Any

import pytest

from sweeperd.kit.prove import prove
from sweeperd.kit.samples import Sample, derived_samples, sample_of
from sweeperd.store import Keys
from tests.lua.kinds.world import SCRIPT, SEATS, scripted, settings_of
from tests.support.builders import configured_kind

pytestmark = pytest.mark.slow

JOB: dict[str, Any] = {"unless": "EXISTS jobs:{show}:{id}"}
ROW = {
    "id": "h1",
    "hash": {"state": "HELD", "show": "hamlet", "qty": "3", "customer": "ada"},
    "keys": {"seats:hamlet": {"hash": {"free": "7", "held": "3"}}},
    "after": {"keys": {"seats:hamlet": {"hash": {"free": "10", "held": "0"}}}},
}
KINDS: dict[str, dict[str, Any]] = {
    "a key": SEATS | JOB,
    "fields": SEATS | {"unless": {"paid": "yes", "by": "card"}, "grace": "5s"},
    "at most": SEATS | JOB | {"unless_max": "10m", "unless_recheck": "7m"},
    "then expire": SEATS | JOB | {"unless_max": "10m", "protected": "expire", "grace": "1m"},
    "a script": scripted(SCRIPT, **JOB, unless_max="10m"),
}
#: Text of the script, and what stands there instead.
FAULTS = {
    "never protects": ("local protected = redis.call('EXISTS'", "local protected = false and redis.call('EXISTS'"),
    "asks for another key": ("redis.call('EXISTS', ARGV[2] ..", "redis.call('EXISTS', 'x' .. ARGV[2] .."),
    "asks too late": ("clock.now + 420000", "clock.now + 421000"),
    "protects for ever": ("if protected and clock.now < expires_at + 0 + 600000 then", "if protected then"),
    "forgets who is protected": ("call('ZADD', guarded, from_text, id)", "local _ = guarded"),
    "keeps who is protected no longer": (
        "if since then\n      call('ZREM', guarded, id)",
        "if since then\n      local _ = 1",
    ),
    "moves a seat": ("call('ZADD', guarded, from_text, id)", "call('HINCRBY', ARGV[2] .. 'seats:show-1', 'free', 1)"),
    "counts a protection as late": ("clock.now - entry.asked(expires_at + 0)", "clock.now - (expires_at + 0)"),
}


def samples(name: str) -> tuple[Any, Any, list[Sample]]:
    settings = settings_of(KINDS[name], reservations=False)
    (kind,) = settings.kinds
    return settings, kind, [sample_of(ROW, kind)] if name == "a script" else derived_samples(kind)


@pytest.mark.parametrize("name", KINDS)
def test_each_form_is_proved(name: str) -> None:
    proofs = {proof.name: proof.failure for proof in prove(*samples(name))}
    assert not any(proofs.values()), proofs
    assert "a protected entry stays" in proofs


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault: str) -> None:
    settings, kind, entries = samples("at most")
    text, (old, new) = configured_kind(kind, settings, Keys()).script.source, FAULTS[fault]
    assert old in text
    failed = [
        proof.name for proof in prove(settings, kind, entries, text.replace(old, new), shrink=False) if proof.failure
    ]
    assert "a protected entry stays" in failed
