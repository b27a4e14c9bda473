-- Takes an entry off the quarantine, and marks its hash as dismissed. The reservation keeps its state and its budgets.
--
-- KEYS[1] -> reservation:res_<id>  HASH  the reservation
-- KEYS[2] -> sweeperd:quarantine   ZSET  bare id -> ms when it was set aside
--
-- ARGV[1] -> the bare reservation id
--
-- Returns 'dismissed', or 'not_quarantined'.
--
-- The first write is a ZREM: it needs no memory, so a full Redis accepts it, and the HSET after it too.

-- @include clock
-- @include rights

local row = redis.pcall('HMGET', KEYS[1], 'state')
if row.err and not string.find(row.err, 'WRONGTYPE', 1, true) then
  return row -- whether the hash can be marked is unknown, and without the mark the entry must stay on the list
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
