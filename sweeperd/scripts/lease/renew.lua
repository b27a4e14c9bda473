-- Makes a lease last longer, if the lease is still held by the calling process.
--
-- KEYS[1] -> sweeperd:lease:<job>  STRING  the token of the holder
--
-- ARGV[1] -> the token of the process that calls
-- ARGV[2] -> TTL, ms
--
-- Returns 1 if the lease is held under this token and lasts for the TTL from now on; 0 if the lease is gone or has
-- another holder.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
