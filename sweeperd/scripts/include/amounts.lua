-- Arithmetic on the decimal text of int64 values. Up to 15 digits a double is exact, and faster than limbs.
--
-- All but is_int64 expect text that passed is_int64. A sum or a difference that is not an int64 is nil.

-- @include int64
-- @include whole

local amounts = {}
do
  local DIGITS, SIGNED = whole.EXACT_DIGITS, whole.SIGNED

  local function text_of(high, low)
    local text = int64_text(int64_normal(high, low))
    return text and int64_parse(text) and text -- int64_text checks the upper limit only
  end

  -- Whether the text is an int64 in the form that Redis writes.
  function amounts.is_int64(text)
    if text and #text <= DIGITS then
      return text == '0' or string.find(text, SIGNED) ~= nil
    end
    return text and int64_parse(text) ~= nil
  end

  function amounts.less(a, b)
    if #a <= DIGITS and #b <= DIGITS then
      return a - b < 0
    end
    local a_high, a_low = int64_parse(a)
    local b_high, b_low = int64_parse(b)
    return a_high < b_high or (a_high == b_high and a_low < b_low)
  end

  function amounts.add(a, b)
    if #a <= DIGITS and #b <= DIGITS then
      return string.format('%d', a + b)
    end
    local a_high, a_low = int64_parse(a)
    local b_high, b_low = int64_parse(b)
    return text_of(a_high + b_high, a_low + b_low)
  end

  function amounts.subtract(a, b)
    if #a <= DIGITS and #b <= DIGITS then
      return string.format('%d', a - b)
    end
    local a_high, a_low = int64_parse(a)
    local b_high, b_low = int64_parse(b)
    return text_of(a_high - b_high, a_low - b_low)
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
