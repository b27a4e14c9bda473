-- A page of a sorted set, by position: {id, score, id, score, ...} of `count` entries at most, with scores from `score`
-- to `last`, after the first `passed` entries of exactly `score`.
--
-- Positions come from ZCOUNT, which is logarithmic; ZRANGEBYSCORE with an offset would walk over every entry that it
-- passes, and a million reservations with one deadline, all in grace, would be walked over again for each page.

local function page(key, last, score, passed, count)
  local first = redis.call('ZCOUNT', key, '-inf', '(' .. score) + passed
  local due = redis.call('ZCOUNT', key, '-inf', last)
  if first >= due then
    return {}
  end
  return redis.call('ZRANGE', key, first, math.min(first + count, due) - 1, 'WITHSCORES')
end
