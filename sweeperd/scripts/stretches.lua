-- Which stretches of the index, one behind the other, are as they were when all of their entries were in grace, and
-- still are?
--
-- KEYS[1] -> the index  ZSET  id -> deadline, ms
--
-- ARGV[1], ARGV[2] -> where paging stands: at this score, past so many entries of it, which stay
-- ARGV[3..] -> of each stretch: behind which score it begins; past how many entries of it, '' where past all; how many
--              entries it has; their fingerprint; until when all of them are in grace, ms
--
-- Returns how many of them hold, from the first on. One does not where entries came or went in it or just before it.

-- @include clock
-- @include fingerprint

local function rank_of(score, passed)
  if passed == '' then
    return redis.call('ZCOUNT', KEYS[1], '-inf', score)
  end
  return redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. score) + passed
end

local rank, held = rank_of(ARGV[1], ARGV[2]), 0
for i = 3, #ARGV, 5 do
  local count = tonumber(ARGV[i + 2])
  if clock.now > tonumber(ARGV[i + 4]) or rank_of(ARGV[i], ARGV[i + 1]) ~= rank then
    break
  end
  if fingerprint(redis.call('ZRANGE', KEYS[1], rank, rank + count - 1, 'WITHSCORES')) ~= ARGV[i + 3] then
    break
  end
  rank, held = rank + count, held + 1
end
return held
