-- Gives up on a delivery: acknowledges it and keeps the event as a dead letter, in one step and only once.
--
-- KEYS[1] -> sweeperd:events        STREAM
-- KEYS[2] -> sweeperd:dead-letters  STREAM  what was given up on: event, endpoint, reason, attempts, the event's fields
--
-- ARGV[1] -> the consumer group
-- ARGV[2] -> the stream id of the event
-- ARGV[3] -> why
-- ARGV[4] -> how many times it was handed over
-- ARGV[5] -> the endpoint: its name is that of the group, except in a replay
-- ARGV[6..] -> the fields of an event about this, name and value in turn; none: no such event
--
-- Returns 1, or 0 where it is not pending any more: delivered, or given up on by another replica.
--
-- XACK comes first. It needs no memory, so it is taken at maxmemory too, and after it XADD is.

-- @include effects

redis.call('XLEN', KEYS[2]) -- where the key is of another type, fail here, before the first write
local found = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then
  return 0
end
local letter = {'event', ARGV[2], 'endpoint', ARGV[5], 'reason', ARGV[3], 'attempts', ARGV[4]}
local fields = found[1] and found[1][2] or {}
for i = 1, #fields do
  letter[#letter + 1] = fields[i]
end
redis.call('XADD', KEYS[2], '*', unpack(letter))
if ARGV[6] then
  redis.call('XADD', KEYS[1], '*', unpack(ARGV, 6))
end
return 1
