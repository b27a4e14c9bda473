-- This server's clock, and whole numbers: times, durations and counts. No script accepts the time from its caller.

-- @include effects
-- @include whole

local clock = {}
do
  local MAX = 9007199254740992 -- 2^53: a double holds every whole number up to this
  local time = redis.call('TIME')
  clock.now = time[1] * 1000 + math.floor(time[2] / 1000)
  clock.now_text = string.format('%d', clock.now)

  -- The number in plain decimal text; nil if the text is malformed, or if a double would round the number.
  function clock.whole(text)
    if text and (text == '0' or string.find(text, whole.UNSIGNED)) then
      local value = tonumber(text)
      if value < MAX or text == '9007199254740992' then
        return value
      end
    end
  end

  -- The number in plain decimal text, a fraction allowed; nil if the text is malformed. ZADD takes every such text,
  -- but not all that tonumber takes, and not a number beyond a double.
  function clock.decimal(text)
    return text and #text <= 32 and string.find(text, '^%d+%.?%d*$') and tonumber(text) or nil
  end

  -- Whether the sweep can read the time from + duration + grace. Subtracts, because a sum might be rounded.
  function clock.reaches(from, duration, grace)
    return grace <= MAX - from - duration
  end
end
