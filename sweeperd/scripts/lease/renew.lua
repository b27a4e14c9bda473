-- KEYS[1] -> sweeperd:lease:<job>  STRING  the owner's token
-- ARGV[1] -> the token of whoever asks;  ARGV[2] -> TTL, ms
-- Returns 1 where the lease was still its own and now lasts that long, else 0.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
