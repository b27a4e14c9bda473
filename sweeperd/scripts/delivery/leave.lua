-- Removes a consumer that holds nothing. One that still holds events stays until they are taken over: to remove it
-- would drop them from the group, and they would never be delivered.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- ARGV[1] -> the group;  ARGV[2] -> the consumer
-- Returns 1 where it was removed.

-- @include effects

if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then
  return 0
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
