"""Faults that are planted in the script of each form of an entry are caught."""

import pytest

from sweeperd.kit.prove import prove
from sweeperd.kit.samples import derived_samples
from sweeperd.store import Keys
from tests.lua.kinds.forms import FORMS
from tests.lua.kinds.world import settings_of
from tests.support.builders import configured_kind

pytestmark = pytest.mark.release

#: What is wrong: the form, text of the script, and what stands there instead.
FAULTS = {
    "a member that expires takes the index along": ("member", "{nil, KEYS[2],", "{KEYS[1], KEYS[2],"),
    "a member without a score expires": (
        "member",
        "entry.indexed(ARGV[4])",
        "entry.indexed(ARGV[4]) or '1700000000000'",
    ),
    "a part begins a letter late": ("member", "start - 1), stop + 1", "start - 1), stop + 2"),
    "a member that does not fit is forgotten": (
        "member",
        "or entry.set_aside('INVALID_MEMBER'",
        "or entry.drop('skipped'",
    ),
    "the reason is not kept": ("member", "call('HSET', marks, id, reason .. ' ' .. why)", "local _ = marks"),
    "a score that is set has no note": (
        "score in seconds",
        "call('HSET', notes, id, due_text .. ' ' .. score_text)\n    end\n    return {'not_due', 'protected'}",
        "local _ = notes\n    end\n    return {'not_due', 'protected'}",
    ),
    "a note counts whatever the score": (
        "score in seconds",
        "tonumber(set) == tonumber(score) and deadline or score",
        "deadline or score",
    ),
    "a note never counts": ("score in seconds", "tonumber(set) == tonumber(score) and deadline or score", "score"),
    "a note outlives its entry": ("score in seconds", "call('HDEL', notes, id)", "local _ = notes"),
    "a quarantine forgets the deadline": ("score", "call('HSET', notes, id, due_text .. ' ')", "local _ = notes"),
    "seconds are taken for ms": ("seconds", "value * unit + 0.5", "tonumber(text) + 0.5"),
    "seconds are cut": ("seconds", "math.floor(value * unit + 0.5)", "math.floor(tonumber(text)) * unit"),
    "numbers are rounded": ("json", "pcall(json.decode, quoted(text))", "pcall(json.decode, text)"),
    "the string stays": ("json", "if key and retention == '0' then\n      call('DEL', key)", "if false then"),
    "any text is an object": ("json", "if not find(text, begins == '{'", "if false and not find(text, begins == '{'"),
    "the last element is left out": ("each", "for i = 1, #items do", "for i = 1, #items - 1 do"),
}


def caught(form: str, old: str, new: str) -> list[str]:
    settings = settings_of(FORMS[form], reservations=False)
    (kind,) = settings.kinds
    text = configured_kind(kind, settings, Keys()).script.source
    assert old in text
    proofs = prove(settings, kind, derived_samples(kind), text.replace(old, new), shrink=False)
    return [proof.name for proof in proofs if proof.failure]


@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_caught(fault: str) -> None:
    assert caught(*FAULTS[fault])
