-- Ends a replay: removes the consumer group and the note of the replay in one step.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- KEYS[2] -> sweeperd:groups  HASH    group -> its note, JSON
-- ARGV[1] -> the group
-- ARGV[2] -> when the replay began, ms: a later replay in this group is another one
-- ARGV[3] -> 1: end the replay even if events are left
-- Returns 1; 0 if the replay has ended already, or has events that are pending or not given out.
--
-- If the group was lost, all events count as not given out: a process makes the group again.
--
-- HDEL comes first. HDEL needs no memory: if Redis is at maxmemory, HDEL is still accepted, and so is XGROUP after it.

-- @include json
-- @include rights

-- The last event given to the group; nil if the group is missing.
local function position_of(group)
  local found = redis.pcall('XINFO', 'GROUPS', KEYS[1])
  for i = 1, #found do
    local row = {}
    for j = 1, #found[i], 2 do row[found[i][j]] = found[i][j + 1] end
    if row.name == group then return row['last-delivered-id'] end
  end
  return nil
end

local text = redis.call('HGET', KEYS[2], ARGV[1])
local note = text and json.decode(text)
if not note or note.made_at ~= tonumber(ARGV[2]) then
  return 0
end
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
if pending.err and not string.find(tostring(pending.err), 'NOGROUP', 1, true) then
  return pending
end
if not pending.err and pending[1] > 0 and ARGV[3] ~= '1' then
  return 0
end
if ARGV[3] ~= '1' then
  local position = position_of(ARGV[1])
  if not position or #redis.call('XRANGE', KEYS[1], '(' .. position, note.last, 'COUNT', 1) > 0 then
    return 0
  end
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
