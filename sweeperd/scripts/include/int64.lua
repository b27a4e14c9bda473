-- Exact arithmetic on the decimal text of int64 values. A Lua double is exact up to 2^53 only.
--
-- A number is two limbs: value = high * 1e10 + low, with 0 <= low < 1e10 and the sign in high. Each step is exact,
-- because limbs and sums of two limbs stay far below 2^53. Only canonical text is accepted, as Redis accepts an
-- integer.

local LIMB = 10000000000
local MAX_HIGH, MAX_LOW = 922337203, 6854775807

-- Brings low back into 0 <= low < 1e10.
local function int64_normal(high, low)
  local carry = math.floor(low / LIMB)
  return high + carry, low - carry * LIMB
end

-- The limbs of an int64's text; nil if the text is not an int64.
local function int64_parse(text)
  local sign, digits = string.match(text, '^(%-?)(%d+)$')
  if not digits or #digits > 19 or (text ~= '0' and string.sub(digits, 1, 1) == '0') then
    return nil
  end
  local high, low = tonumber(string.sub(digits, 1, -11)) or 0, tonumber(string.sub(digits, -10))
  if high > MAX_HIGH or (high == MAX_HIGH and low > MAX_LOW + #sign) then
    return nil
  end
  if sign == '-' then
    return int64_normal(-high, -low)
  end
  return high, low
end

-- The text of a number from its limbs; nil above int64.
local function int64_text(high, low)
  local sign = ''
  if high < 0 then
    sign, high, low = '-', int64_normal(-high, -low)
  elseif high > MAX_HIGH or (high == MAX_HIGH and low > MAX_LOW) then
    return nil
  end
  if high == 0 then
    return string.format('%s%d', sign, low)
  end
  return string.format('%s%d%010d', sign, high, low)
end
