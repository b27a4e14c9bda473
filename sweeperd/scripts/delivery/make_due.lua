-- Makes parked events due, a page at a time: the events look as if they had waited for long.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- ARGV[1] -> the group;  ARGV[2] -> the owner of parked events
-- ARGV[3] -> the id to begin at, with `(` before an id that is done;  ARGV[4] -> how many at most
-- ARGV[5] -> the idle time after, ms
-- Returns {how many, the last id}; {0} if there are none.
--
-- One script: if a process has taken an event since the page was listed, the event stays untouched.

-- @include effects

local rows = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], '+', ARGV[4], ARGV[2])
if #rows == 0 then
  return {0}
end
local claim = {KEYS[1], ARGV[1], ARGV[2], 0}
for i = 1, #rows do
  claim[#claim + 1] = rows[i][1]
end
claim[#claim + 1] = 'IDLE'
claim[#claim + 1] = ARGV[5]
claim[#claim + 1] = 'JUSTID'
redis.call('XCLAIM', unpack(claim))
return {#rows, rows[#rows][1]}
