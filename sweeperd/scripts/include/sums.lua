-- Sums of int64 values with any sign, as decimal text. Up to 15 digits a double is exact, and quicker than limbs.

-- @include int64

local sums = {}
do
  local DIGITS, PLAIN = 15, '^%-?[1-9]%d*$'

  -- Whether the text is an int64 as Redis writes it.
  function sums.is_int64(text)
    if #text <= DIGITS then
      return text == '0' or string.find(text, PLAIN) ~= nil
    end
    return int64_parse(text) ~= nil
  end

  -- a + b; nil where the sum is no int64.
  function sums.add(a, b)
    if #a <= DIGITS and #b <= DIGITS then
      return string.format('%d', a + b)
    end
    local a_high, a_low = int64_parse(a)
    local b_high, b_low = int64_parse(b)
    local high, low = int64_normal(a_high + b_high, a_low + b_low)
    local sum = int64_text(high, low)
    -- int64_text has a limit above, and none below.
    return sum and int64_parse(sum) and sum
  end

  function sums.less(a, b)
    if #a <= DIGITS and #b <= DIGITS then
      return a - b < 0
    end
    local a_high, a_low = int64_parse(a)
    local b_high, b_low = int64_parse(b)
    return a_high < b_high or (a_high == b_high and a_low < b_low)
  end
end
