-- Changes the owner of pending events, or only their idle time, if the caller still knows the right owner. An event is
-- skipped if another process has taken, parked or settled it since. It is also skipped if it was trimmed from the
-- stream: XCLAIM on Redis 7 would drop it from the pending list, and it has to become a dead letter.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- ARGV[1] -> the group
-- ARGV[2] -> the owner before: events of another owner stay;  ARGV[3] -> the owner after, possibly the same
-- ARGV[4] -> the least idle time before, ms;  ARGV[5] -> the idle time after, ms
-- ARGV[6] -> the delivery count after; empty to keep it
-- ARGV[7..] -> the ids of the events
-- Returns the ids of the changed events.
--
-- XCLAIM is the only write.

-- @include effects

local claim = {KEYS[1], ARGV[1], ARGV[3], ARGV[4]}
local before = #claim
for i = 7, #ARGV do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0
    and #redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i]) > 0
  then
    claim[#claim + 1] = ARGV[i]
  end
end
if #claim == before then
  return {}
end
claim[#claim + 1], claim[#claim + 2] = 'IDLE', ARGV[5]
if ARGV[6] ~= '' then
  claim[#claim + 1], claim[#claim + 2] = 'RETRYCOUNT', ARGV[6]
end
claim[#claim + 1] = 'JUSTID'
return redis.call('XCLAIM', unpack(claim))
