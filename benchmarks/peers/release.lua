-- What the job of a hold does when its time is over: gives the hold back on each budget, once, and writes that down.
--
-- KEYS[1]: the mark of the hold; KEYS[2]: the stream that the benchmark measures by; the other KEYS: the budgets.
-- ARGV: id, deadline (ms), amount. Reply: 1, or 0 if the hold was given back before.
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', 3600000) then
  return 0
end
for number = 3, #KEYS do
  redis.call('HINCRBY', KEYS[number], 'reserved', -ARGV[3])
  redis.call('HINCRBY', KEYS[number], 'remaining', ARGV[3])
end
local now = redis.call('TIME')
local now_ms = string.format('%d', now[1] * 1000 + math.floor(now[2] / 1000))
redis.call('XADD', KEYS[2], '*', 'id', ARGV[1], 'expires_at', ARGV[2], 'expired_at', now_ms)
return 1
