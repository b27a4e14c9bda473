-- An entry that is the member of the index itself.

-- The parts of a member between these texts, of which the first begins it and the last ends it; nil if it does not fit.
-- A part ends where the text after it first occurs, and the last part before the text at the end.
local function member_parts(member, first, ...)
  if string.sub(member, 1, #first) ~= first then
    return nil
  end
  local parts, from, count = {}, #first + 1, select('#', ...)
  for i = 1, count - 1 do
    local start, stop = string.find(member, (select(i, ...)), from, true)
    if not start then
      return nil
    end
    parts[i], from = string.sub(member, from, start - 1), stop + 1
  end
  local last = select(count, ...)
  local ends = #member - #last
  if ends < from - 1 or string.sub(member, ends + 1) ~= last then
    return nil
  end
  parts[count] = string.sub(member, from, ends)
  return parts
end
