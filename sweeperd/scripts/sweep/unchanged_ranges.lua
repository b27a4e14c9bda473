-- Finds the ranges of the index that haven't changed since all their entries were in grace, and where no grace has
-- ended.
--
-- KEYS[1] -> the index  ZSET  id -> deadline, ms
-- ARGV[1], ARGV[2] -> the position of paging: a score, and how many entries of that score to skip
-- ARGV[3..] -> for each range: the number of entries; their fingerprint; when their first grace ends, ms
-- Returns how many ranges are unchanged, counted from the first. A range counts as changed if entries were added or
-- removed in it or before it.

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
