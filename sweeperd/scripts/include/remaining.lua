-- How long a reservation lasts until the deadline in an answer, ms, as text; '0' if it is no longer ACTIVE. For a
-- repeated answer: a recorded duration would be too long by the delay of the repetition.

-- @include clock

local function remaining_ttl(key, expires_text)
  if redis.pcall('HGET', key, 'state') ~= 'ACTIVE' then
    return '0'
  end
  return string.format('%d', math.max(0, tonumber(expires_text) - clock.now))
end
