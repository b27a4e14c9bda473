-- Finds the unchanged ranges of the index, one after the other: they still have the entries of the moment when all were
-- in grace, and no grace among them has ended.
--
-- KEYS[1] -> the index  ZSET  id -> deadline, ms
--
-- ARGV[1], ARGV[2] -> the position of paging: at this score, after so many entries of the score, which stay
-- ARGV[3..] -> of each range: the number of entries; their fingerprint; when the first grace among them ends, ms
--
-- Returns how many ranges are unchanged, counted from the first. A range has changed if entries came or went in the
-- range or before it.

-- @include clock
-- @include fingerprint

local rank = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1]) + ARGV[2]
local unchanged = 0
for i = 3, #ARGV, 3 do
  local last = rank + ARGV[i] - 1
  if clock.now > tonumber(ARGV[i + 2])
    or fingerprint(redis.call('ZRANGE', KEYS[1], rank, last, 'WITHSCORES')) ~= ARGV[i + 1] then
    break
  end
  rank, unchanged = last + 1, unchanged + 1
end
return unchanged
