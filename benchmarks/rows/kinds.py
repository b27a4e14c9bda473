"""
Measures the server time of one call of a configured kind against `expire.lua`, which does the same work.

The work: a reservation of four scopes expires, with eight sums and one event. `declared` has a template for each sum.
`script` has a script that takes the scopes from their JSON and reads the status of each budget, as `expire.lua` does;
`script_blind` has one that leaves the reading to the check of its plan. All run in turn on one server. The times are
the server's own (`INFO commandstats`). Other work on the machine disturbs them, so of all turns the shortest counts.
"""

import tempfile
from pathlib import Path
from typing import Any

import redis

from benchmarks.fill import SCOPES, entry_id, fill
from benchmarks.lab import Lab
from benchmarks.raw import TRACE_ID
from benchmarks.row import Goal, Row, Sample
from benchmarks.rows.expire import server_microseconds
from sweeperd.config import Settings, SweepSettings
from sweeperd.store.keys import Keys
from sweeperd.sweep.configured import configured
from sweeperd.sweep.kind import Kind
from sweeperd.sweep.reservations import reservations
from tests.support.kind_settings import BUDGET_HOLD

EVENT = ["scope_path", "estimate_unit", "estimate_amount", "created_at", "grace_ms", "extension_count"]
DECLARED = BUDGET_HOLD | {
    "active": {"state": "ACTIVE"},
    "give_back": [
        f"HINCRBY budget:{{scope_{number}}}:{{estimate_unit}} {move}"
        for number in range(len(SCOPES))
        for move in ("reserved -{estimate_amount} MIN 0", "remaining {estimate_amount}")
    ],
    "event": EVENT,
}
SCRIPTED = BUDGET_HOLD | {
    "script": "file:kind.lua",
    "fields": ["state", "budgeted_scopes", *EVENT],
    "writes": ["budget:*"],
}
BLIND = """
function decide(r)
  if r.state ~= 'ACTIVE' then return 'skip', r.state end
  return 'expire'
end

function plan(r)
  local writes, amount = {}, r.estimate_amount
  for _, scope in ipairs(json.decode(r.budgeted_scopes)) do
    local key = 'budget:' .. scope .. ':' .. r.estimate_unit
    writes[#writes + 1] = {'HINCRBY', key, 'reserved', '-' .. amount, 'MIN', '0'}
    writes[#writes + 1] = {'HINCRBY', key, 'remaining', amount}
  end
  return writes, {scope_path = r.scope_path, unit = r.estimate_unit, amount = amount, created_at = r.created_at,
    grace_ms = r.grace_ms, extensions = r.extension_count}
end
"""
#: The same, which leaves a closed budget alone.
READING = BLIND.replace(
    "    writes[#writes + 1] = {'HINCRBY', key, 'reserved'",
    "    if get('HMGET', key, 'reserved', 'remaining', 'status')[3] == 'CLOSED' then break end\n"
    "    writes[#writes + 1] = {'HINCRBY', key, 'reserved'",
)


def kind_of(settings: dict[str, Any], script: str = "") -> Kind:
    """The kind of these settings; `script` is the text of its file."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "kind.lua").write_text(script, encoding="utf-8")
        raw = {"kinds": [settings], "reservations": {"enabled": False}}
        made = Settings.model_validate(raw, context={"directory": directory})
    return configured(made.kinds[0], made, Keys())


def measure(lab: Lab) -> Sample:
    """The shortest times of many short turns."""
    entries, turns = lab.size("entries", 500, 100), lab.size("turns", 40, 3)
    ids = [entry_id(number) for number in range(entries)]
    contestants = {
        "expire": reservations(Keys(), SweepSettings()),
        "declared": kind_of(DECLARED),
        "script": kind_of(SCRIPTED, READING),
        "script_blind": kind_of(SCRIPTED, BLIND),
    }
    calls = {name: [kind.call(entry, TRACE_ID) for entry in ids] for name, kind in contestants.items()}

    with lab.server() as server, redis.Redis.from_url(server.url, protocol=2) as client:

        def refill() -> None:
            fill(server.url, entries)
            pipeline = client.pipeline(transaction=False)
            for call in calls["expire"]:
                pipeline.hset(call.keys[0], mapping={f"scope_{number}": scope for number, scope in enumerate(SCOPES)})
            pipeline.execute()

        times = [
            {name: server_microseconds(client, kind.script, calls[name], refill) for name, kind in contestants.items()}
            for _ in range(turns)
        ]
    best = {name: min(one[name] for one in times) for name in contestants}
    return Sample(
        {name: best[name] / best["expire"] for name in contestants if name != "expire"},
        {f"{name}_microseconds": best[name] for name in contestants},
    )


ROW = Row(
    "kinds",
    "server time of one call of a configured kind that does the work of `expire`",
    "`expire` itself, four scopes",
    {
        "declared": Goal("at_most", 1.5, "declared"),
        "script": Goal("at_most", 2.3, "with a script"),
    },
    measure,
)
