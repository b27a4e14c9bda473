"""What the number of endpoints costs, in commands to Redis, and what is listed of them."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
import redis

from sweeperd.config import EndpointSettings, Settings
from sweeperd.ops.check.endpoints import check_endpoints
from sweeperd.ops.check.findings import CheckLevel
from sweeperd.ops.endpoint_health import LISTED
from sweeperd.ops.status import ATTEMPTS, ShardStatus, read_status
from sweeperd.outbox import CircuitNote, Subscription, read_backlogs
from sweeperd.store import Shard, streams
from tests.integration.conftest import Sweeperd
from tests.support.harness import server_time

MANY = LISTED + 30
EVENTS = "sweeperd:events"


def listed(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"name": f"e{number:03}", "url": "http://127.0.0.1:9/"} | more for number in range(count)]


def settings(count: int, **more: Any) -> Settings:
    return Settings.model_validate({"webhooks": {"concurrency": MANY, "endpoints": listed(count, **more)}})


def prepare(client: redis.Redis, count: int) -> None:
    """Groups that are up to date, a circuit and an attempt for each endpoint."""
    client.xadd(EVENTS, {"id": "old", "tenant": "acme"})
    now = server_time(client)
    for endpoint in listed(count):
        name = endpoint["name"]
        client.xgroup_create(EVENTS, name, id="$")
        client.hset("sweeperd:circuits", f"{name}@host-1", CircuitNote(process="host-1", at=now).model_dump_json())
        client.xadd(f"sweeperd:attempts:{name}", {"result": "delivered", "first": "1-1", "last": "1-1"})


def delivers(client: redis.Redis) -> None:
    """A daemon announces itself."""
    daemon = {"process": "host-1", "at": server_time(client), "sweeps": True, "delivers": True}
    client.hset("sweeperd:processes", "host-1-0123abcd", json.dumps(daemon))


def commands(client: redis.Redis, work: Callable[[], object]) -> dict[str, int]:
    """How often each command was sent to Redis."""

    def counts() -> dict[str, int]:
        found = cast(dict[str, dict[str, int]], client.info("commandstats"))
        return {name.removeprefix("cmdstat_").partition("|")[0]: each["calls"] for name, each in found.items()}

    before = counts()
    work()
    return {name: more for name, count in counts().items() if (more := count - before.get(name, 0)) and name != "info"}


def the_status(shard: Shard, count: int, **more: Any) -> ShardStatus:
    status = read_status(settings(count, **more), shard, detailed=True)
    assert status.error == ""
    assert len(status.endpoints) >= count
    return status


def test_a_status_sends_as_many_commands_for_many_endpoints_as_for_few(shard: Shard, client: redis.Redis) -> None:
    prepare(client, MANY)
    the_status(shard, 2)  # loads the scripts
    few = commands(client, lambda: the_status(shard, 2))
    many = commands(client, lambda: the_status(shard, MANY))
    assert many.pop("xrevrange") - few.pop("xrevrange") == LISTED - 2, "the attempts of the listed endpoints"
    assert many == few
    assert "xrange" not in many, "nobody lags"


@pytest.mark.every_redis
@pytest.mark.parametrize("tenants", [None, ["acme"]])
def test_endpoints_at_the_same_position_share_what_is_read(
    shard: Shard, client: redis.Redis, tenants: list[str] | None
) -> None:
    prepare(client, MANY)
    for number in range(150):
        client.xadd(EVENTS, {"id": str(number), "tenant": "acme" if number % 3 else "globex"})
    client.xreadgroup("e001", "me", {EVENTS: ">"}, count=3)
    more = {} if tenants is None else {"tenants": tenants}
    found: list[ShardStatus] = []
    sent = commands(client, lambda: found.append(the_status(shard, MANY, **more)))
    assert sent["xrange"] <= 6, "two pages from each of two positions"
    assert sent["xpending"] == 1
    groups = streams.groups(client, shard.keys.events)
    for endpoint in found[0].endpoints[:3]:
        subscription = Subscription(EndpointSettings.model_validate(listed(1, **more)[0] | {"name": endpoint.endpoint}))
        (alone,) = read_backlogs(shard, [(groups[endpoint.endpoint.encode()], subscription)], found[0].now_ms)
        assert alone is not None
        assert (endpoint.pending, endpoint.oldest_pending_seconds) == (alone.events, alone.oldest_seconds)


def test_the_attempts_of_the_listed_endpoints_are_read(shard: Shard, client: redis.Redis) -> None:
    prepare(client, MANY)
    last = listed(MANY)[-1]["name"]
    for _ in range(ATTEMPTS + 1):
        client.xadd(f"sweeperd:attempts:{last}", {"result": "failed", "first": "1-1", "last": "1-1"})
    client.hset("sweeperd:endpoints", last, json.dumps({"paused_at": 1, "reason": "HTTP 410"}))
    delivers(client)
    attempts = the_status(shard, MANY).details.attempts
    assert len(attempts) == LISTED
    assert [each.result for each in attempts[last]] == ["failed"] * ATTEMPTS


def _endpoints(text: str) -> str:
    """The table of endpoints among those of `status`."""
    return next(table for table in text.strip().split("\n\n") if "\tpending\t" in table.partition("\n")[0])


def test_tables_list_the_most_troubled_and_count_the_others(sweeperd: Sweeperd, client: redis.Redis) -> None:
    prepare(client, MANY)
    paused, muted, lost = "e074", "e052", "e063"
    client.hset("sweeperd:endpoints", paused, json.dumps({"paused_at": 1, "reason": "HTTP 410"}))
    client.hset("sweeperd:endpoints", muted, json.dumps({"muted_until": server_time(client) + 60_000}))
    client.xadd("sweeperd:dead-letters", {"endpoint": lost})
    delivers(client)
    env = {"SWEEPERD_WEBHOOKS__ENDPOINTS": json.dumps(listed(MANY)), "SWEEPERD_WEBHOOKS__CONCURRENCY": str(MANY)}
    for verbs in (["status"], ["endpoints", "list"]):
        cut, whole, document = (sweeperd(*verbs, *more, **env) for more in ([], ["--all"], ["--json"]))
        names = [row.split("\t")[verbs == ["status"]] for row in _endpoints(cut.out).splitlines()[1:]]
        assert (len(names), names[:4]) == (LISTED, [paused, muted, lost, "e000"])
        assert f"{MANY - LISTED} more endpoints" in cut.err
        rows = _endpoints(whole.out).splitlines()[1:]
        assert (len(rows), "more endpoints" in whole.err) == (MANY, False)
        found = document.document
        endpoints = found["endpoints"] if "endpoints" in found else found["shards"][0]["endpoints"]
        assert [each["endpoint"] for each in endpoints] == [each["name"] for each in listed(MANY)]


def test_a_check_lists_the_first_and_those_with_a_finding(sweeperd: Sweeperd) -> None:
    endpoints = [*listed(MANY), {"name": "unknown", "url": "https://receiver.invalid/"}]
    env = {"SWEEPERD_WEBHOOKS__ENDPOINTS": json.dumps(endpoints), "SWEEPERD_WEBHOOKS__CONCURRENCY": str(MANY + 1)}
    cut, whole, document = (sweeperd("check", *more, **env) for more in ([], ["--all"], ["--json"]))

    def checked(out: str) -> list[str]:
        wheres = [row.split("\t")[1] for row in out.splitlines()[1:]]
        return [where.removeprefix("endpoint ") for where in wheres if where.startswith("endpoint ")]

    names = [each["name"] for each in endpoints]
    assert checked(cut.out) == [*names[:LISTED], "unknown"]
    assert (str(MANY - LISTED) in cut.err, checked(whole.out)) == (True, names)
    assert [each["level"] for each in document.document["checks"] if each["where"] == "endpoint unknown"] == ["failure"]


def test_endpoints_are_checked_side_by_side_and_told_of_in_order() -> None:
    endpoints = [EndpointSettings.model_validate(each) for each in listed(MANY)]
    found = list(check_endpoints(endpoints))
    assert [each.where for each in found] == [f"endpoint {each.name}" for each in endpoints]
    assert {each.level for each in found} == {CheckLevel.OK}
