-- Trims the event stream, unless a group was made since the caller looked at the groups: it may need what would go.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- ARGV[1] -> events with a smaller id may go;  ARGV[2...] -> the groups that the caller has seen
-- Returns how many events went. Redis removes whole nodes of the stream, up to 10,000 entries.

-- @include groups
-- @include rights

local groups, problem = groups_of(KEYS[1])
if not groups then
  return problem
end
local seen = {}
for i = 2, #ARGV do
  seen[ARGV[i]] = true
end
for name in pairs(groups) do
  if not seen[name] then
    return 0
  end
end
return no_right('XTRIM', KEYS[1]) or redis.call('XTRIM', KEYS[1], 'MINID', '~', ARGV[1])
