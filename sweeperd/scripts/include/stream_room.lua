-- Checks that a stream takes more entries, for a script whose XADD may not fail because it follows another write.

-- The error if the stream cannot take this many entries, 1 or 2. Ids only grow, so the two greatest are the limit.
local function no_room(stream, entries)
  local about = redis.pcall('XINFO', 'STREAM', stream)
  if about.err then
    return not string.find(tostring(about.err), 'no such key', 1, true) and about or nil
  end
  for i = 1, #about, 2 do
    if about[i] == 'last-generated-id' then
      local last = string.match(about[i + 1], '^18446744073709551615%-1844674407370955161([45])$')
      return last and 5 - last < entries
        and {err = 'ERR The stream has exhausted the last possible ID, unable to add more items'} or nil
    end
  end
end
