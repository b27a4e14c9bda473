-- Removes an entry from the quarantine and marks its hash as dismissed. The reservation's state and budgets don't
-- change.
--
-- KEYS[1] -> reservation:res_<id>  HASH  the reservation
-- KEYS[2] -> sweeperd:quarantine   ZSET  bare id -> ms when the reservation was quarantined
-- KEYS[3] -> for a kind whose entries are not hashes: HASH  id -> `dismissed` and ms; for others KEYS[2]
-- ARGV[1] -> the bare reservation id
-- Returns 'dismissed', or 'not_quarantined'.

-- @include clock
-- @include rights

local marks = KEYS[3] ~= KEYS[2] and KEYS[3]
local row = redis.pcall('HMGET', KEYS[1], 'state')
if row.err and not string.find(row.err, 'WRONGTYPE', 1, true) then
  return row -- the hash may not be writable, and without the mark the entry must stay listed
end
local is_hash = not row.err and redis.call('EXISTS', KEYS[1]) == 1
local refused = no_right('ZREM', KEYS[2]) or (marks or is_hash) and no_right('HSET', marks or KEYS[1])
if refused then
  return refused
end
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then -- first, for maxmemory: see rights.lua
  return 'not_quarantined'
end
if marks then
  redis.call('HSET', marks, ARGV[1], 'dismissed ' .. clock.now_text)
elseif is_hash then
  redis.call('HSET', KEYS[1], 'dismissed_at', clock.now_text)
end
return 'dismissed'
