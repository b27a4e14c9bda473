"""The three answers that are to be had within five seconds of looking."""

from dataclasses import replace

import pytest

from sweeperd.config import Settings
from sweeperd.ops.health import DETAILS, HealthLevel, ShardView, summarize_health
from sweeperd.ops.status import Due, ShardStatus
from tests.support.builders import endpoint_status, last_sweep, processes

NOW = 1_795_000_000_000
HOOK = endpoint_status("hook", pending=0)
WELL = ShardStatus("eu", "redis:6379", now_ms=NOW, tick=last_sweep(NOW - 2000), endpoints=(HOOK,))
SETTINGS = Settings.model_validate({"webhooks": {"endpoints": [{"name": "hook", "url": "http://localhost/"}]}})

Told = tuple[HealthLevel, str, tuple[str, ...]]


def told(number: int, *views: ShardView) -> Told:
    """Level, answer and details of one of the questions."""
    answer = summarize_health(SETTINGS, views)[number]
    return answer.level, answer.answer, answer.details


def view(**changes: object) -> ShardView:
    return ShardView("eu", "redis:6379", replace(WELL, **changes))  # type: ignore[arg-type]


def swept(seconds_ago: int) -> object:
    return last_sweep(NOW - seconds_ago * 1000)


def waiting(**about: object) -> ShardView:
    return view(endpoints=(HOOK.model_copy(update=about),))


def running(**duties: bool) -> ShardView:
    return view(processes=processes(**duties))


def test_what_no_process_does_is_named() -> None:
    assert told(0, running(sweeps=True))[0] is HealthLevel.GOOD
    assert told(0, running(delivers=True)) == (HealthLevel.BAD, "No", ("no process sweeps",))
    assert told(1, running(sweeps=True)) == (HealthLevel.BAD, "No", ("no process delivers",))
    without = replace(running(sweeps=True).status, endpoints=())  # type: ignore[type-var]
    assert told(1, ShardView("eu", "", without))[0] is HealthLevel.WATCH, "the stream is not maintained"
    unknown = view(processes=processes())
    assert [told(number, unknown)[0] for number in (0, 1)] == [HealthLevel.GOOD] * 2


def test_all_is_well() -> None:
    assert [told(number, view()) for number in range(3)] == [
        (HealthLevel.GOOD, "Yes", ("nothing is overdue for long",)),
        (HealthLevel.GOOD, "Yes", ("no event waits for long",)),
        (HealthLevel.GOOD, "No", ("nothing waits for a person",)),
    ]


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (view(due=Due(900, 0, 900, True, 9.0, 9.0)), (HealthLevel.GOOD, "Yes", ("nothing is overdue for long",))),
        (view(due=Due(9, 9, 0, True, 7200.0, 0.0)), (HealthLevel.GOOD, "Yes", ("nothing is overdue for long",))),
        (
            view(due=Due(1200, 0, 1200, True, 30.0, 30.0)),
            (HealthLevel.WATCH, "Not quite", ("1,200 overdue, the oldest for 30 s",)),
        ),
        (
            view(due=Due(5000, 1, 4999, False, 300.0, 240.0)),
            (HealthLevel.BAD, "No", ("about 4,999 overdue, the oldest for 4 m 0 s",)),
        ),
        (view(tick=None), (HealthLevel.WATCH, "Not quite", ("no sweep has ended yet",))),
        (view(tick=swept(60)), (HealthLevel.BAD, "No", ("not swept for 1 m 0 s",))),
        # Noted before Redis's clock was set back, and no process has swept since.
        (view(tick=swept(-60)), (HealthLevel.BAD, "No", ("not swept for 1 m 0 s",))),
        (
            replace(view(tick=swept(30)), age_seconds=15.0),
            (HealthLevel.BAD, "No", ("not swept for 45 s",)),
        ),
        (
            view(tick=swept(60), sweeping="host-2"),
            (HealthLevel.GOOD, "Yes", ("nothing is overdue for long",)),
        ),
        (view(tick=swept(90), sweeping="host-2"), (HealthLevel.BAD, "No", ("not swept for 1 m 30 s",))),
        (
            ShardView("eu", "", WELL, 4.0, "Connection refused"),
            (HealthLevel.BAD, "No", ("Redis cannot be read: Connection refused",)),
        ),
        (ShardView("eu", "", WELL, 35.0), (HealthLevel.BAD, "No", ("Redis has not answered for 35 s",))),
        (ShardView("eu", ""), (HealthLevel.WATCH, "Not quite", ("not read yet",))),
    ],
)
def test_whether_we_keep_up(about: ShardView, expected: Told) -> None:
    assert told(0, about) == expected


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (waiting(pending=5, oldest_pending_seconds=50), (HealthLevel.GOOD, "Yes", ("no event waits for long",))),
        (waiting(state="muted", muted_seconds=30), (HealthLevel.GOOD, "Yes", ("no event waits for long",))),
        (
            waiting(pending=5, oldest_pending_seconds=61),
            (HealthLevel.WATCH, "Not quite", ("hook: 5 wait, the oldest for 1 m 1 s",)),
        ),
        (
            waiting(pending=5000, oldest_pending_seconds=1000),
            (HealthLevel.BAD, "No", ("hook: 5,000 wait, the oldest for 16 m 40 s",)),
        ),
        (
            waiting(pending=1, oldest_pending_seconds=3, state="open", failures=5),
            (HealthLevel.BAD, "No", ("hook: circuit open; 1 wait, the oldest for 3.0 s",)),
        ),
        (
            waiting(falling_behind=True, warning="falls behind"),
            (HealthLevel.WATCH, "Not quite", ("hook falls behind; nothing waits",)),
        ),
        (waiting(state="paused", paused_at=NOW), (HealthLevel.BAD, "No", ("hook is paused; nothing waits",))),
        (waiting(pending=None), (HealthLevel.WATCH, "Not quite", ("hook: it has no consumer group",))),
        (
            waiting(pending=None, state="paused", paused_at=NOW),
            (HealthLevel.BAD, "No", ("hook is paused; it has no consumer group",)),
        ),
        (
            waiting(state="unknown", pending=None, dead_letters=7),
            (HealthLevel.GOOD, "Yes", ("no event waits for long",)),
        ),
        (ShardView("eu", "", WELL, 4.0, "Connection refused"), (HealthLevel.WATCH, "Not known", ("not known",))),
    ],
)
def test_whether_everyone_gets_their_events(about: ShardView, expected: Told) -> None:
    assert told(1, about) == expected


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (view(quarantined=3), (HealthLevel.WATCH, "Yes", ("3 in quarantine",))),
        (view(quarantined=1, dead_letters=1), (HealthLevel.WATCH, "Yes", ("1 in quarantine", "1 dead letter"))),
        (view(dead_letters=2000), (HealthLevel.WATCH, "Yes", ("2,000 dead letters",))),
        (ShardView("eu", "", None, 0.0, "Connection refused"), (HealthLevel.WATCH, "Not known", ("not known",))),
    ],
)
def test_whether_something_is_set_aside(about: ShardView, expected: Told) -> None:
    assert told(2, about) == expected


def test_a_shard_that_is_not_known_hides_nothing_of_another() -> None:
    views = [ShardView("us", "", None, 0.0, "Connection refused"), view(quarantined=3)]
    assert told(2, *views) == (HealthLevel.WATCH, "Yes", ("us: not known", "eu: 3 in quarantine"))


def test_of_several_shards_the_worst_is_told_first_and_each_is_named() -> None:
    views = [view(), replace(view(tick=None), name="us"), replace(view(tick=swept(300)), name="asia")]
    assert told(0, *views) == (HealthLevel.BAD, "No", ("asia: not swept for 5 m 0 s", "us: no sweep has ended yet"))


def test_many_findings_are_cut_short() -> None:
    views = [replace(view(tick=swept(300)), name=f"s{number}") for number in range(20)]
    _, _, details = told(0, *views)
    assert len(details) == DETAILS + 1
    assert details[-1] == "and 15 more"


def test_without_endpoints_nobody_is_left_out() -> None:
    answers = summarize_health(Settings(), [view(endpoints=())])
    assert (answers[1].level, answers[1].details) == (HealthLevel.GOOD, ("there are no endpoints",))
