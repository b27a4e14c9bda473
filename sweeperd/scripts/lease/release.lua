-- Ends a lease, if it is still held by the process that asks.
--
-- KEYS[1] -> sweeperd:lease:<job>  STRING  the token of its holder
--
-- ARGV[1] -> the token of the process that asks
--
-- Returns 1 where the lease was held under this token and is free now; 0 where it is gone or has another holder.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
