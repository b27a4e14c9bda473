-- Reads a page of a sorted set by position: {id, score, id, score, ...}, up to `count` entries with scores from `score`
-- to `last`, after skipping the first `passed` entries of exactly `score`.
--
-- ZCOUNT finds the position in logarithmic time. ZRANGEBYSCORE with an offset walks over every skipped entry: with a
-- million reservations of the same deadline in grace, it would walk over them again for each page.

local function page(key, last, score, passed, count)
  local first = redis.call('ZCOUNT', key, '-inf', '(' .. score) + passed
  local due = redis.call('ZCOUNT', key, '-inf', last)
  if first >= due then
    return {}
  end
  return redis.call('ZRANGE', key, first, math.min(first + count, due) - 1, 'WITHSCORES')
end
