"""What an operator may do, by what is found."""

import shlex

import pytest

from sweeperd.ops.advice import endpoint_advice, reason_advice, set_aside_advice, shard_advice
from sweeperd.ops.endpoint_status import EndpointDocument, ReplicaDocument
from sweeperd.outbox.circuits import CircuitNote
from sweeperd.store.memory import MemoryUse
from tests.support.builders import endpoint_status, kind_status, last_walk, processes, reason_count, shard_status


@pytest.mark.parametrize(
    ("endpoint", "runbook", "last"),
    [
        (endpoint_status("a", pending=0), "", "sweeperd endpoints attempts a"),
        (endpoint_status("a", state="paused", paused_at=1), "sweeperdendpointpaused", "sweeperd endpoints resume a"),
        (endpoint_status("a", state="open"), "sweeperdcircuitopen", "sweeperd endpoints resume a"),
        (endpoint_status("a", falling_behind=True), "sweeperddeliveriesrunningout", "sweeperd endpoints test a"),
        (endpoint_status("a", oldest_pending_seconds=901), "sweeperddeliveriesstuck", "sweeperd endpoints test a"),
        (endpoint_status("a", dead_letters=2), "sweeperdgrouplost", "sweeperd dead-letters replay --endpoint a"),
        (
            endpoint_status("a", pending=0, dead_letters=2),
            "sweeperddeadletters",
            "sweeperd dead-letters replay --endpoint a",
        ),
        (endpoint_status("a", state="unknown"), "sweeperddeadletters", "sweeperd dead-letters list --endpoint a"),
        (
            endpoint_status("a", replicas=[ReplicaDocument.of(CircuitNote(process="a", reason="NOPERM"))]),
            "sweeperdendpointstalled",
            "sweeperd check",
        ),
    ],
)
def test_an_endpoint(endpoint: EndpointDocument, runbook: str, last: str) -> None:
    advice = endpoint_advice(endpoint)
    assert (advice.runbook, advice.commands[-1]) == (runbook, last)


def test_a_name_with_spaces_is_quoted_and_the_shard_is_named() -> None:
    advice = endpoint_advice(endpoint_status("a b; rm -rf /", state="unknown"), ("--shard", "eu"))
    assert shlex.split(advice.commands[0])[-3:] == ["a b; rm -rf /", "--shard", "eu"]


@pytest.mark.parametrize("name", ["x" * 10_000, "\x1b[31m", "\u202eabc", "one\ntwo"])
def test_a_command_that_cannot_be_copied_is_not_offered(name: str) -> None:
    assert endpoint_advice(endpoint_status(name, state="unknown")).commands == ("",)


@pytest.mark.parametrize(
    ("memory", "deferred", "runbook"),
    [
        (None, 0, ""),
        (MemoryUse(84, 100), 0, ""),
        (MemoryUse(85, 100), 0, "sweeperdredisalmostfull"),
        (MemoryUse(134, 100), 0, "sweeperdredisalmostfull"),
        (MemoryUse(134, 100), 7, "sweeperdexpiriesdeferred"),
    ],
)
def test_a_full_redis(memory: MemoryUse | None, deferred: int, runbook: str) -> None:
    found = list(shard_advice(shard_status("eu", "", memory=memory, deferred=deferred), ("--shard", "eu")))
    assert [advice.runbook for advice in found] == ([runbook] if runbook else [])
    assert all(advice.commands == ("sweeperd check --shard eu",) for advice in found)


def test_a_reason_of_a_kind() -> None:
    advice = reason_advice(reason_count("seat-hold", "INVALID_PLAN", 2, "-odd", "b"))
    assert advice.commands == (
        "sweeperd quarantine list --kind seat-hold --reason INVALID_PLAN",
        "sweeperd show --kind seat-hold -- -odd",
        "sweeperd quarantine requeue --kind seat-hold --reason INVALID_PLAN",
    )


def test_a_shard() -> None:
    found = list(shard_advice(shard_status("eu", "redis://r:1/0", empty=True, processes=processes(sweeps=True))))
    assert [(each.commands, each.runbook) for each in found] == [
        (("sweeperd check",), ""),
        ((), "sweeperdnobodydelivers"),
    ]


def test_findings_of_a_walk_name_the_kind() -> None:
    walk = last_walk(1_000, lost=2, orphan=0)
    clean = last_walk(1_000, lost=0)
    kinds = tuple(kind_status(name, last) for name, last in (("seat-hold", walk), ("lock", clean), ("new", None)))
    both = processes(sweeps=True, delivers=True)
    status = shard_status("eu", "redis://r:1/0", now_ms=61_000, kinds=kinds, processes=both)
    (found,) = shard_advice(status, ("--shard", "eu"))
    on = "--kind seat-hold --shard eu"
    assert found.commands == (f"sweeperd reconcile --repair {on}", f"sweeperd reconcile --last {on}")
    assert (found.runbook, "2 lost" in found.text) == ("sweeperdreconcilefindings", True)


def test_what_is_set_aside_or_held_up_is_named_with_its_command() -> None:
    endpoints = tuple(endpoint_status(f"e{number}", state="open", pending=3) for number in range(7))
    well = endpoint_status("well", pending=0)
    seats = kind_status("seat-hold", quarantined=2)
    status = shard_status("eu", kinds=(seats,), endpoints=(well, *endpoints), dead_letters=1200)
    found = [(advice.text, advice.commands[0]) for advice in set_aside_advice(status, ("--shard", "eu"))]
    assert found[0] == ("seat-hold: 2 in quarantine", "sweeperd quarantine list --kind seat-hold --shard eu")
    assert [command for _, command in found[1:6]] == [
        f"sweeperd endpoints attempts e{number} --shard eu" for number in range(5)
    ]
    assert found[6:] == [
        ("and 2 more endpoints", "sweeperd endpoints list --shard eu"),
        ("dead letters: 1,200", "sweeperd dead-letters list --shard eu"),
    ]
    assert list(set_aside_advice(shard_status("eu", endpoints=(well,)))) == []
