-- Moves a quarantined entry back into the index, so that the next sweep decides it again.
--
-- KEYS[1] -> reservation:res_<id>, or another kind's entry  HASH
-- KEYS[2] -> the index       ZSET  id -> deadline, ms on this server's clock
-- KEYS[3] -> the quarantine  ZSET  id -> ms when the entry was quarantined
-- KEYS[4] -> for a kind whose deadline is the score   HASH  id -> deadline and score; for others KEYS[3]
-- KEYS[5] -> for a kind whose entries are not hashes  HASH  id -> reason and cause; for others KEYS[3]
-- ARGV[1] -> the id
-- ARGV[2] -> the deadline's field in the hash; '' if a sweep reads the deadline elsewhere
-- ARGV[3..] -> if the sweep would quarantine the entry again: the fields of the hash that say why, name and value in
--              turn, the reason first. The entry then stays
-- Returns 'requeued', 'not_quarantined', or why the entry stays: 'WRONG_TYPE' or 'INVALID_EXPIRY' without a score.
--
-- The script leaves the decision to the next sweep. If the hash is gone, the score is now, and the sweep removes the
-- entry. The score of a string is 0, and the sweep sets it to the deadline. A deadline that is the score is read
-- from the note; a score that the service has written since stays.

-- @include clock
-- @include rights

if not redis.call('ZSCORE', KEYS[3], ARGV[1]) then
  return 'not_quarantined'
end
local notes, marks = KEYS[4] ~= KEYS[3] and KEYS[4], KEYS[5] ~= KEYS[3] and KEYS[5]
if ARGV[3] then
  local refused = no_right('HSET', marks or KEYS[1])
  if refused then
    return refused
  end
  if marks then
    redis.call('HSET', marks, ARGV[1], ARGV[4] .. ' ' .. (ARGV[6] or ''))
  elseif redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('HSET', KEYS[1], unpack(ARGV, 3))
  end
  return ARGV[4]
end
redis.call('ZCARD', KEYS[2]) -- fail before the first write if the key has the wrong type
local score = clock.now_text
if notes then
  local noted = redis.call('HGET', notes, ARGV[1])
  score = redis.call('ZSCORE', KEYS[2], ARGV[1]) or noted and string.match(noted, '^(%S+) ')
  if not score then
    return 'INVALID_EXPIRY'
  end
elseif marks then
  score = '0'
else
  local row = redis.pcall('HMGET', KEYS[1], ARGV[2])
  if row.err then
    return string.find(row.err, 'WRONGTYPE', 1, true) and 'WRONG_TYPE' or row
  end
  if redis.call('EXISTS', KEYS[1]) == 1 then
    -- A fraction is for a kind whose deadlines are in seconds.
    local text = row[1] or ''
    if not (string.find(text, '.', 1, true) and clock.decimal or clock.whole)(text) then
      return 'INVALID_EXPIRY'
    end
    score = row[1]
  end
end
local refused = no_right('ZREM', KEYS[3]) or no_right('HDEL', marks or KEYS[1]) or no_right('ZADD', KEYS[2])
  or notes and no_right('HDEL', notes)
if refused then
  return refused
end
redis.call('ZREM', KEYS[3], ARGV[1]) -- first, for maxmemory: see rights.lua
if marks then
  redis.call('HDEL', marks, ARGV[1])
else
  redis.call('HDEL', KEYS[1], 'quarantined_at', 'quarantine_reason', 'quarantine_detail', 'dismissed_at')
end
if notes then
  redis.call('HDEL', notes, ARGV[1])
end
redis.call('ZADD', KEYS[2], score, ARGV[1])
return 'requeued'
