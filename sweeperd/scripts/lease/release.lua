-- Releases a lease if the calling process still holds it.
--
-- KEYS[1] -> sweeperd:lease:<job>  STRING  the token of the holder
-- ARGV[1] -> the token of the calling process
-- Returns 1 if the lease was held under this token and is now free, 0 if it has expired or has another holder.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
