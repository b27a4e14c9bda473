"""`sweeperd ledger show`, and the repair of a budget that has drifted."""

import re

import pytest
import redis

from sweeperd.config import SweepSettings
from sweeperd.ops.reconcile.budget_repair import repair_budget
from sweeperd.ops.reconcile.budgets import judge_budget
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.store import Shard
from tests.integration.conftest import Sweeperd
from tests.support.fixtures import full
from tests.support.harness import SCOPES, budget, reserve

NAME = f"{SCOPES[0]}:TOKENS"
KEY = f"budget:{NAME}".encode()
LATER = -50_000


def test_it_lists_what_holds_the_budget(sweeperd: Sweeperd, client: redis.Redis) -> None:
    reserve(client, ["one", "two", "other", "ended", "aside"], overdue_by=LATER, amount=7)
    client.hset("reservation:res_other", "budgeted_scopes", '["elsewhere"]')
    client.hset("reservation:res_ended", mapping={"state": "COMMITTED", "committed_at": 5})
    client.hset("reservation:res_aside", "quarantined_at", 5)
    client.hset("reservation:res_two", "budgeted_scopes", f'["{SCOPES[0]}","{SCOPES[0]}"]')
    (shard,) = sweeperd("ledger", "show", NAME, "--json").document["shards"]
    assert {each["id"]: each["amount"] for each in shard["holders"]} == {"one": 7, "two": 14, "aside": 7}
    assert (shard["held"], shard["reservations"], shard["fields"]["reserved"]) == (28, 3, "35")
    ran = sweeperd("ledger", "show", NAME, "--limit", "1")
    assert ("held: 28, by 3 reservations" in ran.out, "--limit" in ran.err) == (True, True)
    missing = sweeperd("ledger", "show", "nothing:TOKENS")
    assert (missing.code, "nothing:TOKENS" in missing.err) == (1, True)


@pytest.mark.parametrize("drift", [7, -3])
def test_a_drift_is_ended_and_nothing_else_changes(sweeperd: Sweeperd, client: redis.Redis, drift: int) -> None:
    reserve(client, ["one", "two"], overdue_by=LATER, amount=7)
    before = budget(client)
    client.hincrby(KEY, "reserved", drift)
    client.hincrby(KEY, "remaining", -drift)
    assert sweeperd("reconcile", "--repair-budget", NAME).code == 2, "it must be confirmed"
    ran = sweeperd("reconcile", "--repair-budget", NAME, "--yes", "--json")
    assert (ran.code, ran.document["result"], ran.document["difference"]) == (0, "repaired", drift)
    assert budget(client) == before
    assert sweeperd("reconcile", "--json").document["found"] == 0
    ran = sweeperd("reconcile", "--repair-budget", NAME, "--yes", "--json")
    assert (ran.code, ran.document["result"]) == (0, "no drift")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("estimate_amount", "five", "cannot be read"),
        ("budgeted_scopes", "none", "cannot be read"),
        ("created_at", "", "not exact"),
    ],
)
def test_what_is_not_certain_is_not_repaired(
    sweeperd: Sweeperd, client: redis.Redis, field: str, value: str, reason: str
) -> None:
    reserve(client, ["one", "two"], overdue_by=LATER)
    client.hincrby(KEY, "reserved", 7)
    client.hset("reservation:res_two", field, value)
    ran = sweeperd("reconcile", "--repair-budget", NAME, "--yes")
    assert ran.code == 1
    assert reason in ran.err
    assert budget(client)[0] == 17


def test_while_another_repair_is_under_way_nothing_is_done(
    sweeperd: Sweeperd, client: redis.Redis, shard: Shard
) -> None:
    reserve(client, ["one", "two"], overdue_by=LATER)
    client.hincrby(KEY, "reserved", 7)
    client.set("sweeperd:lease:repair-budget", "host-5-0123456789abcdef", px=60_000)
    ran = sweeperd("reconcile", "--repair-budget", NAME, "--yes", "--json")
    assert (ran.code, "host-5" in ran.document["result"]) == (1, True)
    client.delete("sweeperd:lease:repair-budget")
    with full(shard):
        ran = sweeperd("reconcile", "--repair-budget", NAME, "--yes", "--json")
    assert (ran.code, "full" in ran.document["result"]) == (1, True)
    assert budget(client)[0] == 17
    assert sweeperd("reconcile", "--repair-budget", NAME, "--yes").code == 0
    assert budget(client)[0] == 10
    assert not client.exists("sweeperd:lease:repair-budget")


def test_a_drift_that_the_operator_did_not_see_is_not_ended(shard: Shard, client: redis.Redis) -> None:
    reserve(client, ["one", "two"], overdue_by=LATER)
    client.hincrby(KEY, "reserved", 7)
    seen = judge_budget(shard, SweepSettings(), KEY, Throttle()).difference
    assert seen
    client.hincrby(KEY, "reserved", 1)
    done = repair_budget(shard, SweepSettings(), KEY, seen)
    assert re.findall(r"\d+", done.result) == ["8", "7"]
    client.hincrby(KEY, "reserved", -8)
    assert repair_budget(shard, SweepSettings(), KEY, seen).result == "no drift"
    assert budget(client)[0] == 10
