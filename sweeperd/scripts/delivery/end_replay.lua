-- Ends a replay: removes its consumer group and its note in one step.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- KEYS[2] -> sweeperd:groups  HASH    group -> its note, JSON
-- ARGV[1] -> the group
-- ARGV[2] -> when the replay began, ms: a later replay in this group is another one
-- ARGV[3] -> 1: end it with events that are pending
-- Returns 1; 0 where it has ended already, or has pending events.
--
-- HDEL comes first. It needs no memory, so it is allowed at maxmemory, and after it XGROUP is.

-- @include json
-- @include rights

local note = redis.call('HGET', KEYS[2], ARGV[1])
if not note or json.decode(note).made_at ~= tonumber(ARGV[2]) then
  return 0
end
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
if pending.err and not string.find(tostring(pending.err), 'NOGROUP', 1, true) then
  return pending
end
if not pending.err and pending[1] > 0 and ARGV[3] ~= '1' then
  return 0
end
local refused = no_right('HDEL', KEYS[2]) or no_right('XGROUP', KEYS[1], 'DESTROY')
if refused then
  return refused
end
redis.call('HDEL', KEYS[2], ARGV[1])
if not pending.err then
  redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
end
return 1
