-- Makes parked events due, page by page, by raising their idle time. An event that was trimmed from the stream is
-- skipped, because XCLAIM on Redis 7 would drop it from the pending list.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- ARGV[1] -> the group;  ARGV[2] -> the owner of parked events
-- ARGV[3] -> the id to start at, with `(` before an id that is already done;  ARGV[4] -> the page size
-- ARGV[5] -> the idle time after, ms
-- Returns {how many were parked, the last id}; {0} if there are none.
--
-- Runs as one script, so that an event taken by another process after the page was listed stays untouched.

-- @include effects

local rows = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], '+', ARGV[4], ARGV[2])
if #rows == 0 then
  return {0}
end
local claim = {KEYS[1], ARGV[1], ARGV[2], 0}
local before = #claim
for i = 1, #rows do
  local id = rows[i][1]
  if #redis.call('XRANGE', KEYS[1], id, id) > 0 then
    claim[#claim + 1] = id
  end
end
local listed = {#rows, rows[#rows][1]}
if #claim == before then
  return listed
end
claim[#claim + 1], claim[#claim + 2], claim[#claim + 3] = 'IDLE', ARGV[5], 'JUSTID'
redis.call('XCLAIM', unpack(claim))
return listed
