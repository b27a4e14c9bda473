"""Reservations expressed as a kind with a script decide as the built-in does, and move the same amounts."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.store.keys import Keys
from sweeperd.sweep.configured_kinds import configured
from tests.lua.builders import FAR_FUTURE, INT64_MAX, RID, SCOPES, World, json_bytes, seed
from tests.lua.kinds.world import TRACE, settings_of

SCRIPT = """
function decide(r, now)
  if r.state == 'COMMITTED' or r.state == 'RELEASED' then return 'skip', r.state end
  if r.state ~= 'ACTIVE' then return 'quarantine', 'INVALID_STATE' end
  local grace = r.grace_ms or '0'
  if not string.find(grace, '^%d+$') or #grace > 15 then return 'quarantine', 'INVALID_EXPIRY' end
  local over = tonumber(r.expires_at or '') and r.expires_at + grace
  if over and now > r.expires_at + 0 and now <= over then return 'wait', math.min(over, now + 3600000) end
  return 'expire'
end

function plan(r)
  local ok, scopes = pcall(json.decode, r.budgeted_scopes or r.affected_scopes)
  if not ok or type(scopes) ~= 'table' or #scopes == 0 then return 'quarantine', 'MALFORMED_SCOPES' end
  local writes = {}
  for i = 1, #scopes do
    local key = 'budget:' .. scopes[i] .. ':' .. r.estimate_unit
    writes[#writes + 1] = {'HINCRBY', key, 'reserved', '-' .. r.estimate_amount, 'MIN', '0'}
    writes[#writes + 1] = {'HINCRBY', key, 'remaining', r.estimate_amount}
  end
  return writes, {unit = r.estimate_unit, amount = r.estimate_amount}
end
"""
KIND: dict[str, Any] = {
    "name": "budget-hold",
    "index": "reservation:ttl",
    "key": "reservation:res_{id}",
    "deadline": "expires_at",
    "ended": {"state": "EXPIRED"},
    "tenant": "tenant",
    "script": SCRIPT,
    "writes": ["budget:*"],
}
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
    "no deadline": (lambda w: w.reservation(expires_at="nan"), {}),
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


@pytest.mark.parametrize("case", CASES)
def test_it_decides_as_the_built_in_does(client: redis.Redis, case: str) -> None:
    arrange, words = CASES[case]
    outcomes, budgets = [], []
    settings = settings_of(KIND, reservations=False)
    for prefix in ("built-in:", "kind:"):
        world = World(client, prefix)
        seed(world)
        arrange(world)
        if prefix == "built-in:":
            outcome = world.script.run(client, world.call())[0].decode()
            outcomes.append(words.get(outcome, outcome))
        else:
            kind = configured(settings.kinds[0], settings, Keys(prefix))
            outcomes.append(str(kind.decision(RID, kind.script.run(client, kind.call(RID, TRACE))).outcome))
        content = world.snapshot()
        stem = prefix.encode() + b"budget:"
        budgets.append({key.removeprefix(stem): value for key, value in content.items() if key.startswith(stem)})
    assert outcomes[0] == outcomes[1]
    assert budgets[0] == budgets[1]
