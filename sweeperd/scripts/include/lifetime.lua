-- The TTL of a living entry's hash. If the hash expires first, what the entry holds is never given back, and no event
-- is sent.

-- @include clock

local lifetime = {}
do
  local DAY = 86400000
  -- How long after deadline and grace a hash with a repaired TTL expires. It keeps a TTL, which its service may rely
  -- on.
  local AFTER = 30 * DAY

  -- The remaining TTL of the hash, ms, if it expires before deadline + grace + a day; else nil.
  function lifetime.too_short(key, deadline, grace)
    local left = redis.call('PTTL', key)
    return left >= 0 and clock.now + left < deadline + grace + DAY and left or nil
  end

  -- The argument of PEXPIRE for such a hash.
  function lifetime.enough(deadline, grace)
    return string.format('%.0f', math.max(deadline, clock.now) - clock.now + grace + AFTER)
  end
end
