-- This server's clock, and whole numbers: times, durations and counts. No script takes the time from its caller.

-- @include effects
-- @include whole

local clock = {}
do
  local MAX = 9007199254740992 -- 2^53: up to here a double holds every whole number
  local time = redis.call('TIME')
  clock.now = time[1] * 1000 + math.floor(time[2] / 1000)
  clock.now_text = string.format('%d', clock.now)

  -- The number in plain decimal text; nil if there is none, or if a double would round the number.
  function clock.whole(text)
    if text and (text == '0' or string.find(text, whole.UNSIGNED)) then
      local value = tonumber(text)
      if value < MAX or text == '9007199254740992' then
        return value
      end
    end
  end

  -- Is from + duration + grace a time that the sweep can read? Differences, because a sum might be rounded.
  function clock.reaches(from, duration, grace)
    return grace <= MAX - from - duration
  end
end
