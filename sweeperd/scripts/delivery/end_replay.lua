-- Ends a replay: removes its consumer group and its note atomically.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- KEYS[2] -> sweeperd:groups  HASH    group -> its note, JSON
-- ARGV[1] -> the group
-- ARGV[2] -> when the replay began, ms, to tell it from a later replay in this group
-- ARGV[3] -> 1 to end the replay even if events are left
-- Returns 1; 0 if the replay has already ended, or has pending or undelivered events.
--
-- If the group was lost, all events count as undelivered, because a process creates the group again.

-- @include groups
-- @include json
-- @include rights

local text = redis.call('HGET', KEYS[2], ARGV[1])
local note = text and json.decode(text)
if not note or note.made_at ~= tonumber(ARGV[2]) then
  return 0
end
local groups, problem = groups_of(KEYS[1])
if not groups then
  return problem
end
local group = groups[ARGV[1]]
if ARGV[3] ~= '1' then
  local after = group and '(' .. group['last-delivered-id']
  if not group or group.pending > 0 or #redis.call('XRANGE', KEYS[1], after, note.last, 'COUNT', 1) > 0 then
    return 0
  end
end
local refused = no_right('HDEL', KEYS[2]) or no_right('XGROUP', KEYS[1], 'DESTROY')
if refused then
  return refused
end
redis.call('HDEL', KEYS[2], ARGV[1]) -- first, for maxmemory: see rights.lua
if group then
  redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
end
return 1
