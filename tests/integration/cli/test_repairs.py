"""Tries each repair to its end: what `status` shows, the command that it names, and the silence afterwards."""

import shlex
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.metrics import Metrics
from sweeperd.store import Shard
from tests.integration.conftest import Sweeperd
from tests.support.builders import make_reconciler
from tests.support.harness import SCOPES, budget, reserve

LATER = -50_000
BUDGET = f"{SCOPES[0]}:TOKENS"


def found(sweeperd: Sweeperd, *arguments: str) -> dict[str, Any]:
    ran = sweeperd("reconcile", *arguments, "--json")
    (shard,) = ran.document["shards"]
    assert ran.code == int(shard["remaining"] > 0)
    walk: dict[str, Any] = shard
    return walk


def advised(sweeperd: Sweeperd) -> list[str]:
    """The commands that `status` names."""
    return [line.split("`")[1] for line in sweeperd("status").err.splitlines() if "`" in line]


def set_aside(client: redis.Redis, sweeperd: Sweeperd, rid: str, field: str, value: str) -> None:
    reserve(client, [rid])
    client.hset(f"reservation:res_{rid}", field, value)
    sweeperd("--once")
    assert client.zscore("sweeperd:quarantine", rid) is not None


def test_a_dismissed_row_that_cannot_be_read_stops_no_repair(client: redis.Redis, sweeperd: Sweeperd) -> None:
    reserve(client, ["right"], overdue_by=LATER)
    for number in range(30):
        set_aside(client, sweeperd, f"bad-{number}", "budgeted_scopes", "5")
    before = budget(client, SCOPES[0])
    client.hincrby(f"budget:{BUDGET}", "reserved", 7)
    walk = found(sweeperd)
    assert (walk["unreadable"], len(walk["unreadable_ids"]), walk["left_out"]) == (30, 20, 0)
    assert walk["counters_unjudged"] == len(SCOPES)
    assert "bad-" in sweeperd("reconcile").err
    refused = sweeperd("reconcile", "--repair-budget", BUDGET, "--yes", "--json")
    assert (refused.code, refused.document["unreadable"], len(refused.document["unreadable_ids"])) == (1, 30, 20)
    assert {*refused.document["unreadable_ids"]} < {f"bad-{number}" for number in range(30)}

    dismissed = sweeperd("quarantine", "dismiss", "--all", "--yes", "--json").document
    assert (dismissed["dismissed"], dismissed["unreadable"], dismissed["locked"]) == (30, 30, {})
    assert len(dismissed["unreadable_ids"]) == 20
    walk = found(sweeperd)
    assert (walk["unreadable"], walk["left_out"], len(walk["left_out_ids"]), walk["dismissed"]) == (0, 30, 20, 30)
    assert walk["counters_unjudged"] == 0
    drifts = {finding["key"]: finding["difference"] for finding in walk["findings"]}
    assert drifts == {f"budget:{SCOPES[0]}:TOKENS": 157, f"budget:{SCOPES[1]}:TOKENS": 150}
    for scope, difference in zip(SCOPES, (157, 150), strict=True):
        repaired = sweeperd("reconcile", "--repair-budget", f"{scope}:TOKENS", "--yes", "--json")
        assert repaired.code == 0
        assert (repaired.document["result"], repaired.document["difference"]) == ("repaired", difference)
        assert repaired.document["left_out"] == 30
    assert budget(client, SCOPES[0]) == (5, before[1] + 157)
    assert found(sweeperd)["found"]["budget_drift"] == 0


def test_a_row_of_other_budgets_stops_no_repair_of_this_one(client: redis.Redis, sweeperd: Sweeperd) -> None:
    reserve(client, ["right", "bad"], overdue_by=LATER)
    client.hset("reservation:res_bad", mapping={"estimate_amount": "five", "budgeted_scopes": f'["{SCOPES[1]}"]'})
    client.hincrby(f"budget:{BUDGET}", "reserved", 2)  # 5 of `bad` besides
    done = sweeperd("reconcile", "--repair-budget", BUDGET, "--yes", "--json").document
    assert (done["result"], done["difference"], "unreadable" in done) == ("repaired", 7, False)
    other = sweeperd("reconcile", "--repair-budget", f"{SCOPES[1]}:TOKENS", "--yes", "--json")
    assert (other.code, other.document["unreadable_ids"]) == (1, ["bad"])


def test_a_key_of_another_type_is_left_out_once_dismissed(client: redis.Redis, sweeperd: Sweeperd) -> None:
    reserve(client, ["right"], overdue_by=LATER)
    reserve(client, ["odd"])
    client.delete("reservation:res_odd")
    client.set("reservation:res_odd", "x")
    sweeperd("--once")
    assert found(sweeperd)["unreadable_ids"] == ["odd"]
    assert sweeperd("quarantine", "dismiss", "odd", "--yes", "--json").document["unreadable_ids"] == ["odd"]
    walk = found(sweeperd)
    assert (walk["unreadable"], walk["left_out_ids"], walk["found"]["budget_drift"]) == (0, ["odd"], len(SCOPES))


def test_dismissing_a_readable_row_says_what_stays_locked(client: redis.Redis, sweeperd: Sweeperd) -> None:
    set_aside(client, sweeperd, "late", "expires_at", "soon")
    reserve(client, ["bad"])
    client.hset("reservation:res_bad", "budgeted_scopes", "5")
    sweeperd("--once")
    told = sweeperd("quarantine", "dismiss", "--all", "--yes", "--json").document
    assert (told["locked"], told["unreadable"], told["unreadable_ids"]) == ({"TOKENS": 5}, 1, ["bad"])


def test_a_walk_by_hand_counts_as_the_last_one(client: redis.Redis, shard: Shard, sweeperd: Sweeperd) -> None:
    metrics = Metrics()
    daemon = make_reconciler(Settings.model_validate({"reconcile": {"rate": 1_000_000}}), shard, metrics)

    def alerting() -> dict[str, float]:
        daemon.run_if_due()
        samples = (sample for each in metrics.registry.collect() for sample in each.samples)
        return {
            sample.labels["finding"]: sample.value
            for sample in samples
            if sample.name == "sweeperd_reconcile_findings" and sample.value
        }

    reserve(client, ["right", "lost"], overdue_by=LATER)
    assert advised(sweeperd) == ["sweeperd reconcile"], "no walk has run yet"
    never = sweeperd("reconcile", "--last")
    assert (never.code, "no walk" in never.err) == (3, True)
    assert found(sweeperd)["remaining"] == 0
    assert advised(sweeperd) == []

    client.zrem("reservation:ttl", "lost")
    client.hincrby(f"budget:{BUDGET}", "reserved", 7)
    assert alerting() == {}, "it has just been walked"
    assert found(sweeperd)["remaining"] == 2
    assert alerting() == {"lost": 1, "budget_drift": 1}
    assert advised(sweeperd) == ["sweeperd reconcile --repair"]
    (status,) = sweeperd("status", "--json").document["shards"]
    assert (status["last_walk"]["findings"], status["last_walk"]["drifted"]) == (2, [BUDGET])

    assert sweeperd("reconcile", "--repair", "--yes").code == 1
    assert client.zscore("reservation:ttl", "lost") is not None
    assert alerting() == {"budget_drift": 1}
    last = found(sweeperd, "--last")
    assert (last["found"]["lost"], last["mended"]["lost"], last["remaining"]) == (1, 1, 1)
    (command,) = advised(sweeperd)
    assert command == f"sweeperd reconcile --repair-budget {BUDGET}"

    assert sweeperd(*shlex.split(command)[1:], "--yes").code == 0
    assert budget(client, SCOPES[0])[0] == 10
    assert alerting() == {}
    assert advised(sweeperd) == []
    last = found(sweeperd, "--last")
    assert (last["mended"]["budget_drift"], last["remaining"]) == (1, 0)
    assert all(finding["mended"] for finding in last["findings"])


def test_a_repair_of_what_no_walk_has_found_changes_no_walk(client: redis.Redis, sweeperd: Sweeperd) -> None:
    reserve(client, ["right"], overdue_by=LATER)
    found(sweeperd)
    before = client.hgetall("sweeperd:reconcile")
    client.hincrby(f"budget:{BUDGET}", "reserved", 7)
    assert sweeperd("reconcile", "--repair-budget", BUDGET, "--yes").code == 0
    assert client.hgetall("sweeperd:reconcile") == before


def test_long_lists_are_kept_in_part(client: redis.Redis, sweeperd: Sweeperd) -> None:
    client.zadd("reservation:ttl", {f"orphan-{number}": 9e15 for number in range(30)})
    assert len(found(sweeperd)["findings"]) == 30
    last = found(sweeperd, "--last")
    assert (len(last["findings"]), last["truncated"], last["remaining"]) == (20, True, 30)


def test_a_reader_walks_and_is_told_that_the_walk_is_not_kept(
    client: redis.Redis, sweeperd: Sweeperd, server: Any
) -> None:
    reserve(client, ["right"], overdue_by=LATER)
    client.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@all", "-hset", "-hdel")
    try:
        ran = sweeperd("reconcile", url=server.url.replace("redis://", "redis://reader:x@"))
        assert (ran.code, "not updated" in ran.err) == (0, True)
        assert not client.exists("sweeperd:reconcile")
    finally:
        client.execute_command("ACL", "DELUSER", "reader")


@pytest.mark.parametrize("closed", [False, True])
def test_an_underflow_is_shown_with_its_numbers_and_the_command(
    client: redis.Redis, sweeperd: Sweeperd, closed: bool
) -> None:
    reserve(client, ["one"])
    client.hset(f"budget:{BUDGET}", "reserved", 3)
    if closed:
        client.hset(f"budget:{SCOPES[1]}:TOKENS", mapping={"reserved": 0, "status": "CLOSED"})
    sweeperd("--once")
    (shown,) = sweeperd("show", "one", "--json").document["shards"]
    assert shown["sweep"]["detail"] == "RESERVED_UNDERFLOW"
    repair, *others = shown["commands"]
    assert repair == f"sweeperd reconcile --repair-budget {BUDGET}"
    assert {*others} == {"sweeperd show one", "sweeperd quarantine requeue one", "sweeperd quarantine dismiss one"}
    text = sweeperd("show", "one").out
    assert f"{SCOPES[0]} has 3 reserved, 5 to give back" in text
    assert f"\t{repair}\n" in text

    assert sweeperd(*shlex.split(repair)[1:], "--yes").code == 0
    assert sweeperd("quarantine", "requeue", "one", "--yes").code == 0
    sweeperd("--once")
    assert client.hget("reservation:res_one", "state") == b"EXPIRED"
    assert budget(client, SCOPES[0])[0] == 0
