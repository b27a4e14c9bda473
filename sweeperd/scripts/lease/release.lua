-- KEYS[1] -> sweeperd:lease:<job>  STRING  the owner's token
-- ARGV[1] -> the token of whoever asks
-- Returns 1 where the lease was its own and is free now, else 0: a lease that has passed on is not taken away.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
