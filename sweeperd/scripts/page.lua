-- One page of the index, by position: what follows the entries that were looked at already and stay where they are.
--
-- KEYS[1] -> the index  ZSET  id -> deadline, ms
--
-- ARGV[1] -> the last score of interest
-- ARGV[2] -> the score at which to go on
-- ARGV[3] -> how many entries of exactly that score to pass over
-- ARGV[4] -> how many entries at most
--
-- Returns {id, score, id, score, ...}.
--
-- Positions come from ZCOUNT, which is logarithmic; ZRANGEBYSCORE with an offset would walk over every entry that it
-- passes, and a million reservations with one deadline, all in grace, would be walked over again for each page.

local first = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[2]) + ARGV[3]
local due = redis.call('ZCOUNT', KEYS[1], '-inf', ARGV[1])
if first >= due then
  return {}
end
return redis.call('ZRANGE', KEYS[1], first, math.min(first + ARGV[4], due) - 1, 'WITHSCORES')
