-- Which stretches of the index, one behind the other, are as they were when all of their entries were in grace, and
-- still are?
--
-- KEYS[1] -> the index  ZSET  id -> deadline, ms
--
-- ARGV[1], ARGV[2] -> where paging stands: at this score, past so many entries of it, which stay
-- ARGV[3..] -> of each stretch: how many entries it has; their fingerprint; until when all of them are in grace, ms
--
-- Returns how many of them hold, from the first on. One does not where entries came or went in it or before it.

-- @include clock
-- @include fingerprint

local rank = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1]) + ARGV[2]
local held = 0
for i = 3, #ARGV, 3 do
  local behind = rank + ARGV[i]
  if clock.now > tonumber(ARGV[i + 2])
    or fingerprint(redis.call('ZRANGE', KEYS[1], rank, behind - 1, 'WITHSCORES')) ~= ARGV[i + 1] then
    break
  end
  rank, held = behind, held + 1
end
return held
