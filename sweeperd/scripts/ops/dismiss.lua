-- Removes an entry from the quarantine and marks its hash as dismissed. The reservation's state and budgets don't
-- change.
--
-- KEYS[1] -> reservation:res_<id>  HASH  the reservation
-- KEYS[2] -> sweeperd:quarantine   ZSET  bare id -> ms when the reservation was quarantined
--
-- ARGV[1] -> the bare reservation id
--
-- Returns 'dismissed', or 'not_quarantined'.
--
-- ZREM comes first because it needs no memory: at maxmemory Redis accepts it, and then the HSET that follows.

-- @include clock
-- @include rights

local row = redis.pcall('HMGET', KEYS[1], 'state')
if row.err and not string.find(row.err, 'WRONGTYPE', 1, true) then
  return row -- the hash may not be writable, and without the mark the entry must stay listed
end
local is_hash = not row.err and redis.call('EXISTS', KEYS[1]) == 1
local refused = no_right('ZREM', KEYS[2]) or is_hash and no_right('HSET', KEYS[1])
if refused then
  return refused
end
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then
  return 'not_quarantined'
end
if is_hash then
  redis.call('HSET', KEYS[1], 'dismissed_at', clock.now_text)
end
return 'dismissed'
