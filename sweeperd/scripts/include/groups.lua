-- The consumer groups of a stream.

-- @include effects

-- Redis replies with alternating names and values.
local function fields(reply)
  local named = {}
  for i = 1, #reply, 2 do
    named[reply[i]] = reply[i + 1]
  end
  return named
end

-- Each group by name, with the fields of XINFO GROUPS; empty if the stream doesn't exist. Or nil and an error.
local function groups_of(stream)
  local found, groups = redis.pcall('XINFO', 'GROUPS', stream), {}
  if found.err and not string.find(tostring(found.err), 'no such key', 1, true) then
    return nil, found
  end
  for i = 1, #found do
    local group = fields(found[i])
    groups[group.name] = group
  end
  return groups
end
