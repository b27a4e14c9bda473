"""`sweeperd ledger show`, and the repair of a budget that has drifted."""

import pytest
import redis

from sweeperd.ops.reconcile import repair_budget
from sweeperd.store.shard import Shard
from tests.integration.conftest import Sweeperd
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
    assert "held by 3 reservations: 28" in ran.out
    assert ran.err == "sweeperd: only the first 1 are shown; see --limit\n"
    missing = sweeperd("ledger", "show", "nothing:TOKENS")
    assert (missing.code, missing.err) == (1, "sweeperd: there is no budget nothing:TOKENS\n")


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
        ("estimate_amount", "five", "some of its reservations cannot be read"),
        ("budgeted_scopes", "none", "some of its reservations cannot be read"),
        ("created_at", "", "the difference is not exact"),
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


@pytest.mark.parametrize(
    ("fields", "difference", "answer"),
    [
        ({}, 5, "repaired"),
        ({}, 11, "OUT_OF_BOUNDS"),
        ({"reserved": 2**63 - 1}, -1, "OUT_OF_BOUNDS"),
        ({"remaining": -(2**63) + 1}, -2, "OUT_OF_BOUNDS"),
        ({"remaining": 2**63 - 1}, 1, "OUT_OF_BOUNDS"),
        ({"remaining": -5}, -2, "repaired"),
        ({"remaining": 2**60 + 1}, -(2**60), "repaired"),
        ({"status": "CLOSED"}, 1, "CLOSED"),
        ({"reserved": "ten"}, 1, "INVALID_BUDGET"),
    ],
)
def test_the_script_keeps_within_bounds(
    shard: Shard, fields: dict[str, int | str], difference: int, answer: str
) -> None:
    values: dict[str, int | str] = {"reserved": 10, "remaining": 5, "status": "ACTIVE"}
    values |= fields
    for name, value in values.items():
        shard.client.hset(KEY, name, value)
    assert repair_budget(shard, KEY, difference) == answer
    raw = shard.client.hmget(KEY, "reserved", "remaining")
    after = [value.decode() for value in raw if isinstance(value, bytes)]
    if answer == "repaired":
        assert after == [str(int(values["reserved"]) - difference), str(int(values["remaining"]) + difference)]
    else:
        assert after == [str(values["reserved"]), str(values["remaining"])]
    assert repair_budget(shard, b"budget:none:TOKENS", 1) == "NO_BUDGET"
    assert shard.client.exists("budget:none:TOKENS") == 0
