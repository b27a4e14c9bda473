"""Reservations expressed as a kind with a script decide as the built-in does, and move the same amounts."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.store import Keys
from sweeperd.sweep import Kind
from tests.fixture.load import load
from tests.fixture.verify import differences
from tests.lua.builders import FAR_FUTURE, INT64_MAX, INT64_MIN, RID, SCOPES, World, json_bytes, seed
from tests.lua.kinds.world import TRACE, settings_of
from tests.lua.test_expire_quarantine import BAD_AMOUNTS, BAD_INT64, BAD_TIMES
from tests.support.builders import configured_kind
from tests.support.kind_settings import BUDGET_HOLD

#: What expire.lua decides, as a user would write it. A plan has 64 writes at most, so an entry has 32 scopes at most.
SCRIPT = r"""
local function time_of(text)
  local value = text and (text == '0' or string.find(text, '^[1-9]%d*$')) and tonumber(text)
  return value and (value < 9007199254740992 or text == '9007199254740992') and value
end

-- The sign and two limbs of an int64, value = high * 1e10 + low; nil where the text is none.
local function int64(text)
  local sign, digits = string.match(text or '', '^(%-?)(%d+)$')
  local most = sign == '-' and '9223372036854775808' or '9223372036854775807'
  if not digits or #digits > 19 or (#digits == 19 and digits > most)
    or (string.sub(digits, 1, 1) == '0' and text ~= '0') then
    return nil
  end
  return sign, tonumber(string.sub(digits, 1, -11)) or 0, tonumber(string.sub(digits, -10))
end

-- Whether a - b is above or below 0, or 0, where both are high * 1e10 + low.
local function compare(a_high, a_low, b_high, b_low)
  local high, low = a_high - b_high, a_low - b_low
  local carry = math.floor(low / 1e10)
  return high + carry ~= 0 and high + carry or low - carry * 1e10
end

function decide(r, now)
  if r.state == 'COMMITTED' or r.state == 'RELEASED' then return 'skip', r.state end
  if r.state ~= 'ACTIVE' then return 'quarantine', 'INVALID_STATE' end
  local expires_at, grace = time_of(r.expires_at), time_of(r.grace_ms or '0')
  if not expires_at or not grace then return 'quarantine', 'INVALID_EXPIRY' end
  if now > expires_at and now <= expires_at + grace then
    return 'wait', math.min(expires_at + grace + 1, now + 3600000)
  end
  return 'expire'
end

local function read(key)
  local ok, row = pcall(get, 'HMGET', key, 'reserved', 'remaining', 'status')
  return ok and row
end

-- nil; or why the budget cannot take so many times the amount; or 'closed'.
local function problem(row, amount, times)
  local reserved_sign, reserved_high, reserved_low = int64(row[1])
  local sign, high, low = int64(row[2])
  local _, amount_high, amount_low = int64(amount)
  if not reserved_sign or not sign then return 'INVALID_BUDGET' end
  amount_high, amount_low = amount_high * times, amount_low * times
  if (reserved_sign == '-' and amount ~= '0')
    or (reserved_sign == '' and compare(reserved_high, reserved_low, amount_high, amount_low) < 0) then
    return row[3] == 'CLOSED' and 'closed' or 'RESERVED_UNDERFLOW'
  end
  if sign == '' and compare(high + amount_high, low + amount_low, 922337203, 6854775807) > 0 then
    return 'BUDGET_OVERFLOW'
  end
end

function plan(r)
  local amount, unit = r.estimate_amount, r.estimate_unit
  if int64(amount) ~= '' or not unit or unit == '' then return 'quarantine', 'INVALID_ESTIMATE' end
  local text = r.budgeted_scopes or r.affected_scopes
  if not text then return 'quarantine', 'MISSING_SCOPES' end
  local ok, scopes = pcall(json.decode, text)
  if not ok or type(scopes) ~= 'table' or #scopes == 0 or string.find(text, '\0', 1, true) then
    return 'quarantine', 'MALFORMED_SCOPES'
  end
  if #scopes > 256 then return 'quarantine', 'TOO_MANY_SCOPES' end
  local writes, times, closed = {}, {}, {}
  for i = 1, #scopes do
    local scope = scopes[i]
    if type(scope) ~= 'string' or scope == '' then return 'quarantine', 'MALFORMED_SCOPES' end
    local key = 'budget:' .. scope .. ':' .. unit
    local row = read(key)
    if not row then return 'quarantine', 'INVALID_BUDGET' end
    if row[1] or row[2] or get('EXISTS', key) == 1 then
      times[key] = (times[key] or 0) + 1
      local why = problem(row, amount, times[key])
      if why == 'closed' then
        closed[key] = true
      elseif why and not closed[key] then
        return 'quarantine', why
      end
    end
  end
  for i = 1, #scopes do
    local key = 'budget:' .. scopes[i] .. ':' .. unit
    if not closed[key] then
      writes[#writes + 1] = {'HINCRBY', key, 'reserved', '-' .. amount}
      writes[#writes + 1] = {'HINCRBY', key, 'remaining', amount}
    end
  end
  return writes, {unit = unit, amount = amount}
end
"""
KIND = BUDGET_HOLD | {"script": SCRIPT, "writes": ["budget:*"]}
#: How each case is made, and what the kind answers where it has another word for the same.
CASES: dict[str, tuple[Callable[[World], object], dict[str, str]]] = {
    "expired": (lambda world: None, {}),
    "twice in one scope": (lambda w: w.reservation(budgeted_scopes=json_bytes(SCOPES[0], SCOPES[0])), {}),
    "beyond a double": (
        lambda w: (w.budget(SCOPES[0], reserved=INT64_MAX), w.reservation(estimate_amount=2**53 + 1)),
        {},
    ),
    "committed": (lambda w: w.reservation(state="COMMITTED"), {}),
    "expired before": (lambda w: w.reservation(state="EXPIRED"), {}),
    "no such state": (lambda w: w.reservation(state="LIMBO"), {}),
    "not due": (lambda w: w.reservation(expires_at=FAR_FUTURE), {}),
    "in grace": (lambda w: w.reservation(grace_ms=200_000_000_000), {"in_grace": "not_due"}),
    "no hash": (lambda w: w.client.delete(w.keys.reservation(RID)), {}),
    "another type": (
        lambda w: (w.client.delete(w.keys.reservation(RID)), w.client.set(w.keys.reservation(RID), "x")),
        {},
    ),
    "a missing budget": (lambda w: w.client.delete(w.budget_key(SCOPES[0])), {}),
    "malformed scopes": (lambda w: w.reservation(budgeted_scopes="{}"), {}),
    "too little reserved": (lambda w: w.budget(SCOPES[0], reserved=99), {}),
    "beyond int64": (lambda w: w.budget(SCOPES[0], remaining=INT64_MAX), {}),
    "a budget of another type": (
        lambda w: (w.client.delete(w.budget_key(SCOPES[0])), w.client.set(w.budget_key(SCOPES[0]), "x")),
        {},
    ),
}


BAD_SCOPES = ["", "[]", "{}", "null", "7", '"a"', "[1]", '[""]', '["a", null]', "[", b'["a"]\x00']
BAD_FIELDS: dict[str, list[Any]] = {
    "expires_at": [None, *BAD_TIMES],
    "grace_ms": [*BAD_TIMES],
    "estimate_amount": [None, *BAD_AMOUNTS],
    "estimate_unit": [None, ""],
    "state": [None, "", "active", "ACTIVE "],
    "budgeted_scopes": [*BAD_SCOPES],
}


def with_field(field: str, value: Any) -> Callable[[World], object]:
    return lambda world: world.reservation(**{field: value})


def with_budget(status: str, /, **fields: Any) -> Callable[[World], object]:
    return lambda world: world.client.hset(world.budget(SCOPES[1], **fields), "status", status)


CASES |= {f"{field} {value!r}": (with_field(field, value), {}) for field in BAD_FIELDS for value in BAD_FIELDS[field]}
CASES |= {
    f"{field} of a budget {value!r}": (with_budget("ACTIVE", **{field: value}), {})
    for field in ("reserved", "remaining")
    for value in (None, *BAD_INT64, INT64_MAX, INT64_MIN, 0, 99, 100)
}
CASES |= {f"a closed budget with {held}": (with_budget("CLOSED", reserved=held), {}) for held in (0, 1, 99, 100)}
CASES["a closed budget named twice"] = (
    lambda w: (
        w.client.hset(w.budget(SCOPES[0], reserved=150), "status", "CLOSED"),
        w.reservation(budgeted_scopes=json_bytes(SCOPES[0], SCOPES[0])),
    ),
    {},
)


def deciding(client: redis.Redis, prefix: str) -> Kind:
    settings = settings_of(KIND, reservations=False)
    return configured_kind(settings.kinds[0], settings, Keys(prefix))


def test_it_decides_as_the_built_in_does(client: redis.Redis) -> None:
    """All cases on one server: a test of its own for each would take longer than the cases."""
    for case, (arrange, words) in CASES.items():
        client.flushall()
        found = []
        for prefix in ("built-in:", "kind:"):
            world = World(client, prefix)
            seed(world)
            arrange(world)
            if prefix == "built-in:":
                reply = [
                    item.decode(errors="replace")
                    for item in world.script.run(client, world.call())[:2]
                    if isinstance(item, bytes)
                ]
                outcome, reason = words.get(reply[0], reply[0]), reply[1] if reply[0] == "quarantined" else ""
            else:
                kind = deciding(client, prefix)
                decision = kind.decision(RID, kind.script.run(client, kind.call(RID, TRACE, True)))
                outcome, reason = str(decision.outcome), decision.detail if decision.outcome == "quarantined" else ""
            content, stem = world.snapshot(), prefix.encode() + b"budget:"
            budgets = {key.removeprefix(stem): value for key, value in content.items() if key.startswith(stem)}
            row = content.get(world.keys.reservation(RID))
            state = row.get(b"state") if isinstance(row, dict) else row
            found.append((outcome, reason, state, budgets, len(world.events())))
        assert found[0] == found[1], case


@pytest.mark.parametrize("prefix", ["", "{tenant-a}:"])
def test_it_decides_the_whole_fixture(client: redis.Redis, prefix: str) -> None:
    load(client, prefix)
    kind = deciding(client, prefix)
    due: list[Any] = client.zrangebyscore(kind.index, "-inf", World(client).now())
    assert len(due) > 200
    kept: dict[bytes, Any] = {}
    for entry in due:
        if kind.decision(entry, kind.script.run(client, kind.call(entry, TRACE, True))).outcome == "not_due":
            kept[entry] = client.zscore(kind.index, entry)
    with redis.Redis(
        connection_pool=redis.ConnectionPool(**client.connection_pool.connection_kwargs | {"decode_responses": True})
    ) as reading:
        assert differences(reading, prefix) == []
    assert len(kept) >= 40
    assert min(kept.values()) > World(client).now(), "what is in grace waits until its end"
