-- Moves a group past events that no living process wants, unless the filters have changed since the events were judged.
--
-- KEYS[1] -> sweeperd:events   STREAM
-- KEYS[2] -> sweeperd:filters  HASH    `version`: see note_filters.lua
-- ARGV[1] -> the group;  ARGV[2] -> the consumer
-- ARGV[3] -> the version that the events were judged by; empty if there were no notes
-- ARGV[4] -> the first of the events: it must be the next one of the group;  ARGV[5] -> the last of them
-- Returns 1; or -1 if the version has changed or the last event is gone, and nothing was done; or, if the group was not
-- there, the event that was read instead, as in a reply to XREADGROUP, or none.
--
-- The group's position is the only record of what was delivered, so it is moved only from where the caller believes it
-- to be: reading one event tells where it was. If the last event is gone, a fail-over may have lost it since it was
-- judged, and smaller ids may follow. XREADGROUP is the first write, and no command before it needs memory.

-- @include effects
-- @include rights

local group, first, last = ARGV[1], ARGV[4], ARGV[5]
if (redis.call('HGET', KEYS[2], 'version') or '') ~= ARGV[3] or #redis.call('XRANGE', KEYS[1], last, last) == 0 then
  return -1
end
local refused = no_right('XACK', KEYS[1]) or no_right('XGROUP', KEYS[1], 'SETID')
if refused then
  return refused
end
local read = redis.pcall('XREADGROUP', 'GROUP', group, ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[1], '>')
if not read then
  return {}
elseif read.err then
  return read
end
local events = read[1][2]
if events[1][1] ~= first then
  return events
end
redis.call('XACK', KEYS[1], group, first)
if last ~= first then
  redis.call('XGROUP', 'SETID', KEYS[1], group, last)
end
return 1
