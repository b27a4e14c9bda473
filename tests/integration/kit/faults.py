"""Faults that are seeded into the four examples and into reservations, for the kit to catch."""

from typing import NamedTuple

CLOCK = "local time = redis.call('TIME')"


class Fault(NamedTuple):
    """`old` text of the joined script becomes `new`."""

    name: str
    example: str
    old: str
    new: str


SEATS = [
    ("expires at its deadline, not after it", "if clock.now <= expires_at then", "if clock.now < expires_at then"),
    ("expires a second early", "if clock.now <= expires_at then", "if clock.now + 1000 <= expires_at then"),
    ("takes the time from its caller", CLOCK, "local time = {ARGV[5] or redis.call('TIME')[1], '0'}"),
    ("never comes to an end of its deadline", "if clock.now <= expires_at then", "if clock.now <= expires_at + 9 then"),
    ("writes a counter before the check of the next", "claim(use, field, 'sum')", "EARLY claim(use, field, 'sum')"),
    ("does not check for missing fields", "if not value or value == '' then", "if false then"),
    ("does not mark what has expired", ", 'state', 'EXPIRED')\n", ")\n"),
    (
        "writes the event twice",
        "  plan.apply()\n    if",
        "  plan.apply() attempt('XADD', events, '*', unpack(event))\n    if",
    ),
    ("writes no event", "local added = attempt('XADD', events, '*', unpack(event))", "local added = '1-0'"),
    ("forgets the index entry", "local indexed = call('ZREM', index, id)", "local indexed = 1"),
    ("forgets the TTL", "call('PEXPIRE', key, retention)\n    end\n    return {'exp", "end\n    return {'exp"),
    ("gives back nothing", "      if not use.missing then", "      if false then"),
    ("gives back twice", "  plan.apply()\n    if", "  plan.apply() plan.twice()\n    if"),
    (
        "takes signs in amounts",
        "if text == '0' or (find(text, '^[1-9]%d*$')",
        "if text == '0' or (find(text, '^%-?[1-9]%d*$')",
    ),
    (
        "takes leading zeros in amounts",
        "(find(text, '^[1-9]%d*$') and (#text < 19",
        "(find(text, '^%d*$') and (#text < 19",
    ),
    (
        "adds in floating point",
        "if #a <= DIGITS and #b <= DIGITS then\n      return string.format('%d', a + b)",
        "FLOAT",
    ),
    ("does not check MIN", "if least and sums.less(sum, least) then", "if false then"),
    ("makes counters that do not exist", "      use.missing = true\n    end\n    use.type", "ZERO"),
    (
        "takes a counter that is no number for 0",
        "if not sums.is_int64(value) then",
        "if not sums.is_int64(value) then value = '0' elseif false then",
    ),
    ("ignores the state", "if row[1] ~= 'HELD' then", "if false then"),
    ("skips what is alive", "if row[1] ~= 'HELD' then", "if row[1] == 'HELD' then"),
    ("expires an orphan", "and not entry.exists() then", "and false then"),
    ("quarantines without a mark", "call('HSET', key, 'quarantined_at'", "attempt('PING', key, 'quarantined_at'"),
    (
        "changes the state in a quarantine",
        "call('HSET', key, 'quarantined_at'",
        "call('HSET', key, 'state', 'BAD', 'quarantined_at'",
    ),
    ("takes seconds for milliseconds", "EARLIEST = 100000000000", "EARLIEST = 0"),
    ("does not ask for rights", "local allowed = redis.acl_check_cmd", "local allowed = nil"),
    (
        "begins with a write that needs memory",
        "local indexed = call('ZREM', index, id)",
        "call('HSET', key, 'x', '1') local indexed = call('ZREM', index, id)",
    ),
    ("writes a key of its own", "  plan.apply()\n    if", "  plan.apply() call('SET', 'prove:bystander', 'x')\n    if"),
    (
        "fails on a counter of another type",
        "if find(row.err, 'WRONGTYPE', 1, true) then\n        refuse",
        "if false then\n        refuse",
    ),
]
LOCKS = [
    ("frees the lock of its successor", "~= lease.token then\n    return 'skip'", "== '' then\n    return 'skip'"),
    ("ignores the state", "if lease.state ~= 'HELD' then", "if lease.state == 'RELEASED' then"),
    ("loops for long", "function plan(lease)", "function plan(lease)\n  for i = 1, 3e7 do local x = i end"),
    ("writes a foreign key", "'locks:waiting:free'", "'locks:fence:free'"),
    (
        "writes through get",
        "  return writes, {resource",
        "  get('SET', 'locks:owner:x', '1')\n  return writes, {resource",
    ),
    ("leaves a hole in its plan", "writes[2] = {'DEL'", "writes[3] = {'DEL'"),
    ("counts with numbers", "{resource = lease.resource, token", "{resource = lease.resource, count = 1, token"),
]
SESSIONS = [
    ("extends into the past", "return 'extend', used_at + idle", "return 'extend', used_at + idle - 1e13"),
    ("expires what was used", "if used_at + idle > now then", "if false then"),
    ("keeps the hash", "call('DEL', key)", "call('EXISTS', key)"),
]
PERMITS = [
    (
        "publishes and stops before the writes",
        "local refused = plan.publish()",
        "local refused = plan.publish() or {err = 'x'}",
    ),
]
EXAMPLES = {"seat-holds": SEATS, "locks": LOCKS, "sessions": SESSIONS, "permits": PERMITS}
#: Text that is too long for the table.
LONG = {
    "EARLY claim(use, field, 'sum')": "claim(use, field, 'sum')\n    if use.values[field] then call('HSET', use.key, field, '9') end",
    "ZERO": "      for i = 1, select('#', ...) do use.values[(select(i, ...))] = '0' end\n    end\n    use.type",
    "FLOAT": "if true then\n      return string.format('%.0f', a + b)",
    "  plan.apply() plan.twice()\n    if": "  plan.apply() for k in pairs({1}) do attempt('HINCRBY', 'seats:show-1', 'free', 1) end\n    if",
}
FAULTS = [
    Fault(name, example, old, LONG.get(new, new)) for example, faults in EXAMPLES.items() for name, old, new in faults
]
