-- Arithmetic on budget amounts: takes and returns the decimal text of an int64.
--
-- add, subtract and share expect text that passed is_int64. Up to 15 digits a double is exact, and faster than limbs.

-- @include int64
-- @include whole

local amounts = {}
do
  local DIGITS = whole.EXACT_DIGITS

  function amounts.is_int64(text)
    return text and int64_parse(text) and true or false
  end

  function amounts.less(a, b)
    if #a <= DIGITS and #b <= DIGITS then
      return tonumber(a) < tonumber(b)
    end
    local a_high, a_low = int64_parse(a)
    local b_high, b_low = int64_parse(b)
    return a_high < b_high or (a_high == b_high and a_low < b_low)
  end

  -- a + b; nil above int64. The sum cannot be below int64, because at most one of a and b is negative.
  function amounts.add(a, b)
    if #a <= DIGITS and #b <= DIGITS then
      return string.format('%d', a + b)
    end
    local a_high, a_low = int64_parse(a)
    local b_high, b_low = int64_parse(b)
    return int64_text(int64_normal(a_high + b_high, a_low + b_low))
  end

  -- a - b, where b is 0 or more; nil below int64.
  function amounts.subtract(a, b)
    if #a <= DIGITS and #b <= DIGITS then
      return string.format('%d', a - b)
    end
    local a_high, a_low = int64_parse(a)
    local b_high, b_low = int64_parse(b)
    local high, low = int64_normal(a_high - b_high, a_low - b_low)
    if high < -MAX_HIGH - 1 or (high == -MAX_HIGH - 1 and low < LIMB - MAX_LOW - 1) then
      return nil
    end
    return int64_text(high, low)
  end

  -- The whole part of a / parts, where a is 0 or more. Exact, because the remainder is below parts, a count of scopes.
  function amounts.share(a, parts)
    if parts == 1 then
      return a
    end
    local high, low = int64_parse(a)
    local quotient = math.floor(high / parts)
    return int64_text(quotient, math.floor(((high - quotient * parts) * LIMB + low) / parts))
  end
end
