-- Removes a consumer that has no pending events, even at maxmemory. A consumer with events stays until they are taken
-- over: removing it would drop them from the group, and they would never be delivered.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- ARGV[1] -> the group;  ARGV[2] -> the consumer
-- Returns 1 if the consumer was removed.
--
-- XACK comes first. It acknowledges nothing and needs no memory: at maxmemory Redis 6.2 accepts it, and then XGROUP.

-- @include effects

if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then
  return 0
end
redis.call('XACK', KEYS[1], ARGV[1], '0-0')
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
