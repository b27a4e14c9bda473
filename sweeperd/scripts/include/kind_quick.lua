-- The everyday plan, checked in few steps: all commands are HINCRBY, commands on the same key follow each other and add
-- to different fields, the keys and fields exist, and no number has more than 15 digits.
--
-- The answer to every other plan is nil. Then kind_plan.lua checks the plan from the start, and gives the reason if the
-- check fails.

-- @include kind_rights
-- @include whole

local quick_writable, quick_read, quick_sum, quick_amount
do
  local DIGITS, UNSIGNED, INTEGER, MAX_KEY = whole.EXACT_DIGITS, whole.UNSIGNED, whole.SIGNED, 1024
  local attempt, find, format = redis.pcall, string.find, string.format
  local NOTHING = {}

  -- May a plan write the hash of this name (the key without the prefix), as `writable` says?
  function quick_writable(name, key, writable)
    return name ~= '' and #name <= MAX_KEY and writable(name) and (not has_right or has_right('HSET', key, 'f', 'v'))
  end

  -- The values of these fields of a key; {} if the plan may not write the key.
  function quick_read(name, key, writable, ...)
    return quick_writable(name, key, writable) and attempt('HMGET', key, ...) or NOTHING
  end

  -- The text of value + amount, if the sum is not below the number `least`.
  function quick_sum(value, amount, least)
    if value and #value <= DIGITS and (find(value, INTEGER) or value == '0') then
      local sum = value + amount
      if not least or sum >= least then
        return format('%d', sum)
      end
    end
  end

  -- A field of a hash as an amount.
  function quick_amount(text)
    if text and #text <= DIGITS and (find(text, UNSIGNED) or text == '0') then
      return text + 0
    end
  end
end
