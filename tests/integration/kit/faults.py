"""Faults that are seeded into the four examples, for the kit to catch."""

from typing import NamedTuple

CLOCK = "local time = redis.call('TIME')"
WRITES = "    for i = 1, #writes do\n      call("


class Fault(NamedTuple):
    """`old` text of the joined script, or of `file` of the example, becomes `new`."""

    name: str
    example: str
    old: str
    new: str
    #: What the user of the example wrote wrong: a file name.
    file: str = ""
    #: Only the first `old` after this text becomes `new`.
    inside: str = ""

    def seeded(self, text: str) -> str:
        """The text with the fault in it."""
        head, found, rest = text.partition(self.inside) if self.inside else ("", "", text)
        assert self.old in rest, f"{self.name}: the script has no {self.old!r}"
        return head + found + rest.replace(self.old, self.new, 1 if self.inside else -1)


SEATS = [
    ("expires at its deadline, not after it", "if clock.now <= expires_at then", "if clock.now < expires_at then"),
    ("expires a second early", "if clock.now <= expires_at then", "if clock.now + 1000 <= expires_at then"),
    ("takes the time from its caller", CLOCK, "local time = {ARGV[5] or redis.call('TIME')[1], '0'}"),
    ("never comes to an end of its deadline", "if clock.now <= expires_at then", "if clock.now <= expires_at + 9 then"),
    (
        "writes a counter before the check of the next",
        "values_0[2] =",
        "redis.call('HSET', key_0, 'free', '9') values_0[2] =",
    ),
    ("does not check for missing fields", "if not value or value == '' then", "if false then"),
    ("does not mark what has expired", ", 'state', 'EXPIRED')\n", ")\n"),
    ("writes the event twice", WRITES, f"    attempt('XADD', events, '*', unpack(event))\n{WRITES}"),
    ("writes no event", "local added = attempt('XADD', events, '*', unpack(event))", "local added = '1-0'"),
    ("forgets the index entry", "local removed = call('ZREM', index, id)", "local removed = 1"),
    ("forgets the TTL", "call('PEXPIRE', key, retention)", "local _ = retention"),
    ("gives back nothing", WRITES, WRITES.replace("#writes", "0")),
    ("gives back too much", WRITES, f"    attempt('HINCRBY', 'seats:show-1', 'free', 1)\n{WRITES}"),
    ("takes signs in amounts", "(find(text, UNSIGNED) or text == '0')", "(find(text, '^%-?[1-9]%d*$') or text == '0')"),
    ("takes leading zeros in amounts", "(find(text, UNSIGNED) or text == '0')", "find(text, '^%d*$')"),
    (
        "adds in floating point",
        "if #a <= DIGITS and #b <= DIGITS then\n      return string.format('%d', a + b)",
        "if true then\n      return string.format('%.0f', a + b)",
    ),
    ("does not check MIN", "if not least or sum >= least then", "if true then"),
    (
        "makes counters that do not exist",
        "      return miss(use)\n",
        "      for i = 1, #fields do use.values[fields[i]] = '0' end\n",
    ),
    (
        "takes a counter that is no number for 0",
        "if not amounts.is_int64(before) then",
        "if not amounts.is_int64(before) then before = '0' elseif false then",
    ),
    ("ignores the state", "if row[1] ~= 'HELD' then", "if false then"),
    ("skips what is alive", "if row[1] ~= 'HELD' then", "if row[1] == 'HELD' then"),
    ("expires an orphan", "and redis.call('EXISTS', KEYS[1]) == 0 then", "and false then"),
    ("quarantines without a mark", "call('HSET', key, 'quarantined_at'", "attempt('PING', key, 'quarantined_at'"),
    (
        "changes the state in a quarantine",
        "call('HSET', key, 'quarantined_at'",
        "call('HSET', key, 'state', 'BAD', 'quarantined_at'",
    ),
    ("takes seconds for milliseconds", "EARLIEST, LATEST = 100000000000", "EARLIEST, LATEST = 0"),
    ("does not ask for rights", "local can_ask = redis.acl_check_cmd ~= nil", "local can_ask = false"),
    (
        "begins with a write that needs memory",
        "local removed = call('ZREM', index, id)",
        "call('HSET', key, 'x', '1') local removed = call('ZREM', index, id)",
    ),
    ("writes a key of its own", WRITES, f"    call('SET', 'prove:bystander', 'x')\n{WRITES}"),
    (
        "fails on a counter of another type",
        "if find(row.err, 'WRONGTYPE', 1, true) then\n        refuse",
        "if false then\n        refuse",
    ),
]
LOCKS = [
    ("frees the lock of its successor", "~= lease.token then\n    return 'skip'", "== '' then\n    return 'skip'"),
    ("ignores the state", "if lease.state ~= 'HELD' then", "if lease.state == 'RELEASED' then"),
    ("loops for long", "function plan(lease)", "function plan(lease)\n  for i = 1, 2e8 do local x = i end"),
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
        WRITES,
        f"    attempt(unpack(messages[1]))\n    if messages then return {{err = 'x'}} end\n{WRITES}",
    )
]
EXAMPLES = {"seat-holds": SEATS, "locks": LOCKS, "sessions": SESSIONS, "permits": PERMITS}
FAULTS = [Fault(name, example, old, new) for example, faults in EXAMPLES.items() for name, old, new in faults]

ZREM, ASIDE = "\n    leave()\n", "function entry.set_aside"
XADD = "attempt('XADD', events, '*', unpack(event))"
FAULTS += [
    Fault(
        "an extension loses its index entry",
        "sessions",
        "call('ZADD', index, score_text, id)",
        "local _ = score_text",
        inside="function entry.move",
    ),
    Fault(
        "a skip takes the first of the index and not its own",
        "seat-holds",
        ZREM,
        "\n    call('ZREMRANGEBYRANK', index, 0, 0)\n",
        inside="function entry.drop",
    ),
    Fault("a quarantined entry stays indexed", "seat-holds", ZREM, "\n    local _ = id\n", inside=ASIDE),
    Fault(
        "another reason in the hash than in the reply",
        "seat-holds",
        "'quarantine_reason', reason",
        "'quarantine_reason', 'INVALID_PLAN'",
    ),
    Fault(
        "a full stream loses its entry",
        "seat-holds",
        "call('ZADD', index, score or expires_text, id)",
        "local _ = id",
        inside=XADD,
    ),
    Fault("the stream is cut", "seat-holds", XADD, "attempt('XADD', events, 'MAXLEN', '1', '*', unpack(event))"),
    Fault("a message is not sent", "permits", "messages[#messages + 1] = words", "local _ = words"),
    Fault("no counter is named as missing", "permits", "missing[#missing + 1] = use.name", "local _ = use"),
    Fault("another list", "locks", "'locks:waiting:free'", "'locks:waiting:all'", "lock.lua"),
    Fault("the sign is turned", "permits", "{client} {count}", "{client} -{count}", "config.toml"),
    Fault("an event of nobody", "seat-holds", "'tenant', row", "'tenant', false and row"),
    Fault(
        "a field with the value of another",
        "locks",
        "token = lease.token}",
        "token = lease.owner}",
        "lock.lua",
    ),
    Fault(
        "rounds the time to even ms",
        "seat-holds",
        "math.floor(time[2] / 1000)",
        "math.floor(time[2] / 2000 + 0.5) * 2",
    ),
    Fault(
        "a retention in seconds",
        "seat-holds",
        "call('PEXPIRE', key, retention)",
        "call('EXPIRE', key, retention)",
    ),
    Fault(
        "a counter loses its TTL",
        "permits",
        "queue(use, 'INCRBY', use.key, amount)",
        "queue(use, 'SET', use.key, use.total)",
    ),
    Fault("takes out another member", "sessions", ":sessions', id}", ":sessions', session.user}", "session.lua"),
    Fault("the deadline under another name", "locks", 'deadline = "until"', 'deadline = "expires"', "config.toml"),
]
