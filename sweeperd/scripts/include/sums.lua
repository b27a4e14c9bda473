-- Sums of signed int64 values, as decimal text. Up to 15 digits a double is exact, and faster than limbs.

-- @include whole

local sums = {}
do
  local DIGITS, SIGNED = whole.EXACT_DIGITS, whole.SIGNED
  local find, format = string.find, string.format
  local parse, normal, text_of

  -- The arithmetic of longer numbers, loaded when first needed.
  local function limbs(text)
    if not parse then
      -- @include int64
      parse, normal, text_of = int64_parse, int64_normal, int64_text
    end
    return parse(text)
  end

  -- Whether the text is an int64 in the form that Redis writes.
  function sums.is_int64(text)
    if #text <= DIGITS then
      return text == '0' or find(text, SIGNED) ~= nil
    end
    return limbs(text) ~= nil
  end

  -- a + b; nil if the sum is not an int64.
  function sums.add(a, b)
    if #a <= DIGITS and #b <= DIGITS then
      return format('%d', a + b)
    end
    local a_high, a_low = limbs(a)
    local b_high, b_low = limbs(b)
    local sum = text_of(normal(a_high + b_high, a_low + b_low))
    -- text_of checks the upper limit only.
    return sum and parse(sum) and sum
  end

  function sums.less(a, b)
    if #a <= DIGITS and #b <= DIGITS then
      return a - b < 0
    end
    local a_high, a_low = limbs(a)
    local b_high, b_low = limbs(b)
    return a_high < b_high or (a_high == b_high and a_low < b_low)
  end
end
