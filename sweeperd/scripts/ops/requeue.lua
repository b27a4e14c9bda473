-- Puts an entry that was set aside back into the index, for the sweep to decide again.
--
-- KEYS[1] -> reservation:res_<id>  HASH  the reservation
-- KEYS[2] -> reservation:ttl       ZSET  bare id -> expires_at, ms on this server's clock
-- KEYS[3] -> sweeperd:quarantine   ZSET  bare id -> ms when it was set aside
--
-- ARGV[1] -> the bare reservation id
-- ARGV[2] -> the field of the hash that holds the deadline
--
-- For a configured kind the keys are those of its entry, its index and its quarantine.
--
-- Returns 'requeued', 'not_quarantined', or the reason why there is no score for it: 'WRONG_TYPE', 'INVALID_EXPIRY'.
--
-- It decides nothing about the reservation: the next sweep does. Where the hash is gone the score is now, and the sweep
-- removes the entry.
--
-- All checks come before the first write. That is a ZREM: it needs no memory, so a full Redis takes it and the rest.

-- @include clock
-- @include rights

if not redis.call('ZSCORE', KEYS[3], ARGV[1]) then
  return 'not_quarantined'
end
redis.call('ZCARD', KEYS[2]) -- where the key is of another type, fail here
local score = clock.now_text
local row = redis.pcall('HMGET', KEYS[1], ARGV[2])
if row.err then
  if string.find(row.err, 'WRONGTYPE', 1, true) then
    return 'WRONG_TYPE'
  end
  return row
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  if not clock.whole(row[1]) then
    return 'INVALID_EXPIRY'
  end
  score = row[1]
end
local refused = no_right('ZREM', KEYS[3]) or no_right('HDEL', KEYS[1]) or no_right('ZADD', KEYS[2])
if refused then
  return refused
end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[1], 'quarantined_at', 'quarantine_reason', 'quarantine_detail', 'dismissed_at')
redis.call('ZADD', KEYS[2], score, ARGV[1])
return 'requeued'
