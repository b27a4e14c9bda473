"""`sweeperd show`."""

import json
import os
from typing import Any

import pytest
import redis

from sweeperd.config import EndpointSettings, Settings
from sweeperd.ops import show
from sweeperd.outbox import Filters, Outbox
from sweeperd.outbox.replays import replay_group
from sweeperd.store import Keys, Shard
from sweeperd.sweep.reservations import REASONS
from tests.integration.conftest import HOSTILE, Sweeperd, only_printable
from tests.lua.builders import RID, SCOPES, World
from tests.lua.test_expire_rules import ARRANGE, outcome_of
from tests.support.harness import reserve, server_time
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server, free_port
from tests.support.streams import append, entries

#: One of each outcome; tests/integration/sweep/test_explanation.py has them all.
CASES = {outcome_of(case): case for case in ARRANGE}.values()


def endpoints(**urls: str) -> list[dict[str, object]]:
    return [{"name": name, "url": url} for name, url in urls.items()]


def deliveries(ran: Any) -> dict[str, dict[str, Any]]:
    return {told["endpoint"]: told for told in ran.document["shards"][0]["event"]["deliveries"]}


@pytest.mark.parametrize("case", CASES)
def test_what_a_sweep_would_decide_is_told_and_not_done(case: str, world: World, sweeperd: Sweeperd) -> None:
    ARRANGE[case](world)
    before = world.snapshot()
    ran = sweeperd("show", RID.decode(), "--json")
    assert (ran.code, ran.err) == (0, "")
    sweep = ran.document["shards"][0]["sweep"]
    assert sweep["outcome"] == outcome_of(case).decode()
    assert sweep["why"]
    if sweep["outcome"] == "quarantined":
        assert case.endswith(sweep["detail"])
        assert REASONS[sweep["detail"]] in sweep["why"]
    assert sweeperd("show", RID.decode()).code == 0
    assert world.snapshot() == before


def test_all_of_it_as_text(world: World, sweeperd: Sweeperd) -> None:
    world.client.delete(world.budget_key(SCOPES[0]))
    world.client.zadd(world.keys.quarantine, {RID: 1_700_000_000_000})
    ran = sweeperd("show", RID.decode())
    assert ran.code == 0
    told = {(row["section"], row["name"]): row["value"] for row in ran.rows}
    assert told["reservation on default", "key"] == "reservation:res_r1"
    assert told["reservation on default", "estimate_amount"] == "100"
    assert told["reservation on default", "expires_at"] == "1700000000000 (2023-11-14T22:13:20.000Z)"
    assert told["reservation on default", "(in the index)"] == "2023-11-14T22:13:20.000Z"
    assert told["reservation on default", "(quarantined)"] == "2023-11-14T22:13:20.000Z"
    assert told["budgets on default", SCOPES[0]] == "missing"
    assert told["budgets on default", SCOPES[1]].startswith("reserved=1000 remaining=5000 spent=4000 debt=7 ")
    assert told["a sweep of default now", "would decide"] == "expired"
    assert told["a sweep of default now", "because"].endswith(SCOPES[0])
    writes = [row["value"] for row in ran.rows if row["name"] == "would write"]
    assert writes[0] == "ZREM reservation:ttl r1"
    assert f"HSET budget:{SCOPES[1]}:TOKENS reserved 900 remaining 5100" in writes


def test_the_event_and_what_became_of_it(sweeperd: Sweeperd, server: Server, client: redis.Redis) -> None:
    reserve(client, [f"r{number}" for number in range(3)])
    with Receiver() as good, Receiver(lambda *_: Answer(500)) as bad, Receiver() as other:
        urls = {"good": good.url, "bad": bad.url}
        listed = [*endpoints(**urls), {"name": "other", "url": other.url, "tenants": ["somebody"]}]
        settings = {"SWEEPERD_WEBHOOKS__ENDPOINTS": json.dumps(listed), "SWEEPERD_WEBHOOKS__ATTEMPTS": "1"}
        assert sweeperd("--once", "--json", **settings).code == 3
        expected = good.requests
    # A process has taken it and died before it passed it over.
    client.xgroup_setid("sweeperd:events", "other", "0")
    client.xreadgroup("other", "dead", {"sweeperd:events": ">"})
    client.xgroup_create("sweeperd:events", "behind", id="0")
    settings["SWEEPERD_WEBHOOKS__ENDPOINTS"] = json.dumps([*listed, {"name": "new", "url": good.url}])
    ran = sweeperd("show", "r1", "--json", **settings)
    event = ran.document["shards"][0]["event"]
    assert event["fields"]["id"] == "r1"
    assert event["webhook_id"] in {request.event_id for request in expected if b'"r1"' in request.body}
    told = deliveries(ran)
    assert {name: one["fate"] for name, one in told.items()} == {
        "good": "acknowledged",
        "bad": "pending",
        "other": "not asked for",
        "new": "no group yet",
        "behind": "not taken yet",
    }
    assert (told["bad"]["hand_overs"], told["bad"]["owner"]) == (1, "")
    assert told["bad"]["idle_seconds"] < 600
    for change in ("pause", "resume"):
        assert sweeperd("endpoints", change, "bad", "--yes", **settings).code == 0
    assert deliveries(sweeperd("show", "r1", "--json", **settings))["bad"]["idle_seconds"] is None
    rows = {row["name"]: row["value"] for row in sweeperd("show", "r1", **settings).rows}
    assert rows["bad"] == "pending, waiting for its next attempt, 1 hand-over, due now"
    client.xack("sweeperd:events", "bad", event["stream_id"])
    letter = {"event": event["stream_id"], "endpoint": "bad", "reason": "HTTP 500", "attempts": 9}
    append(client, "sweeperd:dead-letters", letter)
    told = deliveries(sweeperd("show", "r1", "--json", **settings))
    assert (told["bad"]["fate"], told["bad"]["hand_overs"], told["bad"]["reason"]) == ("dead letter", 9, "HTTP 500")
    client.xreadgroup("behind", "host-1", {"sweeperd:events": ">"})
    rows = {row["name"]: row["value"] for row in sweeperd("show", "r1", **settings).rows}
    assert ("host-1" in rows["behind"], "HTTP 500" in rows["bad"]) == (True, True)
    (shard,) = sweeperd("show", "r1", "--json", **settings).document["shards"]
    assert not any("skip" in command for command in shard["commands"]), "no endpoint of the settings"
    client.delete("sweeperd:events")
    assert "(none)" in {row["name"] for row in sweeperd("show", "r1", **settings).rows}


@pytest.mark.parametrize("by", ["another_process", "replayed_letter", "replayed_letter_of_another", "replay"])
def test_show_and_skip_agree_on_what_an_endpoint_wants(
    by: str, sweeperd: Sweeperd, shard: Shard, client: redis.Redis
) -> None:
    def settings(*tenants: str) -> dict[str, str]:
        hook = {"name": "hook", "url": "http://127.0.0.1:9/", "tenants": list(tenants), "start": "beginning"}
        return {"SWEEPERD_WEBHOOKS__ENDPOINTS": json.dumps([hook])}

    outbox, group = Outbox(shard, "dead"), "hook"
    reserve(client, ["r1"])
    assert sweeperd("--once").code == 0
    ((_, fields),) = entries(client, "sweeperd:events")
    if by == "another_process":
        hook = EndpointSettings.model_validate({"name": "hook", "url": "http://127.0.0.1:9/", "tenants": ["acme"]})
        Filters(shard, "host-1", [hook]).update()
    elif by == "replay":
        group = replay_group("hook")
        client.xgroup_create("sweeperd:events", "hook")
    else:
        client.delete("sweeperd:events")
        append(client, "sweeperd:events", {**fields, b"only_for": b"hook" if by == "replayed_letter" else b"other"})
    outbox.groups.ensure(group, "beginning")
    (entry,) = outbox.read(group, 10)
    here = settings("acme" if by in ("replay", "replayed_letter_of_another") else "hooli")
    (told,) = deliveries(sweeperd("show", entry.id.decode(), "--json", **here)).values()
    skipped = sweeperd("endpoints", "skip", "hook", entry.id.decode(), "--yes", **here)
    if by == "replayed_letter_of_another":
        assert (told["fate"], told["owner"], skipped.code) == ("not asked for", "", 1)
    else:
        assert (told["fate"], told["owner"], skipped.code) == ("pending", "dead", 0)


def test_an_event_and_a_batch_are_found_by_the_ids_that_receivers_know(sweeperd: Sweeperd, client: redis.Redis) -> None:
    reserve(client, ["r1"])
    with Receiver() as one, Receiver() as many:
        listed = [*endpoints(one=one.url), {"name": "many", "url": many.url, "batch_size": 10, "tenants": ["acme"]}]
        settings = {"SWEEPERD_WEBHOOKS__ENDPOINTS": json.dumps(listed)}
        assert sweeperd("--once", **settings).code == 0, "the groups are made"
        reserve(client, ["r2", "r3", "r4"])
        assert sweeperd("--once", **settings).code == 0
        event = next(each for each in one.requests if b'"r2"' in each.body)
        batch = next(each for each in many.requests if len(json.loads(each.body)) > 1)
    for text in (event.event_id, sweeperd("show", "r2", "--json").document["shards"][0]["event"]["stream_id"]):
        (shard,) = sweeperd("show", text, "--json", **settings).document["shards"]
        assert (shard["id"], shard["event"]["webhook_id"]) == ("r2", event.event_id)
        assert {each["endpoint"] for each in shard["event"]["attempts"]} >= {"many"}
    # The event is shown even if the hash is gone or the id was reused.
    client.hset("reservation:res_r2", "expired_at", 17)
    (shard,) = sweeperd("show", event.event_id, "--json", **settings).document["shards"]
    assert shard["event"]["fields"]["id"] == "r2"
    client.delete("reservation:res_r2")
    (shard,) = sweeperd("show", event.event_id, "--json", **settings).document["shards"]
    assert (shard["type"], shard["event"]["fields"]["id"]) == ("none", "r2")
    assert sweeperd("show", "r2", **settings).code == 1

    ran = sweeperd("show", batch.headers["webhook-id"], "--json", **settings)
    (told,) = ran.document["batches"]
    assert (told["endpoint"], told["exact"], told["count"]) == ("many", True, len(json.loads(batch.body)))
    assert [each["event_id"] for each in told["events"]] == [each["event_id"] for each in json.loads(batch.body)]
    assert [each["result"] for each in told["attempts"]] == ["delivered"]
    rows = {row["name"]: row["value"] for row in sweeperd("show", batch.headers["webhook-id"], **settings).rows}
    assert rows["endpoint"] == "many"
    client.xdel("sweeperd:events", told["events"][0]["stream_id"])
    (told,) = sweeperd("show", batch.headers["webhook-id"], "--json", **settings).document["batches"]
    assert told["exact"] is False


def test_an_event_that_is_about_no_entry(sweeperd: Sweeperd, client: redis.Redis) -> None:
    fields = {"type": "webhook.disabled", "tenant": "", "at": 1_700_000_000_000, "data": "{}"}
    entry = append(client, "sweeperd:events", fields)
    ran = sweeperd("show", entry.decode(), "--json")
    assert ran.document["shards"] == []
    (event,) = ran.document["events"]
    assert (event["shard"], event["fields"]["type"]) == ("default", "webhook.disabled")
    again = sweeperd("show", event["webhook_id"], "--json")
    assert [each["stream_id"] for each in again.document["events"]] == [entry.decode()]
    rows = {row["name"]: row["value"] for row in sweeperd("show", event["webhook_id"]).rows}
    assert rows["stream id"] == entry.decode()


def test_a_search_reads_the_last_20_000_events_and_says_how_far_back(sweeperd: Sweeperd, client: redis.Redis) -> None:
    for start in range(1, 20_500, 500):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, start + 500):
            pipeline.xadd(
                "sweeperd:events", {"id": f"r{number}", "expired_at": 1}, id=f"{1_700_000_000_000 + number}-1"
            )
        pipeline.execute()
    known = {number: sweeperd("show", f"{1_700_000_000_000 + number}-1", "--json") for number in (500, 501)}
    ids = {number: ran.document["shards"][0]["event"]["webhook_id"] for number, ran in known.items()}
    assert sweeperd("show", ids[501]).code == 0
    ran = sweeperd("show", ids[500])
    assert (ran.code, ran.err.endswith("default back to 2023-11-14T22:13:20.501Z\n")) == (1, True)
    client.xtrim("sweeperd:events", maxlen=20_000, approximate=False)
    ran = sweeperd("show", ids[500])
    assert ran.err.endswith(f"{ids[500]}\n"), "no event is older"
    # An attempt still names the place of an event beyond the last 20,000.
    client.xadd("sweeperd:events", {"id": "new", "expired_at": 1})
    listed = {"SWEEPERD_WEBHOOKS__ENDPOINTS": json.dumps(endpoints(hook="http://127.0.0.1:9/"))}
    assert sweeperd("show", ids[501], **listed).code == 1
    first = f"{1_700_000_000_501}-1"
    client.xadd("sweeperd:attempts:hook", {"event_id": ids[501], "first": first, "last": first, "events": 1})
    (shard,) = sweeperd("show", ids[501], "--json", **listed).document["shards"]
    assert shard["event"]["stream_id"] == first


def test_an_id_of_an_entry_comes_before_an_event(sweeperd: Sweeperd, client: redis.Redis) -> None:
    for name in ("1700000000000-1", "evt_" + "0" * 32, "batch_" + "0" * 32):
        reserve(client, [name], overdue_by=-60_000)
        (shard,) = sweeperd("show", name, "--json").document["shards"]
        assert shard["id"] == name
        client.delete(f"reservation:res_{name}")
        client.zrem("reservation:ttl", name)
        ran = sweeperd("show", name)
        assert (ran.code, name in ran.err) == (1, True)


def test_it_is_found_among_many_events_of_that_moment(sweeperd: Sweeperd, client: redis.Redis) -> None:
    now = server_time(client)
    for number in range(1500):
        client.xadd("sweeperd:events", {"id": f"other {number}", "expired_at": now}, id=f"{now}-{number + 1}")
    client.xadd("sweeperd:events", {"id": "r1", "expired_at": 17}, id=f"{now}-2000")  # an earlier use of the id
    client.xadd("sweeperd:events", {"id": "r1", "expired_at": now}, id=f"{now + 3}-1")
    client.hset("reservation:res_r1", mapping={"state": "EXPIRED", "expired_at": now})
    (shard,) = sweeperd("show", "r1", "--json").document["shards"]
    assert shard["event"]["stream_id"] == f"{now + 3}-1"


def test_a_dead_letter_whose_count_is_none(sweeperd: Sweeperd, client: redis.Redis) -> None:
    now = server_time(client)
    event = append(client, "sweeperd:events", {"id": "r1", "expired_at": now})
    client.hset("reservation:res_r1", mapping={"state": "EXPIRED", "expired_at": now})
    append(client, "sweeperd:dead-letters", {"event": event, "endpoint": "bad", "attempts": "9" * 5000})
    assert deliveries(sweeperd("show", "r1", "--json"))["bad"]["hand_overs"] == 0


def test_a_dead_letter_is_found_among_all_that_are_newer_than_the_event(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the event would pass for an acknowledged one."""
    monkeypatch.setattr(show, "SEARCH", 2)
    event = append(client, "sweeperd:events", {"id": "r1", "expired_at": server_time(client)})
    client.xgroup_create("sweeperd:events", "billing", "$")
    for number in range(5):
        append(client, "sweeperd:dead-letters", {"event": f"1-{number}", "endpoint": "billing"})
    append(client, "sweeperd:dead-letters", {"event": event, "endpoint": "billing"})
    events: Any = client.xrange("sweeperd:events")
    (delivery,) = show.read_event(Settings(), shard, events[0]).deliveries
    assert (delivery.endpoint, delivery.fate) == ("billing", show.Fate.DEAD_LETTER)


@pytest.mark.parametrize("expired_at", ["", "soon", "-1", "9" * 400, "9" * 16, "٣"])
def test_a_time_that_is_none(expired_at: str, sweeperd: Sweeperd, client: redis.Redis) -> None:
    client.hset("reservation:res_r1", mapping={"state": "EXPIRED", "expired_at": expired_at})
    client.xadd("sweeperd:events", {"id": "r1"})
    assert sweeperd("show", "r1").code == 0
    assert sweeperd("show", "r1", "--json").document["shards"][0]["event"] is None


@pytest.mark.parametrize("scopes", ["[" * 5000, '["\\ud800"]', "{}", "[1]", b"\xff", json.dumps(["s"] * 5000)])
def test_scopes_that_are_none(scopes: str, sweeperd: Sweeperd, world: World) -> None:
    world.reservation(budgeted_scopes=scopes)
    assert sweeperd("show", RID.decode(), "--json").code == 0


@pytest.mark.parametrize("kind", ["string", "none"])
def test_what_is_no_hash(kind: str, sweeperd: Sweeperd, client: redis.Redis) -> None:
    client.zadd("reservation:ttl", {"r1": 1})
    if kind == "string":
        client.set("reservation:res_r1", "text")
    (row,) = [row for row in sweeperd("show", "r1").rows if row["name"] == "type"]
    assert row["value"] == kind


def test_ids_of_arbitrary_bytes_are_found_as_logs_show_them(sweeperd: Sweeperd, client: redis.Redis) -> None:
    for reservation, typed in [
        (b"\xff\xfe\x00", r"\xff\xfe\x00"),
        (b"line\nbreak", r"line\nbreak"),
        (b"with space:and colon", "with space:and colon"),
        ("зона".encode(), "зона"),
        (b"\xff raw", os.fsdecode(b"\xff raw")),
        (rb"\xff as typed", r"\xff as typed"),
        (b"", ""),
    ]:
        client.hset(Keys().reservation(reservation), "state", "COMMITTED")
        ran = sweeperd("show", "--json", "--", typed)
        assert ran.code == 0, typed
        shown = ran.document["shards"][0]
        assert shown["sweep"]["detail"] == "COMMITTED"
        assert shown["id"] == reservation.decode("utf-8", "backslashreplace")


@pytest.mark.parametrize("typed", ["nobody", "reservation:res_r1", HOSTILE.decode("utf-8", "replace")])
def test_an_unknown_id(typed: str, sweeperd: Sweeperd, world: World) -> None:
    for arguments in (["show", typed], ["show", typed, "--json"]):
        ran = sweeperd(*arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        only_printable(ran.err)


def test_an_unknown_id_of_any_bytes_is_told_as_it_would_be_shown(sweeperd: Sweeperd, world: World) -> None:
    assert sweeperd("show", os.fsdecode(b"\xff\xfe")).err.endswith(r" \xff\xfe" + "\n")


def test_each_shard_that_knows_the_id_is_shown(sweeperd: Sweeperd, server: Server, client: redis.Redis) -> None:
    reserve(client, ["r1"], prefix="a:")
    reserve(client, ["r1"], prefix="b:", amount=7)
    places = [{"name": prefix, "url": server.url, "prefix": f"{prefix}:"} for prefix in ("a", "b", "c")]
    dead = {"name": "dead", "url": f"redis://127.0.0.1:{free_port()}/0"}
    ran = sweeperd("show", "r1", "--json", url="", SWEEPERD_SHARDS=json.dumps(places))
    assert [(s["shard"], s["fields"]["estimate_amount"]) for s in ran.document["shards"]] == [("a", "5"), ("b", "7")]
    assert ran.document["shards"][1]["key"] == "b:reservation:res_r1"
    ran = sweeperd("show", "r1", "--json", url="", SWEEPERD_SHARDS=json.dumps([dead, *places]))
    assert (ran.code, len(ran.document["shards"])) == (1, 2)
    assert ran.err.startswith("sweeperd: shard dead: ")


def test_hostile_texts(sweeperd: Sweeperd, world: World) -> None:
    scopes = json.dumps([HOSTILE.decode("utf-8", "replace")])
    for fields in ({"tenant": HOSTILE, "estimate_unit": HOSTILE}, {"budgeted_scopes": scopes}, {"state": HOSTILE}):
        world.reservation(**fields)
        odd: dict[str, Any] = {HOSTILE.decode("latin-1"): HOSTILE}
        world.reservation(**odd)
        ran = sweeperd("show", RID.decode())
        assert ran.code == 0
        only_printable(ran.out)
        assert all(line.count("\t") == 2 for line in ran.out.splitlines())
        assert sweeperd("show", RID.decode(), "--json").document
