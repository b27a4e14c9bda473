-- Checks whether the index is right about one entry of a configured kind now, and if asked mends the index in the same
-- step.
--
-- KEYS[1] -> the index  ZSET  KEYS[2] -> the kind's quarantine  ZSET  KEYS[3] -> the entry's hash
--
-- ARGV[1] -> the id;  ARGV[2] -> the field of the deadline;  ARGV[3] -> '1' to mend
-- ARGV[4] -> by how much a score may be later than the deadline, ms
--
-- Returns {} if all is well, else {fault, the right score, the score found}:
--   orphan       an entry without a hash; mended by removing the entry
--   lost         a hash without an entry, and not set aside either; mended by adding an entry
--   wrong_score  an entry with a later score than the hash says; mended by setting the score
--
-- This script does not decide whether a hash is active: the caller asks the kind's script before. If the hash has ended
-- in between, the next sweep removes the added entry. ZREM is the first write: if Redis is at maxmemory, ZREM is still
-- accepted.

-- @include clock
-- @include rights

local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
local fault, wanted
if redis.call('EXISTS', KEYS[3]) == 0 then
  fault, wanted = score and 'orphan', ''
else
  local row = redis.pcall('HMGET', KEYS[3], ARGV[2], 'quarantined_at')
  local deadline = not row.err and clock.whole(row[1])
  if deadline then
    wanted = row[1]
    if not score then
      fault = not row[2] and not redis.call('ZSCORE', KEYS[2], ARGV[1]) and 'lost'
    else
      local latest = math.max(deadline, clock.now) + ARGV[4]
      fault = tonumber(score) > latest and 'wrong_score'
    end
  end
end
if not fault then
  return {}
end
if ARGV[3] == '1' then
  local refused = no_right('ZREM', KEYS[1]) or fault ~= 'orphan' and no_right('ZADD', KEYS[1])
  if refused then
    return refused
  end
  redis.call('ZREM', KEYS[1], ARGV[1])
  if fault ~= 'orphan' then
    redis.call('ZADD', KEYS[1], wanted, ARGV[1])
  end
end
return {fault, wanted, score or ''}
