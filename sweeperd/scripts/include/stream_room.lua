-- Checks that a stream takes more entries, for a script whose XADD may not fail because it follows another write.

-- @include last_id

-- The error if the stream cannot take this many entries, 1 or 2. Ids only grow, so the two greatest are the limit.
local function no_room(stream, entries)
  local id, problem = last_id(stream)
  if not id then
    return not string.find(tostring(problem.err), 'no such key', 1, true) and problem or nil
  end
  local last = string.match(id, '^18446744073709551615%-1844674407370955161([45])$')
  return last and 5 - last < entries
    and {err = 'ERR The stream has exhausted the last possible ID, unable to add more items'} or nil
end
