-- Whether a key has these texts at its start and end, and the rest in order between them: `first*...*last`.
local function is_like(key, first, last, ...)
  local from, to = #first + 1, #key - #last
  if to < from - 1 or string.sub(key, 1, #first) ~= first or string.sub(key, to + 1) ~= last then
    return false
  end
  for i = 1, select('#', ...) do
    local _, stop = string.find(key, (select(i, ...)), from, true)
    if not stop or stop > to then
      return false
    end
    from = stop + 1
  end
  return true
end
