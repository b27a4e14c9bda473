-- Whole numbers as decimal text in the form that Redis writes: no plus sign, no leading zero, no space.

local whole = {
  -- Patterns for every whole number except 0, unsigned and signed.
  UNSIGNED = '^[1-9]%d*$', SIGNED = '^%-?[1-9]%d*$',
  -- A double holds numbers of up to this many digits exactly, and the sum of two.
  EXACT_DIGITS = 15,
}

-- Whether the text is a whole amount, 0 to 2^63-1.
function whole.is_amount(text)
  return text and (text == '0' or string.find(text, whole.UNSIGNED)
    and (#text < 19 or (#text == 19 and text <= '9223372036854775807')))
end
