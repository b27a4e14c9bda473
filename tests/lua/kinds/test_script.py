"""The script form: what a script may answer and see, and what its faults come to."""

from typing import Any

import pytest
import redis

from tests.lua.kinds.world import DEADLINE, ID, Seats, scripted
from tests.support.servers import Server

EXPIRE = "function decide() return 'expire' end\n"
PLAN = "function plan() return {} end\n"


def made(client: redis.Redis, text: str, **changes: Any) -> Seats:
    seats = Seats(client, scripted(text, **changes))
    seats.show()
    seats.hold()
    return seats


@pytest.mark.parametrize("answer", ["nil", "true", "'Expire'", "{}", "'skip', 5", "'wait'", "'wait', '9'"])
def test_an_answer_that_is_none_is_set_aside(client: redis.Redis, answer: str) -> None:
    made(client, f"function decide() return {answer} end\n{PLAN}").check_quarantined("SCRIPT_ERROR")


@pytest.mark.parametrize("ms", ["now", "now - 1", "now + 0.5", "now + 3600001", "0/0", "2^53 + 2"])
def test_a_wait_is_a_time_to_come_within_its_limit(client: redis.Redis, ms: str) -> None:
    made(client, f"function decide(_, now) return 'wait', {ms} end\n{PLAN}").check_quarantined("SCRIPT_ERROR")


def test_wait_moves_the_index_only(client: redis.Redis) -> None:
    seats = made(client, f"function decide(_, now) return 'wait', now + 1000 end\n{PLAN}")
    before = seats.snapshot()
    assert seats.run(at=DEADLINE + 5).outcome == "not_due"
    before[seats.kind.index][ID] = DEADLINE + 1005
    assert seats.snapshot() == before


def test_extend_moves_hash_and_index(client: redis.Redis) -> None:
    seats = made(client, f"function decide(_, now) return 'extend', now + 10000000 end\n{PLAN}")
    before = seats.snapshot()
    assert seats.run(at=DEADLINE + 5).outcome == "not_due"
    before[seats.kind.index][ID] = DEADLINE + 10_000_005
    before[b"seats:hold:h1"][b"expires_at"] = b"%d" % (DEADLINE + 10_000_005)
    assert seats.snapshot() == before


@pytest.mark.parametrize(("ms", "outcome"), [(2**53, "not_due"), (2**53 + 2, "quarantined")])
def test_a_deadline_is_at_most_the_last_exact_double(client: redis.Redis, ms: int, outcome: str) -> None:
    assert made(client, f"function decide() return 'extend', {ms} end\n{PLAN}").run().outcome == outcome


@pytest.mark.parametrize("answer", ["'wait', now + 1000", "'extend', now + 1000"])
def test_neither_comes_before_the_deadline(client: redis.Redis, answer: str) -> None:
    seats = made(client, f"function decide(_, now) return {answer} end\n{PLAN}")
    seats.hold(expires_at=9_000_000_000_000)
    assert seats.run().outcome == "not_due"
    assert client.zscore("seats:ttl", ID) == 9_000_000_000_000


READS = """
function plan(hash)
  local key, values = 'seats:' .. hash.show, get('HMGET', 'seats:' .. hash.show, {fields})
  values[1], values[2] = '1000000', '1000000'
  return {{{{'HINCRBY', key, 'free', hash.qty}}, {{'HINCRBY', key, 'held', '-' .. hash.qty, 'MIN', '0'}}}}
end
"""


@pytest.mark.parametrize(
    ("fields", "reads"), [("'free', 'held'", 1), ("'held', 'x', 'free'", 1), ("'free'", 2), ("'x', 'held'", 2)]
)
def test_what_a_script_has_read_is_not_read_again(client: redis.Redis, fields: str, reads: int) -> None:
    """And what it changes in its own table of values does not get into the sums."""
    seats = made(client, EXPIRE + READS.format(fields=fields))
    client.config_resetstat()
    assert seats.run().outcome == "expired"
    stats: Any = client.info("commandstats")
    assert stats["cmdstat_hmget"]["calls"] == 1 + reads, "the entry, and the counters"
    assert seats.seats() == (13, 2)


def test_what_a_script_has_read_is_checked_as_any_other(client: redis.Redis) -> None:
    text = EXPIRE + READS.format(fields="'free', 'held'")
    seats = made(client, text)
    client.hset("seats:s1", "held", 2)
    seats.check_quarantined("INVALID_PLAN", why="below MIN")
    client.flushall()
    seats = made(client, text)
    client.hset("seats:s1", "held", "005")
    seats.check_quarantined("INVALID_PLAN", why="no int64")
    client.flushall()
    seats = made(client, text, writes=["other:*"], reads=["seats:*"])
    seats.check_quarantined("INVALID_PLAN", why="may not write")


@pytest.mark.every_redis
def test_many_values_may_be_read(client: redis.Redis) -> None:
    text = """
local names = {}
for i = 1, 3000 do names[i] = 'f' .. i end
function plan()
  return {}, {count = tostring(#get('HMGET', 'seats:s1', unpack(names)))}
end
"""
    seats = made(client, EXPIRE + text)
    assert seats.run().outcome == "expired"
    assert seats.events()[0][b"data.count"] == b"3000"


@pytest.mark.parametrize("function", ["decide", "plan"])
def test_a_quarantine_carries_the_reason(client: redis.Redis, function: str) -> None:
    other = PLAN if function == "decide" else EXPIRE
    made(client, f"{other}function {function}() return 'quarantine', 'MY_REASON' end").check_quarantined("MY_REASON")


@pytest.mark.every_redis
@pytest.mark.parametrize(
    "text",
    [
        "function decide() return hostile end\n" + PLAN,
        "function decide() return 'wait', hostile end\n" + PLAN,
        "function decide() return 'quarantine', hostile end\n" + PLAN,
        "function decide() error(hostile) end\n" + PLAN,
        EXPIRE + "function plan() return 'quarantine', hostile end",
        EXPIRE + "function plan() return {{'DEL', hostile}} end",
        EXPIRE + "function plan() return {}, {[hostile] = 'x'} end",
        EXPIRE + "function plan() return {{get('GET', hostile)}} end",
    ],
)
def test_no_function_of_the_script_runs_while_its_answer_is_checked(client: redis.Redis, text: str) -> None:
    hostile = "local hostile = setmetatable({}, {__tostring = function() error({reason = {}}) end})\n"
    made(client, hostile + text)
    seats = made(client, hostile + text)
    before = seats.snapshot()
    decision = seats.run()
    assert (decision.outcome, decision.detail in ("SCRIPT_ERROR", "INVALID_PLAN")) == ("quarantined", True)
    key = b"seats:hold:h1"
    marks = {name for name in seats.snapshot()[key] if name.startswith(b"quarantine")}
    assert marks == {b"quarantined_at", b"quarantine_reason", b"quarantine_detail"}
    assert seats.snapshot()[key].keys() - marks == before[key].keys()


@pytest.mark.every_redis
def test_a_file_that_fails_with_a_table_is_an_error(client: redis.Redis) -> None:
    text = "error(setmetatable({}, {__tostring = function() error({reason = {}}) end}))"
    seats = made(client, text)
    before = seats.snapshot()
    with pytest.raises(redis.ResponseError, match="the script file fails: a table"):
        seats.run()
    assert seats.snapshot() == before


@pytest.mark.parametrize("command", ["'HINCRBY', 'seats:s1', 'free', '1'", "'DEL', 'seats:x'"])
def test_a_plan_uses_the_commands_of_the_settings_only(client: redis.Redis, command: str) -> None:
    text = EXPIRE + f"function plan() return {{{{{command}}}}} end"
    made(client, text, commands=["SREM"]).check_quarantined("INVALID_PLAN", why="not one of commands")


@pytest.mark.parametrize("reason", ["nil", "''", "'lower'", "'A B'", "('A'):rep(65)", "5"])
def test_a_reason_has_a_form(client: redis.Redis, reason: str) -> None:
    text = f"function decide() return 'quarantine', {reason} end\n{PLAN}"
    made(client, text).check_quarantined("SCRIPT_ERROR")


@pytest.mark.every_redis
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (EXPIRE, "no function plan"),
        (PLAN, "no function decide"),
        (EXPIRE + "\nfunction plan(hash)\n  return hash.nothing.at_all\nend", "user_script:4:"),
        (EXPIRE + "function plan() error('mine') end", "mine"),
        (EXPIRE + "function plan() error({}) end", "no text"),
        (EXPIRE + "function plan() error({err = 'ours'}) end", "ours"),
        (EXPIRE + "function plan() error({err = 5}) end", "no text"),
        (EXPIRE + "function plan() error(true) end", "no text"),
        (EXPIRE + "function plan() return 5 end", "a list of commands"),
        (EXPIRE + "function plan() return {}, 5 end", "a table of event fields"),
        (EXPIRE + "function plan() return {}, {a = 5} end", "no field of an event"),
        (EXPIRE + "function plan() return {}, {id = 'x'} end", "no field of an event"),
        (EXPIRE + "function plan() x = 5 return {} end", "user_script:2:"),
        (EXPIRE + "function plan() return get('SET', 'seats:x', '1') end", "get reads"),
        (EXPIRE + "function plan() return get('GET', 'other') end", "may not read other"),
        (EXPIRE + "function plan() return get('EXISTS', 'seats:x', 'other') end", "one key"),
        (EXPIRE + "function plan() return get('GET', 'seats:s1') end", "WRONGTYPE"),
        (EXPIRE + "function plan() for i = 1, 65 do get('GET', 'seats:x') end return {} end", "64 reads"),
        (EXPIRE + "function plan() return get('GET') end", "may not read nil"),
        (EXPIRE + "function plan() return get(5, 'seats:x') end", "get reads"),
    ],
)
def test_what_raises_is_set_aside_with_its_line(client: redis.Redis, text: str, why: str) -> None:
    made(client, text).check_quarantined("SCRIPT_ERROR", why=why)


@pytest.mark.every_redis
def test_get_reads(client: redis.Redis) -> None:
    text = (
        EXPIRE
        + """
function plan()
  local values = get('HMGET', 'seats:s1', 'free', 'nothing')
  return {}, {free = values[1], nothing = tostring(values[2]), type = get('TYPE', 'seats:s1'),
    length = tostring(get('HLEN', 'seats:s1')), absent = tostring(get('GET', 'seats:x'))}
end"""
    )
    seats = made(client, text)
    assert seats.run().outcome == "expired"
    (event,) = seats.events()
    data = {name: value for name, value in event.items() if name.startswith(b"data.")}
    assert data == {
        b"data.free": b"10",
        b"data.nothing": b"false",
        b"data.type": b"hash",
        b"data.length": b"2",
        b"data.absent": b"nil",
    }
    others = {name for name in event if not name.startswith(b"data.")}
    assert {b"type", b"kind", b"id", b"tenant", b"expires_at", b"expired_at", b"trace_id"} <= others, others


@pytest.mark.parametrize(("fields", "outcome"), [(64, "expired"), (65, "quarantined")])
def test_an_event_has_64_fields_of_the_scripts_own_at_most(client: redis.Redis, fields: int, outcome: str) -> None:
    filled = f"local all = {{}} for i = 1, {fields} do all['f' .. i] = '' end"
    text = EXPIRE + f"function plan() {filled} return {{}}, all end"
    assert made(client, text).run().outcome == outcome


@pytest.mark.parametrize(("name", "value"), [(1, 65_535), (65_535, 1)])
def test_an_event_has_65536_bytes_of_the_scripts_own_at_most(client: redis.Redis, name: int, value: int) -> None:
    for more, outcome in ((0, "expired"), (1, "quarantined")):
        text = EXPIRE + f"function plan() return {{}}, {{[('n'):rep({name})] = ('v'):rep({value + more})}} end"
        assert made(client, text).run().outcome == outcome


def test_64_reads_are_not_too_many(client: redis.Redis) -> None:
    text = EXPIRE + "function plan() for i = 1, 64 do get('GET', 'seats:x') end return {} end"
    assert made(client, text).run().outcome == "expired"


@pytest.mark.parametrize(("length", "reason"), [(64, "R" * 64), (65, "SCRIPT_ERROR")])
def test_a_reason_has_64_letters_at_most(client: redis.Redis, length: int, reason: str) -> None:
    text = f"function decide() return 'quarantine', ('R'):rep({length}) end\n{PLAN}"
    made(client, text).check_quarantined(reason)


@pytest.mark.every_redis
def test_trouble_of_the_server_is_no_quarantine_whatever_the_script_catches(
    client: redis.Redis, server: Server
) -> None:
    text = EXPIRE + "function plan() pcall(get, 'GET', 'seats:secret') return {} end"
    seats = made(client, text)
    client.execute_command(
        "ACL", "SETUSER", "limited", "reset", "on", ">pw", "+@all", "~seats:ttl", "~seats:hold:*", "~sweeperd:*"
    )
    try:
        before = seats.snapshot()
        with redis.Redis(port=server.port, username="limited", password="pw", protocol=2) as limited:
            seats.client = limited
            with pytest.raises(redis.ResponseError, match=r"NOPERM|permission|can't"):
                seats.run()
        seats.client = client
        assert seats.snapshot() == before
    finally:
        client.execute_command("ACL", "DELUSER", "limited")


# ---- what it sees

HIDDEN = ["redis", "KEYS", "ARGV", "_G", "load", "loadstring", "cjson", "struct", "setfenv", "getfenv", "getmetatable"]
PRELUDE = [
    "entry", "plan_of", "clock", "sandbox", "row", "writable", "uses", "user", "event", "coroutine", "newproxy", "os",
]  # fmt: skip


@pytest.mark.every_redis
@pytest.mark.parametrize("name", [*HIDDEN, *PRELUDE])
def test_it_sees_neither_the_server_nor_the_prelude(client: redis.Redis, name: str) -> None:
    text = (
        EXPIRE
        + f"""
function plan()
  local ok, found = pcall(function() return {name} end)
  return {{}}, {{seen = tostring(ok and found ~= nil)}}
end"""
    )
    seats = made(client, text)
    assert seats.run().outcome == "expired"
    assert seats.events()[0][b"data.seen"] == b"false"


@pytest.mark.every_redis
@pytest.mark.parametrize(
    "text",
    [
        "string.format = function() return 'x' end",
        "table.sort = nil",
        "math.floor = function() return 0 end",
        "tostring = nil type = nil error = nil pcall = nil next = nil rawget = nil",
        "json.decode = nil json.encode = nil",
    ],
)
def test_nothing_that_it_changes_stays(client: redis.Redis, text: str) -> None:
    seats = made(client, EXPIRE + f"function plan(h) {text} return {{}}, {{show = h.show}} end")
    for entry in (b"h1", b"h2"):
        seats.hold(entry)
        assert seats.run(entry).outcome == "expired"
    assert client.eval("return {string.format('%d', 5), type(tostring), cjson.encode({1})}", 0) == [
        b"5",
        b"function",
        b"[1]",
    ]


def test_a_hash_of_too_many_fields_is_set_aside(client: redis.Redis) -> None:
    seats = made(client, EXPIRE + PLAN)
    seats.hold(**{f"f{n}": n for n in range(300)})
    seats.check_quarantined("TOO_MANY_FIELDS")


def test_with_fields_it_reads_these_only(client: redis.Redis) -> None:
    text = "function decide(h) return h.extra and 'skip' or 'expire' end\nfunction plan(h) return {}, {qty = h.qty} end"
    seats = made(client, text, fields=["qty"])
    seats.hold(**{f"f{n}": n for n in range(300)}, extra="1")
    assert seats.run().outcome == "expired"
    assert seats.events()[0][b"data.qty"] == b"3"
