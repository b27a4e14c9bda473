-- Which stretches of the index, one behind the other, are as they were when all of their entries were in grace, and
-- still are?
--
-- KEYS[1] -> the index  ZSET  id -> deadline, ms
--
-- ARGV[1], ARGV[2] -> where paging stands: at this score, past so many entries of it, which stay
-- ARGV[3..] -> of each stretch: its scores, without the first and with the last; how many entries it has; their
--              fingerprint; until when all of them are in grace, ms
--
-- Returns how many of them hold, from the first on. One does not where entries came or went in it or in front of it.

-- @include clock
-- @include fingerprint

local rank = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1]) + ARGV[2]
local held = 0
for i = 3, #ARGV, 5 do
  local after, last, count = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  if clock.now > tonumber(ARGV[i + 4]) or redis.call('ZCOUNT', KEYS[1], '-inf', after) ~= rank then
    break
  end
  local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. after, last, 'WITHSCORES', 'LIMIT', 0, count + 1)
  if #found ~= 2 * count or fingerprint(found) ~= ARGV[i + 3] then
    break
  end
  rank, held = rank + count, held + 1
end
return held
