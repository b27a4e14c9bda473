-- Checks whether the index is right about one entry now, and if asked mends the index in the same step.
--
-- KEYS[1] -> the index           ZSET  id -> deadline, ms on this server's clock
-- KEYS[2] -> the quarantine      ZSET  id -> ms when the entry was set aside
-- KEYS[3] -> the entry's hash    HASH
--
-- ARGV[1] -> the id
-- ARGV[2] -> '' to check only; else what to mend, as a walk saw it: `<fault>:<score>`, or `<fault>:<deadline>` for
--            an entry without a score. If something else is wrong by now, nothing is written
-- ARGV[3] -> the field of the deadline of a configured kind; '' for a reservation
-- ARGV[4] -> by how much a score of a configured kind may be later than the deadline, ms
-- ARGV[5] -> for a configured kind, the outcome of the kind's script in this same step: the script of the walk runs
--            the kind's script first, with no write sent, and then this text
--
-- Returns {} if all is well, else {fault, the right score, the score found}:
--   orphan              an entry without a hash; mended by removing the entry
--   lost                a hash without an entry, neither in quarantine nor dismissed; mended by adding an entry,
--                       and removing the marks of a quarantine that is gone
--   wrong_score         a score that differs from a reservation's deadline, or is later than the deadline of a
--                       configured kind; mended by setting the score
--   foreign_quarantine  an ACTIVE reservation set aside by another sweeper; not mended here
--
-- An entry that has ended has no fault: a reservation that is not ACTIVE, or a hash that the kind's script would skip.
--
-- The check comes before the write in every case: what a walk saw earlier is a hint only. No ledger value changes. ZREM
-- is the first write and needs no memory: if Redis is at maxmemory, ZREM is still accepted, and so is ZADD after ZREM.

-- @include clock
-- @include reservation_look
-- @include rights

local function kind_fault()
  local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
  if redis.call('EXISTS', KEYS[3]) == 0 then
    return score and 'orphan', '', score
  elseif ARGV[5] == 'skipped' then
    return nil
  end
  local row = redis.pcall('HMGET', KEYS[3], ARGV[3], 'dismissed_at')
  if row.err or not row[1] then
    return nil
  end
  -- If a deadline cannot be read, the score is 0, as for a reservation: the next sweep sets the entry aside.
  local deadline = clock.whole(row[1])
  local wanted = deadline and row[1] or '0'
  if not score then
    return not row[2] and not redis.call('ZSCORE', KEYS[2], ARGV[1]) and 'lost', wanted, ''
  end
  local latest = math.max(deadline or 0, clock.now) + ARGV[4]
  return tonumber(score) > latest and 'wrong_score', wanted, score
end

local fault, wanted, score
if ARGV[3] == '' then
  fault, wanted, score = look.fault(KEYS[1], KEYS[2], ARGV[1], look.row(KEYS[3]))
else
  fault, wanted, score = kind_fault()
end
if not fault or fault == 'dismissed' then
  return {}
end
if ARGV[2] == fault .. ':' .. (score == '' and wanted or score) and fault ~= 'foreign_quarantine' then
  local refused = no_right('ZREM', KEYS[1]) or fault ~= 'orphan' and no_right('ZADD', KEYS[1])
    or fault == 'lost' and no_right('HDEL', KEYS[3])
  if refused then
    return refused
  end
  redis.call('ZREM', KEYS[1], ARGV[1])
  if fault ~= 'orphan' then
    redis.call('ZADD', KEYS[1], wanted, ARGV[1])
  end
  if fault == 'lost' then
    redis.call('HDEL', KEYS[3], 'quarantined_at', 'quarantine_reason', 'quarantine_detail')
  end
end
return {fault, wanted, score}
