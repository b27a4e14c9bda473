"""An operator's walk while a daemon runs: what is set aside is seen, explained, repaired, and expires."""

import json
from pathlib import Path
from typing import Any

import redis

from tests.integration.conftest import Sweeperd
from tests.support.books import Property, check, read
from tests.support.harness import SCOPES, budget, daemon, environment, eventually, reserve
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server

#: What breaks a reservation or its budget, by reason, and the repair: a command of Redis each, on its hash.
DAMAGE = {
    "INVALID_STATE": ("state", "LIMBO"),
    "INVALID_ESTIMATE": ("estimate_amount", "five"),
    "MALFORMED_SCOPES": ("budgeted_scopes", "tenant:acme"),
    "INVALID_EXPIRY": ("expires_at", "soon"),
}


def test_a_broken_system_is_found_explained_and_mended(
    server: Server, client: redis.Redis, tmp_path: Path, sweeperd: Sweeperd
) -> None:
    """A new operator's walk: a dead endpoint, rows set aside, an index with holes, a budget that has drifted."""
    first = [f"first {number}" for number in range(6)]
    reserve(client, first)
    lost = [f"lost {number}" for number in range(50)]
    broken = {f"{reason} {number}": reason for reason in DAMAGE for number in range(5)}
    with Receiver(lambda *_: Answer(503)) as dead, Receiver() as good:
        env = environment(
            server.url,
            sweep__interval="100ms",
            webhooks__attempts=1,
            webhooks__redelivery_initial="100ms",
            webhooks__redelivery_max="200ms",
            webhooks__max_age="1s",
            endpoints=[{"name": "good", "url": good.url}, {"name": "crm", "url": dead.url}],
        )
        known = {name: value for name, value in env.items() if name.startswith("SWEEPERD_WEBHOOKS")}

        def run(*arguments: str, code: int = 0) -> Any:
            ran = sweeperd(*arguments, "--json", **known)
            assert ran.code == code, ran.err or ran.out
            return json.loads(ran.out)

        with daemon(env, tmp_path) as running:
            good.wait_for(lambda requests: len(requests) == 6)
            # Due later, so that all is broken before it is.
            reserve(client, [*lost, *broken], overdue_by=-1500)
            kept = {}
            for rid, reason in broken.items():
                kept[rid] = client.hget(f"reservation:res_{rid}", DAMAGE[reason][0])
                client.hset(f"reservation:res_{rid}", DAMAGE[reason][0], DAMAGE[reason][1])
            client.zrem("reservation:ttl", *lost)
            drifted = f"budget:{SCOPES[0]}:TOKENS"
            client.hincrby(drifted, "reserved", 7)
            client.hincrby(drifted, "remaining", -7)

            # Found, each by the command that is there for it.
            eventually(lambda: run("status")["shards"][0]["quarantined"] == 20)
            (shard,) = run("status")["shards"]
            assert {entry["endpoint"]: entry["state"] for entry in shard["endpoints"]} == {
                "good": "delivering",
                "crm": "open",
            }
            assert not run("endpoints", "test", "crm", code=1)["delivered"]
            (told,) = run("reconcile", code=1)["shards"]
            # Rows that cannot be read may hold any amount, so no budget of theirs is judged.
            assert {kind: count for kind, count in told["found"].items() if count} == {"lost": 50}
            assert told["counters_unjudged"] == len(SCOPES)
            assert run("reconcile", "--repair-budget", f"{SCOPES[0]}:TOKENS", "--yes", code=1)["result"].startswith(
                "not judged"
            )
            listed = run("quarantine", "list")["shards"][0]["entries"]
            assert {entry["id"]: entry["reason"] for entry in listed} == broken
            letters = eventually(lambda: run("dead-letters", "list")["dead_letters"])
            assert {letter["endpoint"] for letter in letters} == {"crm"}
            assert {letter["event"]["data"]["reservation_id"] for letter in letters} <= set(first)

            # Explained.
            for rid, reason in broken.items():
                assert run("show", rid)["shards"][0]["sweep"]["detail"] == reason
            assert run("show", "lost 0")["shards"][0]["score"] is None

            # Mended.
            for rid, reason in broken.items():
                client.hset(f"reservation:res_{rid}", DAMAGE[reason][0], kept[rid])
            assert run("quarantine", "requeue", "--all", "--yes")["requeued"] == 20
            (told,) = run("reconcile", "--repair", "--yes", code=1)["shards"]
            assert told["mended"]["lost"] == 50
            (drift,) = [finding for finding in told["findings"] if finding["fault"] == "budget_drift"]
            assert (drift["key"], drift["difference"]) == (drifted, 7)
            repaired = run("reconcile", "--repair-budget", f"{SCOPES[0]}:TOKENS", "--yes")
            assert (repaired["result"], repaired["difference"]) == ("repaired", 7)
            dead.behaviour = lambda *_: Answer()
            assert run("endpoints", "test", "crm")["delivered"]
            good.wait_for(lambda requests: len(requests) == 76)
            expired = {request.event_id for request in good.requests}
            for _ in range(2):
                # What its circuit held back for too long is a dead letter by now, and some may be still to come.
                eventually(lambda: not run("endpoints", "list")["endpoints"][1]["pending"])
                if run("dead-letters", "list")["dead_letters"]:
                    run("dead-letters", "replay", "--endpoint", "crm", "--yes")
            dead.wait_for(lambda requests: expired <= {request.event_id for request in requests})

            # At the end nothing is left, and the books balance.
            assert run("reconcile")["found"] == 0
            (shard,) = eventually(lambda: [s for s in run("status")["shards"] if s["tick"]["expired"] == 76])
            assert (shard["due"]["entries"], shard["quarantined"]) == (0, 0)
            assert run("dead-letters", "list")["dead_letters"] == []
            assert running.metric("sweeperd_candidates_total", outcome="expired") == 76
            assert running.metric("sweeperd_candidates_total", outcome="quarantined") == 20
            assert running.terminate() == 0
    assert budget(client, SCOPES[0]) == (0, 76 * 5)
    check(read(client), set(Property))
