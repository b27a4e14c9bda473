-- A fast check of the everyday plan: only HINCRBY, with commands on the same key adjacent and adding to different
-- fields, on existing keys and fields, and with numbers of up to 15 digits.
--
-- Returns nil for every other plan. kind_plan.lua then checks the plan from the start, and gives the reason if it
-- fails.

-- @include permission
-- @include whole

local quick_writable, quick_read, quick_sum, quick_amount
do
  local DIGITS, UNSIGNED, INTEGER, MAX_KEY = whole.EXACT_DIGITS, whole.UNSIGNED, whole.SIGNED, 1024
  local attempt, find, format = redis.pcall, string.find, string.format
  local NOTHING = {}

  -- Whether a plan may write the hash of this name (the key without the prefix), according to `writable`.
  function quick_writable(name, key, writable)
    return name ~= '' and #name <= MAX_KEY and writable(name)
      and (not can_ask or not lacks_permission('HSET', key, 'f', 'v'))
  end

  -- The values of these fields of a key; {} if the plan may not write it.
  function quick_read(name, key, writable, ...)
    return quick_writable(name, key, writable) and attempt('HMGET', key, ...) or NOTHING
  end

  -- The text of value + amount, if the sum is at least `least`.
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
