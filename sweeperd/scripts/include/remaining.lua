-- The time until the deadline in an answer, ms, as text; '0' if the reservation is no longer ACTIVE. Computed for a
-- repeated answer, because a recorded duration would be too long by the delay of the retry.

-- @include clock

local function remaining_ttl(key, expires_text)
  if redis.pcall('HGET', key, 'state') ~= 'ACTIVE' then
    return '0'
  end
  return string.format('%d', math.max(0, tonumber(expires_text) - clock.now))
end
