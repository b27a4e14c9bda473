-- Removes a consumer that has no pending events, even at maxmemory. A consumer with events stays until they are taken
-- over: removing it would drop them from the group, and they would never be delivered.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- ARGV[1] -> the group;  ARGV[2] -> the consumer
-- Returns 1 if the consumer was removed.

-- @include effects

if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then
  return 0
end
redis.call('XACK', KEYS[1], ARGV[1], '0-0') -- acknowledges nothing; for maxmemory: see rights.lua
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
