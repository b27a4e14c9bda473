-- Checks the index and the TTL of one entry, and on request repairs them in the same step.
--
-- KEYS[1] -> the index           ZSET  id -> deadline, ms on this server's clock
-- KEYS[2] -> the quarantine      ZSET  id -> ms when the entry was quarantined
-- KEYS[3] -> the entry            HASH, or STRING with a JSON object
-- KEYS[4] -> for a configured kind whose deadline is the score, else '':  HASH  id -> deadline and score
-- KEYS[5] -> for a configured kind whose entries are not hashes, else '': HASH  id -> reason, or `dismissed` and ms
-- ARGV[1] -> the id
-- ARGV[2] -> '' to check only; `?` to be told the state of an entry without a fault, too; `+` as `?`, and a lost entry
--            is added; else the fault to repair, as the walk saw it: `<fault>:<score>`, or `<fault>:<deadline>` for an
--            entry without a score. If the fault has changed since, nothing is written
-- ARGV[3] -> the field of the deadline of a configured kind, 'score' if it is the score; '' for a reservation
-- ARGV[4] -> how much later than the deadline a score of a configured kind may be, ms
-- ARGV[5] -> the grace of a reservation without grace_ms, ms
-- ARGV[6] -> for a configured kind, the outcome of the kind's script in this same step: the walk's script first
--            dry-runs the kind's script, then runs this text
-- ARGV[7] -> with the outcome `held`, why
-- ARGV[8] -> for a configured kind, how many ms a unit of deadlines is
-- ARGV[9] -> the deadline of a JSON object with such a field, '' without; nil for other entries
-- ARGV[10] -> for a configured kind, the reason if the outcome is `quarantined`
-- Returns {} if the entry is correct, or with `?` and `+` {state}: indexed, ended, quarantined, dismissed, gone,
-- wrong_deadline (without the field of the deadline) or malformed (of another form than an entry has, so that its TTL
-- is kept). Else {fault, the right score, the score found or ''}:
--   orphan              an index entry without a hash; the repair removes the entry
--   lost                a hash without an index entry, neither quarantined nor dismissed; the repair adds the entry and
--                       removes the marks of a quarantine that is gone. If the score is the deadline and the key has
--                       only a TTL, the deadline is the end of the TTL: the reply has no score, the remaining TTL, ms,
--                       follows it, and the repair makes the key persistent
--   wrong_score         a score that differs from a reservation's deadline, or is later than a configured kind's
--                       deadline; the repair sets the score
--   foreign_quarantine  an ACTIVE reservation set aside by another sweeper; not repaired here
--   short_ttl           the hash expires before deadline + grace + a day; the repair extends the TTL. The reply has no
--                       score, and the remaining TTL, ms, follows it. A second fault is reported in its place, and
--                       both are repaired. Not reported if the score is the deadline: there a TTL is a renewal
--   held                not a fault: an unknown state, of a kind of which no entry was seen alive. Why takes the place
--                       of the right score, and nothing else is checked
--
-- An ended entry has no fault: a reservation that is not ACTIVE, or a hash that the kind's script would skip.
--
-- Every write follows a fresh check, because what a walk saw earlier is only a hint. Ledger values don't change.

-- @include clock
-- @include lifetime
-- @include reservation_look
-- @include rights

local adds = ARGV[2] == '+'
local tells = adds or ARGV[2] == '?'
local notes, marks = (KEYS[4] or '') ~= '' and KEYS[4], (KEYS[5] or '') ~= '' and KEYS[5]

-- Both functions return the fault or nil, the right score and the score found. If the TTL of the hash is too short,
-- they also return the remaining TTL, the deadline and the grace.
local function reservation_fault()
  local row = look.row(KEYS[3])
  local fault, wanted, score = look.fault(KEYS[1], KEYS[2], ARGV[1], row)
  if not row then
    return fault, wanted, score
  end
  return fault, wanted or row[2], score or '', look.too_short(KEYS[3], row, ARGV[5])
end

-- What an entry without a fault is, and the score of a lost entry that has a TTL and no other deadline.
local state, ends = 'indexed', nil

local function kind_fault()
  local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
  if redis.call('EXISTS', KEYS[3]) == 0 then
    state = 'gone'
    return score and 'orphan', '', score
  elseif ARGV[6] == 'skipped' then
    state = 'ended'
    return nil
  elseif ARGV[6] == 'held' then
    return 'held', ARGV[7], ''
  end
  local aside = not score and redis.call('ZSCORE', KEYS[2], ARGV[1]) and 'quarantined'
  local due, dismissed
  if marks then
    due, dismissed = ARGV[9], string.find(redis.call('HGET', marks, ARGV[1]) or '', '^dismissed')
  else
    local row = redis.pcall('HMGET', KEYS[3], ARGV[3], 'dismissed_at')
    if row.err then
      state = score and state or aside or 'malformed'
      return nil
    end
    due, dismissed = row[1], row[2]
  end
  if notes then
    local noted, set = string.match(redis.call('HGET', notes, ARGV[1]) or '', '^(%S+) (%S*)$')
    due = (not score or tonumber(set) == tonumber(score)) and noted or score or ''
  elseif not due then
    state = score and state or dismissed and 'dismissed' or aside or 'wrong_deadline'
    return nil
  end
  -- A malformed deadline gets score 0, as for a reservation, so that the next sweep quarantines the entry. Without a
  -- field, the deadline of an entry that is not in the index is unknown, unless there is a note.
  local unit = tonumber(ARGV[8] or 1)
  local deadline = (notes and tonumber or unit == 1 and clock.whole or clock.decimal)(due)
  deadline = deadline and deadline * unit or nil
  local wanted = deadline and due or notes and '' or '0'
  if not score then
    local left = deadline and not notes and not dismissed and lifetime.too_short(KEYS[3], deadline, ARGV[5])
    state = dismissed and 'dismissed' or aside
      or notes and not deadline and ARGV[6] == 'quarantined' and 'malformed'
      or tells and ARGV[10] == 'INVALID_EXPIRY' and 'wrong_deadline'
    local ttl = notes and not deadline and not state and redis.call('PTTL', KEYS[3]) or -1
    ends = ttl >= 0 and string.format(unit == 1 and '%.0f' or '%.3f', (clock.now + ttl) / unit)
    return not state and 'lost', wanted, '', left or ends and ttl, deadline, ARGV[5]
  end
  local at, latest = score * unit, math.max(deadline or 0, clock.now) + ARGV[4]
  -- The score is later than the deadline while the entry waits or is protected.
  local until_ms = deadline and math.max(deadline, math.min(at, latest))
  local left = until_ms and not notes and lifetime.too_short(KEYS[3], until_ms, ARGV[5])
  return at > latest and 'wrong_score', wanted, score, left, until_ms, ARGV[5]
end

local fault, wanted, score, left, deadline, grace = (ARGV[3] == '' and reservation_fault or kind_fault)()
if not fault and left then
  fault, score = 'short_ttl', ''
end
if not fault or fault == 'dismissed' then
  return tells and {state} or {}
end
local asked = adds and fault == 'lost' or ARGV[2] == fault .. ':' .. (score == '' and wanted or score)
if asked and fault ~= 'foreign_quarantine' and fault ~= 'held' and (fault == 'orphan' or wanted ~= '' or ends) then
  local in_index, rest = fault ~= 'short_ttl', left and not ends and lifetime.enough(deadline, grace)
  local refused = in_index and no_right('ZREM', KEYS[1])
    or in_index and fault ~= 'orphan' and no_right('ZADD', KEYS[1])
    or fault == 'lost' and no_right('HDEL', marks or KEYS[3]) or left and not ends and no_right('PEXPIRE', KEYS[3])
    -- The first write, because 6.2 has no form of it that changes nothing.
    or ends and redis.pcall('PERSIST', KEYS[3])
  if type(refused) == 'table' then
    return refused
  end
  if in_index then
    redis.call('ZREM', KEYS[1], ARGV[1])
  end
  if in_index and fault ~= 'orphan' then
    redis.call('ZADD', KEYS[1], ends or wanted, ARGV[1])
  end
  if fault == 'lost' and marks then
    redis.call('HDEL', marks, ARGV[1])
  elseif fault == 'lost' then
    redis.call('HDEL', KEYS[3], 'quarantined_at', 'quarantine_reason', 'quarantine_detail')
  end
  if rest then
    redis.call('PEXPIRE', KEYS[3], rest)
  end
end
return {fault, wanted, score, (fault == 'short_ttl' or ends) and left or nil}
