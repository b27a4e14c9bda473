-- Ends a lease, if the lease is still held by the calling process.
--
-- KEYS[1] -> sweeperd:lease:<job>  STRING  the token of the holder
--
-- ARGV[1] -> the token of the process that calls
--
-- Returns 1 if the lease was held under this token and is free now; 0 if the lease is gone or has another holder.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
