-- A page of a sorted set, by position: {id, score, id, score, ...} of `count` entries at most, with scores from `score`
-- to `last`, after the first `passed` entries of exactly `score`.
--
-- Positions come from ZCOUNT, in logarithmic time. ZRANGEBYSCORE with an offset would walk over every passed entry: if
-- a million reservations with the same deadline are in grace, it would walk over them again for each page.

local function page(key, last, score, passed, count)
  local first = redis.call('ZCOUNT', key, '-inf', '(' .. score) + passed
  local due = redis.call('ZCOUNT', key, '-inf', last)
  if first >= due then
    return {}
  end
  return redis.call('ZRANGE', key, first, math.min(first + count, due) - 1, 'WITHSCORES')
end
