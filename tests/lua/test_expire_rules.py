"""The rules that expire.lua keeps: checks before writes, a full Redis, arbitrary bytes, its own keys, bounded work."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.lua.builders import FAR_FUTURE, NOW, RETENTION, RID, SCOPES, VOLATILE, World, json_bytes, scopes_of, seed
from tests.support.servers import Server

#: Turns the overdue reservation into a case of each outcome.
ARRANGE: dict[str, Callable[[World], object]] = {
    "expired": lambda world: world.reservation(),
    "expired, no index entry": lambda world: world.client.zrem(world.keys.reservation_index, RID),
    "expired, budget missing": lambda world: world.client.delete(world.budget_key(SCOPES[0])),
    "not_due": lambda world: world.reservation(expires_at=FAR_FUTURE),
    "in_grace": lambda world: world.reservation(grace_ms=FAR_FUTURE),
    "skipped": lambda world: world.reservation(state="COMMITTED"),
    "not_found": lambda world: world.client.delete(world.keys.reservation(RID)),
    "quarantined, WRONG_TYPE": lambda world: (
        world.client.delete(world.keys.reservation(RID)),
        world.client.set(world.keys.reservation(RID), "text"),
    ),
    "quarantined, INVALID_STATE": lambda world: world.reservation(state="LIMBO"),
    "quarantined, INVALID_EXPIRY": lambda world: world.reservation(expires_at="nan"),
    "quarantined, INVALID_ESTIMATE": lambda world: world.reservation(estimate_amount="nan"),
    "quarantined, MALFORMED_SCOPES": lambda world: world.reservation(budgeted_scopes="{}"),
    "quarantined, INVALID_BUDGET": lambda world: world.client.hset(world.budget_key(SCOPES[1]), "reserved", "nan"),
    "quarantined, RESERVED_UNDERFLOW": lambda world: world.reservation(estimate_amount=1001),
}


def outcome_of(case: str) -> bytes:
    return case.partition(",")[0].encode()


def cases(*outcomes: str) -> list[str]:
    return [case for case in ARRANGE if outcome_of(case).decode() in outcomes]


# A full Redis


@pytest.mark.every_redis
@pytest.mark.parametrize(("case", "loaded"), [*((case, True) for case in ARRANGE), ("expired", False)])
def test_it_works_at_maxmemory(server_to_fill: Server, case: str, loaded: bool) -> None:
    with redis.Redis.from_url(server_to_fill.url, protocol=2) as client:
        world, results = World(client), []
        for maxmemory in (0, 1):  # unlimited, then less than an empty Redis holds
            client.config_set("maxmemory", 0)
            client.flushall()
            ARRANGE[case](seed(world))
            if not loaded:
                client.script_flush()
            client.config_set("maxmemory", maxmemory)
            if maxmemory:
                with pytest.raises(redis.exceptions.OutOfMemoryError):
                    client.set("more", "x")
                with pytest.raises(redis.exceptions.OutOfMemoryError):
                    client.zadd(world.keys.quarantine, {"more": 1})
            reply = world.expire(at=NOW)
            assert reply[0] == outcome_of(case)
            results.append((reply, world.without_stream_ids(world.snapshot())))
        assert results[0] == results[1]


#: What is decided before the budgets are read, and so is not deferred.
DECIDED = ("not_found", "skipped", "not_due", "in_grace", "WRONG_TYPE", "INVALID_STATE", "INVALID_EXPIRY")


@pytest.mark.parametrize("case", ARRANGE)
def test_above_the_memory_limit_what_is_past_its_grace_stays_as_it_is(world: World, case: str) -> None:
    ARRANGE[case](world)
    before = world.snapshot()
    deferred = world.expire(at=NOW, extra=["", "1"])
    if case.endswith(DECIDED):
        assert deferred[0] == outcome_of(case)
    else:
        assert deferred == [b"deferred"]
        assert world.snapshot() == before
        assert world.expire(at=NOW)[0] == outcome_of(case), "without the flag it is decided as ever"


# Checks before writes


@pytest.mark.parametrize(
    ("key", "case", "kind"),
    [
        *(("events", case, "string") for case in cases("expired")),
        *(("quarantine", case, "hash") for case in cases("quarantined")),
        *(
            ("reservation_index", case, "string")
            for case in cases("expired", "quarantined", "not_due", "skipped", "not_found")
        ),
        ("events", "expired", "hash"),
        ("quarantine", "quarantined, INVALID_STATE", "string"),
        ("reservation_index", "expired", "hash"),
    ],
)
def test_a_key_of_the_wrong_type_fails_the_call_before_it_has_written(
    world: World, key: str, case: str, kind: str
) -> None:
    ARRANGE[case](world)
    name = getattr(world.keys, key)
    world.client.delete(name)
    if kind == "string":
        world.client.set(name, "text")
    else:
        world.client.hset(name, RID, "text")
    before = world.snapshot()
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            world.expire()
        assert world.snapshot() == before


@pytest.mark.every_redis
def test_an_event_stream_that_takes_no_more_fails_the_call_and_changes_nothing(world: World) -> None:
    # Its last id is the greatest there is (somebody added an entry by hand), so XADD always fails.
    world.client.xadd(world.keys.events, {"by": "hand"}, id="18446744073709551615-18446744073709551615")
    before = world.snapshot()
    for _ in range(2):
        with pytest.raises(redis.ResponseError):
            world.expire()
        assert world.snapshot() == before


#: Settings of the `cjson` that all scripts of a server share, and their defaults.
CJSON = {
    "encode_max_depth(1)": "encode_max_depth(1000)",
    "decode_max_depth(1)": "decode_max_depth(1000)",
    "encode_sparse_array(false, 1, 1)": "encode_sparse_array(false, 2, 10)",
    "encode_invalid_numbers(true)": "encode_invalid_numbers(false)",
    "decode_invalid_numbers(false)": "decode_invalid_numbers(true)",
    "encode_number_precision(1)": "encode_number_precision(14)",
    "encode_keep_buffer(false)": "encode_keep_buffer(true)",
    "decode_array_with_array_mt(true)": "decode_array_with_array_mt(false)",
}


@pytest.mark.every_redis
def test_settings_of_cjson_are_no_matter(world: World) -> None:
    """Any client may change them for all scripts of the server."""

    def change(settings: Iterable[str]) -> None:
        world.client.eval(" ".join(f"if cjson.{each.partition('(')[0]} then cjson.{each} end" for each in settings), 0)

    world.client.delete(world.budget_key(SCOPES[0]))
    try:
        change(CJSON)
        reply = world.expire()
    finally:
        change(CJSON.values())
    assert (reply[0], reply[3]) == (b"expired", json_bytes(SCOPES[0]))


# Arbitrary bytes


IDS = [
    *(b"with space", b" ", b"", b"line\nbreak\r\n", b"a:b:c", b"res_r1", b"{braces}", b"%d%s%%", b'"quoted"\\', b"-1"),
    *(b"\xff\xfe\x00\x80", b"\x00", "зона".encode(), b"x" * 512, bytes(range(256)) * 2),
]


@pytest.mark.parametrize("rid", IDS)
def test_ids_pass_through_unharmed(world: World, rid: bytes) -> None:
    world.reservation(rid)
    assert world.expire(rid)[0] == b"expired"
    ((_, event),) = world.events()
    assert event[b"id"] == rid
    assert set(world.client.zrange(world.keys.reservation_index, 0, -1)) == {RID, b"bystander"}
    assert world.client.hget(b"reservation:res_" + rid, "state") == b"EXPIRED"
    assert world.client.hget(world.keys.reservation(RID), "state") == b"ACTIVE"


@pytest.mark.parametrize("rid", IDS)
def test_ids_pass_through_the_other_outcomes_unharmed(world: World, rid: bytes) -> None:
    world.reservation(rid, state="LIMBO")
    world.check_quarantined(b"INVALID_STATE", rid)
    world.reservation(rid, expires_at=FAR_FUTURE)
    assert world.expire(rid) == [b"not_due"]
    assert world.client.zscore(world.keys.reservation_index, rid) == FAR_FUTURE
    world.client.delete(world.keys.reservation(rid))
    assert world.expire(rid) == [b"not_found"]
    assert set(world.client.zrange(world.keys.reservation_index, 0, -1)) == {RID, b"bystander"}


@pytest.mark.parametrize(
    ("tenant", "unit"),
    [
        (b"", b"\xff\xfe"),
        (b"\xff\xfe", b"A B"),
        (b"a b\nc:d", b"A:B\n"),
        (b"\x00", b"\x00"),
        (b"[]", b"{unit}"),
        ("зона".encode(), b"%d"),
    ],
)
def test_tenants_and_units_pass_through_unharmed(world: World, tenant: bytes, unit: bytes) -> None:
    world.reservation(tenant=tenant, estimate_unit=unit, scope_path=tenant)
    world.budget(SCOPES[0], unit)
    outcome, told, _, missing, _ = world.expire()
    assert (outcome, told, scopes_of(missing)) == (b"expired", tenant, [SCOPES[1].encode()])
    assert world.amounts(SCOPES[0], unit) == (b"900", b"5100")
    ((_, event),) = world.events()
    assert [event[name] for name in (b"tenant", b"unit", b"scope")] == [tenant, unit, tenant]


@pytest.mark.parametrize(
    ("in_json", "scope"),
    [
        (b"tenant:\xff\xfe", b"tenant:\xff\xfe"),
        (b"\x80", b"\x80"),
        (b"a b:c/d", b"a b:c/d"),
        (b"a\\/b", b"a/b"),
        (b"line\\nbreak", b"line\nbreak"),
        (b"\\u0000", b"\x00"),
        (b'\\"\\\\', b'"\\'),
        (b"caf\\u00e9", "café".encode()),
        ("café".encode(), "café".encode()),
        (b"\\ud83d\\ude00", "😀".encode()),
        (b"\x7f", b"\x7f"),
        (b"x" * 5000, b"x" * 5000),
    ],
)
def test_scopes_pass_through_unharmed(world: World, in_json: bytes, scope: bytes) -> None:
    world.budget(scope)
    # The second one has no budget, so its bytes have to come back in the reply and the event.
    world.reservation(budgeted_scopes=b' [\n"%s" ,\t"gone:%s"] ' % (in_json, in_json))
    outcome, _, _, missing, _ = world.expire()
    assert outcome == b"expired"
    assert world.amounts(scope) == (b"900", b"5100")
    assert scopes_of(missing) == [b"gone:" + scope]
    assert scopes_of(world.events()[0][1][b"missing"]) == [b"gone:" + scope]


# The keys that it touches


PREFIX = "{tenant-a}:"


@pytest.fixture
def restricted(server: Server, client: redis.Redis) -> Iterator["redis.Redis"]:
    """A user who is refused every key outside PREFIX."""
    client.execute_command("ACL", "SETUSER", "fenced", "on", ">pw", f"~{PREFIX}*", "+@all")
    with redis.Redis.from_url(server.url, username="fenced", password="pw", protocol=2) as connection:
        yield connection
    client.execute_command("ACL", "DELUSER", "fenced")


@pytest.mark.every_redis
@pytest.mark.parametrize("case", ARRANGE)
def test_with_a_prefix_only_its_keys_are_touched(client: redis.Redis, restricted: redis.Redis, case: str) -> None:
    unprefixed, prefixed = seed(World(client)), seed(World(client, PREFIX))
    ARRANGE[case](prefixed)
    before = unprefixed.snapshot()
    fenced = World(restricted, PREFIX)
    with pytest.raises(redis.exceptions.NoPermissionError):
        fenced.client.get("anything")
    assert fenced.expire()[0] == outcome_of(case)
    after = unprefixed.snapshot()
    inside = PREFIX.encode()
    outside = {key: value for key, value in before.items() if not key.startswith(inside) and key != VOLATILE}
    assert outside
    assert {key: value for key, value in after.items() if not key.startswith(inside) and key != VOLATILE} == outside
    assert all(key.startswith(inside) for key in after[VOLATILE])
    if outcome_of(case) == b"expired":
        assert prefixed.amounts(SCOPES[1]) == (b"900", b"5100")
        assert len(prefixed.events()) == 1


def test_a_missing_prefixed_budget_is_not_replaced_by_an_unprefixed_one(client: redis.Redis) -> None:
    unprefixed, prefixed = seed(World(client)), seed(World(client, PREFIX))
    client.delete(prefixed.budget_key(SCOPES[0]))
    assert scopes_of(prefixed.expire()[3]) == [SCOPES[0].encode()]
    assert unprefixed.amounts(SCOPES[0]) == (b"1000", b"5000")


# Bounded work


@pytest.mark.parametrize("case", ARRANGE)
def test_the_commands_of_a_call_do_not_grow_with_the_database(world: World, case: str) -> None:
    def commands() -> dict[str, int]:
        world.client.config_resetstat()
        assert world.expire()[0] == outcome_of(case)
        stats = world.client.info("commandstats")
        return {name: numbers["calls"] for name, numbers in stats.items() if name != "cmdstat_config|resetstat"}

    world.looks = False
    world.expire(b"unknown")  # loads the script
    ARRANGE[case](world)
    few = commands()
    world.client.flushdb()
    with world.batch() as batch:
        for number in range(300):
            batch.reservation(b"%d" % number)
            batch.budget(f"scope:{number}")
    seed(world)
    ARRANGE[case](world)
    assert commands() == few


@pytest.mark.parametrize("existing", [0, 1, 256])
def test_as_many_scopes_as_there_may_be(client: redis.Redis, existing: int) -> None:
    world, count = World(client), 256
    scopes = [f"scope:{number}" for number in range(count)]
    with world.batch() as batch:
        for scope in scopes[count - existing :]:
            batch.budget(scope)
    world.reservation(budgeted_scopes=json_bytes(*scopes))
    outcome, _, _, missing, _ = world.expire()
    assert outcome == b"expired"
    assert scopes_of(missing) == [scope.encode() for scope in scopes[: count - existing]]
    ((_, event),) = world.events()
    assert event[b"missing"] == missing
    assert client.dbsize() == existing + 2
    released = set(world.amounts_of(scopes[count - existing :]).values())
    assert released == ({(b"900", b"5100")} if existing else set())
    assert client.hget(world.keys.reservation(RID), "state") == b"EXPIRED"
    assert 0 < client.pttl(world.keys.reservation(RID)) <= RETENTION


@pytest.mark.parametrize("count", [257, 10_000])
def test_too_many_scopes_are_set_aside(world: World, count: int) -> None:
    world.reservation(budgeted_scopes=json_bytes(*(f"scope:{number}" for number in range(count))))
    world.check_quarantined(b"TOO_MANY_SCOPES")


# Rights


@pytest.fixture
def as_user(server: Server, client: redis.Redis) -> Iterator[Callable[..., World]]:
    """A world as a user with these ACL rules sees it."""
    with contextlib.ExitStack() as stack:

        def user(*rules: str) -> World:
            client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", *rules)
            stack.callback(client.execute_command, "ACL", "DELUSER", "limited")
            url = {"username": "limited", "password": "pw", "protocol": 2}
            return World(stack.enter_context(redis.Redis.from_url(server.url, **url)), rivals=True)

        yield user


RESERVATIONS, BUDGETS = "reservation:res_*", "budget:*"


@pytest.mark.every_redis
@pytest.mark.parametrize(
    ("case", "writable", "readable"),
    [
        ("expired", [BUDGETS], RESERVATIONS),
        ("expired", [RESERVATIONS], BUDGETS),
        ("expired", [RESERVATIONS, f"budget:{SCOPES[0]}:*"], f"budget:{SCOPES[1]}:*"),
        ("quarantined, INVALID_STATE", [BUDGETS], RESERVATIONS),
    ],
)
def test_a_hash_that_may_only_be_read_moves_nothing(
    world: World, as_user: Callable[..., World], case: str, writable: list[str], readable: str
) -> None:
    if world.version < (7, 0):
        pytest.skip("an ACL of 6.2 has no right to read only")
    ARRANGE[case](world)
    before = world.snapshot()
    patterns = [f"~{pattern}" for pattern in ("reservation:ttl", "sweeperd:*", *writable)]
    limited = as_user("+@all", *patterns, f"%R~{readable}")
    for _ in range(2):
        with pytest.raises(redis.exceptions.NoPermissionError, match=r"(?i)no right to|no permissions"):
            limited.expire()
        assert world.snapshot() == before


#: What each outcome writes with. A right may be taken away on an open connection, so the script asks for each itself.
WRITES = {
    "expired": ["zrem", "zadd", "xadd", "hset", "pexpire"],
    "not_due": ["zrem", "zadd"],
    "skipped": ["zrem"],
    "not_found": ["zrem"],
    "quarantined, WRONG_TYPE": ["zrem", "zadd"],
    "quarantined, INVALID_STATE": ["zrem", "zadd", "hset"],
    "quarantined, RESERVED_UNDERFLOW": ["zrem", "zadd", "hset"],
}
REFUSED = r"(?i)no right to|no permissions|can't run|can't access"


@pytest.mark.every_redis
@pytest.mark.parametrize(("case", "command"), [(case, command) for case in WRITES for command in WRITES[case]])
def test_a_command_that_is_refused_moves_nothing(
    world: World, as_user: Callable[..., World], case: str, command: str
) -> None:
    ARRANGE[case](world)
    before = world.snapshot()
    limited = as_user("+@all", "~*")
    limited.client.ping()
    world.client.execute_command("ACL", "SETUSER", "limited", f"-{command}")
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match=REFUSED):
            limited.expire()
        assert world.snapshot() == before
    world.client.execute_command("ACL", "SETUSER", "limited", f"+{command}")
    assert limited.expire()[0] == outcome_of(case)
    assert len(world.events()) == (outcome_of(case) == b"expired")


KEYS = {
    "reservation:ttl": ["expired", "not_due", "skipped", "quarantined, INVALID_STATE"],
    "sweeperd:events": ["expired"],
    "sweeperd:quarantine": ["quarantined, INVALID_STATE", "quarantined, WRONG_TYPE"],
    RESERVATIONS: ["expired", "quarantined, INVALID_STATE"],
    BUDGETS: ["expired"],
}


@pytest.mark.every_redis
@pytest.mark.parametrize("readable", [False, True], ids=["no key", "read only"])
@pytest.mark.parametrize(("key", "case"), [(key, case) for key in KEYS for case in KEYS[key]])
def test_a_key_that_is_refused_moves_nothing(
    world: World, as_user: Callable[..., World], key: str, case: str, readable: bool
) -> None:
    if readable and world.version < (7, 0):
        pytest.skip("an ACL of 6.2 has no right to read only")
    ARRANGE[case](world)
    before = world.snapshot()
    limited = as_user("+@all", *(f"~{other}" for other in KEYS if other != key), *([f"%R~{key}"] if readable else []))
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match=REFUSED):
            limited.expire()
        assert world.snapshot() == before
    world.client.execute_command("ACL", "SETUSER", "limited", f"~{key}")
    assert limited.expire()[0] == outcome_of(case)
    assert len(world.events()) == (outcome_of(case) == b"expired")


@pytest.mark.every_redis
def test_a_key_of_another_type_is_set_aside_without_the_right_to_write_hashes(
    world: World, as_user: Callable[..., World]
) -> None:
    ARRANGE["quarantined, WRONG_TYPE"](world)
    limited = as_user("+@all", "-hset", "~*")
    assert limited.expire()[:2] == [b"quarantined", b"WRONG_TYPE"]


def test_the_calls_of_a_pipeline_do_not_disturb_each_other(world: World) -> None:
    # One broken entry between good ones, and one entry twice: an error or a double in one place stays there.
    ids = [b"%d" % number for number in range(20)]
    for rid in ids:
        world.reservation(rid, estimate_amount="broken" if rid == b"7" else "1")
    replies = world.script.run_many(world.client, [world.call(rid) for rid in [*ids, b"3"]])
    wanted = [b"quarantined" if rid == b"7" else b"expired" for rid in ids]
    assert [reply[0] for reply in replies] == [*wanted, b"skipped"]
    assert world.amounts(SCOPES[0]) == (b"%d" % (1000 - 19), b"%d" % (5000 + 19))
    assert len(world.events()) == 19


@pytest.mark.every_redis
def test_rivals_release_each_entry_once(server: Server, world: World) -> None:
    ids = [b"%d" % number for number in range(500)]
    with world.batch() as batch:
        for rid in ids:
            batch.reservation(rid, estimate_amount=1)
    together = threading.Barrier(4)

    def sweep() -> list[bytes]:
        with redis.Redis.from_url(server.url, protocol=2) as connection:
            rival = World(connection, rivals=True)
            together.wait(timeout=10)
            return [rival.expire(rid)[0] for rid in ids]

    with ThreadPoolExecutor(4) as pool:
        outcomes = [rival.result() for rival in [pool.submit(sweep) for _ in range(4)]]
    for of_one_id in zip(*outcomes, strict=True):
        assert sorted(of_one_id) == [b"expired", *[b"skipped"] * 3]
    assert world.amounts(SCOPES[0]) == (b"500", b"5500")
    assert sorted(event[b"id"] for _, event in world.events()) == sorted(ids)
