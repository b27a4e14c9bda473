"""
The scripts of delivery and of operators, and the expiry rates: a right that is missing, to a command or to a key, and a
stream that takes no more entries move nothing, however often the script runs. With the right back it acts once.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import redis

from sweeperd.store.scripts import Call, Script
from tests.support.acl import PASSWORD
from tests.support.servers import Server

pytestmark = pytest.mark.every_redis

EVENTS, DEAD, GROUPS, ENDPOINTS = (
    b"sweeperd:events",
    b"sweeperd:dead-letters",
    b"sweeperd:groups",
    b"sweeperd:endpoints",
)
CIRCUITS, PROCESSES = b"sweeperd:circuits", b"sweeperd:processes"
ROW, INDEX, QUARANTINE = b"reservation:res_r1", b"reservation:ttl", b"sweeperd:quarantine"
BUDGET, LEASE, RATES = b"budget:tenant:acme:TOKENS", b"sweeperd:lease:repair-budget", b"sweeperd:rates"
ACTIONS, COUNTS, FILTERS = b"sweeperd:actions", b"sweeperd:action-counts", b"sweeperd:filters"
RELAYED = [
    b"events:_all",
    b"dispatch:pending",
    b"sweeperd:relay",
    b"sweeperd:events",
    b"events:acme",
    b"deliveries:s",
    b"event:e",
    b"delivery:d",
]
GREATEST = "18446744073709551615-18446744073709551615"
NOTE = '{"made_at":5}'
PAUSE = '{"paused_at":7}'
NOW, LATER = 1_700_000_000_000, 4_000_000_000_000


class Case(NamedTuple):
    """One run of a script that writes. `commands`: what it needs; `full`: the streams that it cannot do without."""

    keys: list[bytes]
    args: list[bytes | str | int]
    commands: str
    full: tuple[bytes, ...] = ()


CASES = {
    "delivery/acknowledge_unwanted": Case([EVENTS, FILTERS], ["billing", "", "1-1"], "xack"),
    "delivery/announce": Case(
        [CIRCUITS, ENDPOINTS, EVENTS], ["billing", "", "failing", "type", "failing"], "hdel hset xadd", (EVENTS,)
    ),
    "delivery/begin_replay": Case([EVENTS, GROUPS], ["replay", "0-0", "1-1", NOTE], "xgroup hset"),
    "delivery/cancel_replay": Case([GROUPS], ["running", 5, '{"made_at":5,"cancelled":true}'], "hdel hset"),
    "delivery/change_owner": Case([EVENTS], ["billing", "us", "them", 0, 0, "", "1-1"], "xclaim"),
    "delivery/correct_moments": Case([EVENTS, ENDPOINTS, CIRCUITS, PROCESSES], [1000], "hset"),
    "delivery/dead_letter": Case(
        [EVENTS, DEAD], ["billing", "why", "billing", "1-1", 1, "us", 2, "type", "failed"], "xack xadd", (DEAD,)
    ),
    "delivery/end_replay": Case([EVENTS, GROUPS], ["running", 5, "1"], "hdel xgroup"),
    "delivery/keep_groups": Case([EVENTS, GROUPS], ["audit", "0-0", "new", 1000], "xgroup hset"),
    "delivery/leave": Case([EVENTS], ["billing", "idle"], "xack xgroup"),
    "delivery/make_due": Case([EVENTS], ["billing", "us", "-", 10, 100_000], "xclaim"),
    "delivery/note_filters": Case([FILTERS], ["us", "{}", 15_000, 6_000], "hdel hset"),
    "delivery/pass_unwanted": Case([EVENTS, FILTERS], ["running", "us", "", "1-1", "2-1"], "xreadgroup xack xgroup"),
    "delivery/relay": Case(
        RELAYED,
        [6, 9, 1000, 1000, NOW, 9, 0, 10_000, b"lock", "billing", 1, "}", 1, 1, 1, '"-"', NOW, "{}", "1-1"],
        "set zadd lpush hset xack",
    ),
    "delivery/set_field": Case([GROUPS], ["billing", "x"], "hdel hset"),
    "delivery/set_state": Case([ENDPOINTS, EVENTS], ["billing", PAUSE, "type", "paused"], "hdel hset xadd", (EVENTS,)),
    "delivery/take_tokens": Case([b"sweeperd:pace"], ["billing", 60_000_000, 5, 1], "hdel hset"),
    "delivery/trim": Case([EVENTS], ["2-1", "billing", "running"], "xtrim"),
    "ops/adopt": Case([b"reservation:res_foreign", INDEX, QUARANTINE], ["foreign"], "zrem zadd"),
    "ops/dismiss": Case([ROW, QUARANTINE], ["r1"], "zrem hset"),
    "ops/reconcile_entry": Case(
        [INDEX, QUARANTINE, b"reservation:res_late"], ["late", f"lost:{LATER}", "", 0, 0], "zrem zadd hdel pexpire"
    ),
    "ops/record_action": Case([ACTIONS, COUNTS], [100, "me", "requeue", "r1", 1, ""], "xadd xtrim hset", (ACTIONS,)),
    "ops/repair_budget": Case([BUDGET, LEASE, EVENTS], ["+", 5, "token", "budget:"], "del hset xadd xinfo", (EVENTS,)),
    "ops/replay": Case([EVENTS, DEAD], ["3-1"], "xadd xdel", (EVENTS,)),
    "ops/requeue": Case([ROW, INDEX, QUARANTINE], ["r1", "expires_at"], "zrem hdel zadd"),
    "sweep/drop_notes": Case([GROUPS, INDEX, QUARANTINE, ROW], ["running"], "hdel"),
    "sweep/expiry_rates": Case(
        [RATES, EVENTS], [NOW, 300_000, 3, 10, "spike", "trace", "acme", 100], "hdel hset xadd", (EVENTS,)
    ),
}


def fill(client: Any) -> None:
    """What the cases need; each key exists, but for those that a case makes."""
    client = client.pipeline(transaction=False)
    for entry in ("1-1", "2-1"):
        client.xadd(EVENTS, {"id": "r1"}, id=entry)
    for group in ("billing", "running"):
        client.xgroup_create(EVENTS, group, "0")
    client.xreadgroup("billing", "us", {EVENTS.decode(): ">"}, count=1)
    client.xgroup_createconsumer(EVENTS, "billing", "idle")
    letter: dict[Any, Any] = {"event": "1-1", "endpoint": "billing", "reason": "why", "attempts": 1, "id": "r1"}
    client.xadd(DEAD, letter, id="3-1")
    client.hset(GROUPS, "running", NOTE)
    client.hset(FILTERS, mapping={"answered": "90000 5", "heard:silent": "0 1", "filters:silent": "{}"})
    for key in (ENDPOINTS, CIRCUITS, PROCESSES):
        client.hset(key, "ahead@us", '{"at":9000000000000}')
    client.hset(RATES, "acme", f"{NOW - 10} 100 1 0")
    for name, more in (("r1", {}), ("late", {}), ("foreign", {"quarantined_at": 1})):
        fields: dict[Any, Any] = {"state": "ACTIVE", "expires_at": NOW, **more}
        client.hset(f"reservation:res_{name}", mapping=fields)
    client.hset("reservation:res_late", "expires_at", LATER)
    client.pexpire("reservation:res_late", 60_000)
    client.zadd(INDEX, {"other": NOW})
    client.zadd(QUARANTINE, {"r1": 1})
    client.hset(BUDGET, mapping={"reserved": 10, "remaining": 0, "allocated": 10, "thresholds": "100"})
    client.set(LEASE, "token")
    client.execute()


def world(client: redis.Redis) -> dict[bytes, tuple[object, bool]]:
    names: Any = client.keys("*")
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.dump(name)
        pipeline.pttl(name)
    told = pipeline.execute()
    return {name: (dump, ttl >= 0) for name, dump, ttl in zip(names, told[::2], told[1::2], strict=True)}


@pytest.fixture
def limited(server: Server, client: redis.Redis) -> Iterator[redis.Redis]:
    """The connection of a user who may do everything, up to now. Each event is a node of its stream, so one can go."""
    client.config_set("stream-node-max-entries", 1)
    fill(client)
    client.execute_command("ACL", "SETUSER", "clerk", "reset", "on", f">{PASSWORD}", "~*", "+@all")
    url = server.url.replace("redis://", f"redis://clerk:{PASSWORD}@")
    with redis.Redis.from_url(url, protocol=2) as connection:
        connection.ping()
        yield connection
    client.acl_deluser("clerk")
    client.config_set("stream-node-max-entries", 100)


def allow(client: redis.Redis, *changes: str) -> None:
    client.execute_command("ACL", "SETUSER", "clerk", *changes)


def nothing_moves(name: str, limited: redis.Redis, client: redis.Redis, problem: str) -> None:
    before = world(client)
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match=problem):
            Script(name).run(limited, Call(CASES[name].keys, CASES[name].args))
        assert world(client) == before


def acts_once(name: str, limited: redis.Redis, client: redis.Redis) -> None:
    case, before = CASES[name], world(client)
    Script(name).run(limited, Call(case.keys, case.args))
    after = world(client)
    assert {key for key in before | after if before.get(key) != after.get(key)} <= set(case.keys)
    assert after != before
    for stream, most in ((EVENTS, 3), (DEAD, 2), (ACTIONS, 1)):
        assert client.xlen(stream) <= most


REFUSED = "(?i)noperm|has no right|no permissions|can't (run this command|access at least one)|ACL failure"


@pytest.mark.parametrize(("name", "command"), [(name, one) for name in CASES for one in CASES[name].commands.split()])
def test_without_a_command(name: str, command: str, limited: redis.Redis, client: redis.Redis) -> None:
    allow(client, f"-{command}")
    nothing_moves(name, limited, client, REFUSED)
    allow(client, f"+{command}")
    acts_once(name, limited, client)


@pytest.mark.parametrize(("name", "key"), [(name, key) for name in CASES for key in CASES[name].keys])
def test_without_a_key(name: str, key: bytes, limited: redis.Redis, client: redis.Redis) -> None:
    allow(client, "resetkeys", *(f"~{one.decode()}" for one in CASES[name].keys if one != key))
    nothing_moves(name, limited, client, REFUSED)
    allow(client, "allkeys")
    acts_once(name, limited, client)


@pytest.mark.parametrize(("name", "stream"), [(name, stream) for name in CASES for stream in CASES[name].full])
def test_a_stream_whose_last_id_is_the_greatest(
    name: str, stream: bytes, limited: redis.Redis, client: redis.Redis
) -> None:
    client.xadd(stream, {"by": "hand"}, id=GREATEST)
    nothing_moves(name, limited, client, "XADD|stream")


def test_a_score_is_not_removed_without_the_right_to_set_another(limited: redis.Redis, client: redis.Redis) -> None:
    client.zadd(INDEX, {"late": NOW})
    call = Call(CASES["ops/reconcile_entry"].keys, ["late", f"wrong_score:{NOW}", "", 0, 0])
    allow(client, "-zadd")
    before = world(client)
    with pytest.raises(redis.ResponseError, match=REFUSED):
        Script("ops/reconcile_entry").run(limited, call)
    assert world(client) == before
    allow(client, "+zadd")
    Script("ops/reconcile_entry").run(limited, call)
    assert client.zscore(INDEX, "late") == LATER


def test_actions_are_not_trimmed_if_the_next_one_finds_no_place(limited: redis.Redis, client: redis.Redis) -> None:
    for number in range(1, 301):
        client.xadd(ACTIONS, {"who": "me"}, id=f"{number}-1")
    client.xadd(ACTIONS, {"by": "hand"}, id=GREATEST)
    nothing_moves("ops/record_action", limited, client, "XADD|stream")


def test_a_dead_letter_whose_announcement_finds_no_place(limited: redis.Redis, client: redis.Redis) -> None:
    client.xadd(EVENTS, {"by": "hand"}, id=GREATEST)
    case = CASES["delivery/dead_letter"]
    assert Script("delivery/dead_letter").run(limited, Call(case.keys, case.args)) == [b"1-1"]
    assert (client.xlen(DEAD), client.xpending(EVENTS, "billing")["pending"]) == (2, 0)
