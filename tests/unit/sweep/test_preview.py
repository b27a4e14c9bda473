"""Tests what a preview makes of the decisions, and how much of them it keeps."""

import tomllib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from sweeperd.config import Settings
from sweeperd.store import Shard
from sweeperd.sweep import Decision, Outcome, preview
from sweeperd.sweep.explanation import CounterChange, Explanation
from sweeperd.sweep.preview import NAMED, Preview, PreviewDocument
from tests.support.builders import configured_kind
from tests.support.kind_settings import SEAT_HOLD

SETTINGS = Settings.model_validate(tomllib.loads(SEAT_HOLD + 'give_back = ["HINCRBY seats:{show} free {qty}"]'))
SHARD = cast(Shard, SimpleNamespace(name="default"))


def preview_of(*explanations: Explanation) -> Preview:
    made = Preview(configured_kind(SETTINGS.kinds[0], SETTINGS))
    for explanation in explanations:
        made.add(explanation)
    return made


def told(*explanations: Explanation) -> PreviewDocument:
    return preview_of(*explanations).document(SHARD)


def lost(name: str) -> Explanation:
    """A quarantined entry that lacks this field of `active`."""
    return Explanation(Decision(b"h1", Outcome.QUARANTINED, "INVALID_STATE", why=name))


def changing(*keys: bytes) -> Explanation:
    """An expiry that changes `free` of each of these hashes by 2."""
    changes = tuple(CounterChange(key, b"free", 7, 2) for key in keys)
    return Explanation(Decision(b"h1", Outcome.EXPIRED), changes=changes)


def test_ten_entries_of_each_outcome_are_named() -> None:
    gone = [Explanation(Decision(b"%d" % number, Outcome.NOT_FOUND)) for number in range(NAMED + 1)]
    document = told(*gone, lost("state"))
    assert [entry.id for entry in document.entries if entry.outcome == "not_found"] == list(map(str, range(NAMED)))
    assert (document.not_found, document.quarantined, len(document.entries)) == (NAMED + 1, 1, NAMED + 1)


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        (["state", "status", "status"], "INVALID_STATE status: is `active` right?"),
        (["state", "status", "status", "state"], ""),
    ],
)
def test_what_more_than_half_of_the_entries_have_in_common_is_hinted_at(fields: Sequence[str], hint: str) -> None:
    assert preview_of(*map(lost, fields)).hint == hint


def test_causes_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "CAUSES", 1)
    first, second = lost("state"), lost("status")
    assert preview_of(first, second, first).hint == "INVALID_STATE state: is `active` right?"
    assert preview_of(first, second, second).hint == "", "the second cause is beyond the limit"


def test_counters_are_added_up_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "ADDED", 1)
    document = told(changing(b"a"), changing(b"b"), changing(b"b", b"a"))
    (counter,) = document.counters
    assert counter == counter.model_copy(update={"key": "a", "holds": 7, "change": 4, "would_hold": 11, "entries": 2})


@pytest.mark.parametrize(("counters", "truncated"), [(1, False), (2, False), (3, True)])
def test_counters_that_are_not_listed_are_told(monkeypatch: pytest.MonkeyPatch, counters: int, truncated: bool) -> None:
    monkeypatch.setattr(preview, "LISTED", 2)
    document = told(*(changing(b"%d" % number) for number in range(counters)))
    assert (len(document.counters), document.truncated) == (min(counters, 2), truncated)
