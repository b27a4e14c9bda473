-- Makes a lease last longer, if it is still held by the process that asks.
--
-- KEYS[1] -> sweeperd:lease:<job>  STRING  the token of its holder
--
-- ARGV[1] -> the token of the process that asks
-- ARGV[2] -> TTL, ms
--
-- Returns 1 where the lease is held under this token and lasts for the TTL from now on; 0 where it is gone or has
-- another holder.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
