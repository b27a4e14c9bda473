"""Answers three questions from the status of all shards."""

from dataclasses import replace
from typing import Any

import pytest

from sweeperd.config import Settings
from sweeperd.ops.endpoint_health import HealthLevel
from sweeperd.ops.endpoint_status import ReplicaDocument
from sweeperd.ops.health import DETAILS, ShardView, summarize_health
from sweeperd.ops.status import Due
from sweeperd.outbox.circuits import CircuitNote
from sweeperd.store.memory import MemoryUse
from tests.support.builders import endpoint_status, last_sweep, processes, shard_status

NOW = 1_795_000_000_000
GOOD, WATCH, BAD = HealthLevel
KEEPING_UP, DELIVERED, SET_ASIDE = range(3)
HOOK = endpoint_status("hook", pending=0)
STALLED = ReplicaDocument.of(CircuitNote(process="a", reason="NOPERM"))
USUAL: dict[str, Any] = {"now_ms": NOW, "tick": last_sweep(NOW - 2000), "endpoints": (HOOK,)}
WELL = shard_status("eu", "redis:6379", **USUAL)
SETTINGS = Settings.model_validate({"webhooks": {"endpoints": [{"name": "hook", "url": "http://localhost/"}]}})


def view(**changes: Any) -> ShardView:
    return ShardView("eu", "redis:6379", shard_status("eu", "redis:6379", **USUAL | changes))


def swept(seconds_ago: int, **changes: Any) -> ShardView:
    return view(tick=last_sweep(NOW - seconds_ago * 1000), **changes)


def waiting(**about: Any) -> ShardView:
    return view(endpoints=(HOOK.model_copy(update=about),))


def overdue(*figures: Any) -> ShardView:
    return view(due=Due(*figures))


def running(**duties: bool) -> ShardView:
    return view(processes=processes(**duties))


@pytest.mark.parametrize(
    ("question", "about", "level", "word"),
    [
        (KEEPING_UP, overdue(900, 0, 900, True, 9.0, 9.0), GOOD, ""),
        (KEEPING_UP, overdue(9, 9, 0, True, 7200.0, 0.0), GOOD, ""),
        (KEEPING_UP, overdue(1200, 0, 1200, True, 30.0, 30.0), WATCH, "1,200"),
        (KEEPING_UP, overdue(5000, 1, 4999, False, 300.0, 240.0), BAD, "about 4,999"),
        (KEEPING_UP, view(tick=None), WATCH, "no sweep"),
        (KEEPING_UP, swept(60), BAD, "1 m"),
        # Noted before Redis's clock was set back, and no process has swept since.
        (KEEPING_UP, swept(-60), BAD, "1 m"),
        (KEEPING_UP, replace(swept(30), age_seconds=15.0), BAD, "45 s"),
        (KEEPING_UP, swept(60, sweeping="host-2"), GOOD, ""),
        (KEEPING_UP, swept(90, sweeping="host-2"), BAD, "1 m 30 s"),
        (KEEPING_UP, ShardView("eu", "", WELL, 4.0, "Connection refused"), BAD, "Connection refused"),
        (KEEPING_UP, ShardView("eu", "", WELL, 35.0), BAD, "35 s"),
        (KEEPING_UP, ShardView("eu", ""), WATCH, "not read"),
        (KEEPING_UP, view(memory=MemoryUse(84, 100)), GOOD, ""),
        (KEEPING_UP, view(memory=MemoryUse(85, 100)), WATCH, "85 % of its maxmemory"),
        (KEEPING_UP, view(memory=MemoryUse(134, 100)), BAD, "134 % of its maxmemory"),
        (KEEPING_UP, view(memory=MemoryUse(10**12)), GOOD, ""),
        (KEEPING_UP, view(memory=MemoryUse(90, 100), deferred=1200), BAD, "1,200 expiries wait"),
        (KEEPING_UP, running(sweeps=True), GOOD, ""),
        (KEEPING_UP, running(delivers=True), BAD, "sweeps"),
        (KEEPING_UP, running(), GOOD, ""),
        (DELIVERED, running(sweeps=True), BAD, "delivers"),
        (DELIVERED, view(processes=processes(sweeps=True), endpoints=()), WATCH, "delivers"),
        (DELIVERED, running(), GOOD, ""),
        (DELIVERED, waiting(pending=5, oldest_pending_seconds=50), GOOD, ""),
        (DELIVERED, waiting(state="muted", muted_seconds=30), GOOD, ""),
        (DELIVERED, waiting(pending=5, oldest_pending_seconds=61), WATCH, "1 m 1 s"),
        (DELIVERED, waiting(pending=5000, oldest_pending_seconds=1000), BAD, "5,000"),
        (DELIVERED, waiting(pending=1, oldest_pending_seconds=3, state="open", failures=5), BAD, "circuit open"),
        (DELIVERED, waiting(falling_behind=True, warning="falls behind"), WATCH, "hook falls behind"),
        (DELIVERED, waiting(pending=1, warning="cannot deliver", replicas=[STALLED]), BAD, "cannot deliver"),
        (DELIVERED, waiting(state="paused", paused_at=NOW), WATCH, "paused"),
        (DELIVERED, waiting(state="paused", paused_at=NOW, pending=3), BAD, "paused"),
        (DELIVERED, waiting(pending=None), WATCH, "group"),
        (DELIVERED, waiting(pending=None, state="paused", paused_at=NOW), BAD, "paused"),
        (DELIVERED, waiting(state="unknown", pending=None, dead_letters=7), GOOD, ""),
        (SET_ASIDE, view(quarantined=3), WATCH, "3 in quarantine"),
        (SET_ASIDE, view(quarantined=1, dead_letters=1), WATCH, "1 dead letter"),
        (SET_ASIDE, view(dead_letters=2000), WATCH, "2,000 dead letters"),
    ],
)
def test_an_answer(question: int, about: ShardView, level: HealthLevel, word: str) -> None:
    answer = summarize_health(SETTINGS, [about])[question]
    well = summarize_health(SETTINGS, [view()])[question]
    assert (answer.level, word in " ".join(answer.details)) == (level, True)
    assert (answer == well) is (level is GOOD)
    yes = ("No", "Yes", "Yes") if question == SET_ASIDE else ("Yes", "Not quite", "No")
    assert answer.answer == dict(zip(HealthLevel, yes, strict=True))[level]


def test_a_shard_that_is_not_known_hides_nothing_of_another() -> None:
    unknown = ShardView("us", "", None, 0.0, "Connection refused")
    lost = ShardView("eu", "", WELL, 4.0, "Connection refused")
    for question, about in ((DELIVERED, lost), (SET_ASIDE, unknown)):
        answer = summarize_health(SETTINGS, [about])[question]
        assert (answer.level, answer.answer) == (WATCH, "Not known")
    answer = summarize_health(SETTINGS, [unknown, view(quarantined=3)])[SET_ASIDE]
    assert (answer.answer, [detail.partition(":")[0] for detail in answer.details]) == ("Yes", ["us", "eu"])


def test_the_worst_shard_is_named_first_and_many_are_cut() -> None:
    views = [view(), replace(view(tick=None), name="us"), replace(swept(300), name="asia")]
    details = summarize_health(SETTINGS, views)[KEEPING_UP].details
    assert [detail.partition(":")[0] for detail in details] == ["asia", "us"]
    many = [replace(swept(300), name=f"s{number}") for number in range(20)]
    details = summarize_health(SETTINGS, many)[KEEPING_UP].details
    assert (len(details), details[-1]) == (DETAILS + 1, "and 15 more")


def test_without_endpoints_nobody_is_left_out() -> None:
    assert summarize_health(Settings(), [view(endpoints=())])[DELIVERED].level is GOOD
