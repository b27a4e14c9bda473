-- Replays a dead letter: adds its event to the stream for one endpoint and removes the letter, atomically.
--
-- KEYS[1] -> sweeperd:events        STREAM
-- KEYS[2] -> sweeperd:dead-letters  STREAM  written by dead_letter.lua
-- ARGV[1] -> the id of the dead letter
-- Returns {outcome, ...}:
--   {'replayed', stream id}
--   {'gone'}      no such letter: another command has replayed or dropped it
--   {'no_event'}  the letter has no event: the stream was trimmed before the letter was written
--   {'no_group'}  the endpoint has no consumer group
--
-- The event keeps every field and its event id. `only_for` names the receiving endpoint, and all other endpoints
-- acknowledge the event without a request. A replay doesn't count as an expiry. The event's age restarts with the new
-- stream id.

-- @include rights
-- @include trial

local letter = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])[1]
if not letter then
  return {'gone'}
end
local fields, event, endpoint = letter[2], {}, ''
for i = 1, #fields, 2 do
  local name, value = fields[i], fields[i + 1]
  if i <= 7 then -- event, endpoint, reason, attempts
    endpoint = name == 'endpoint' and value or endpoint
  elseif name ~= 'only_for' then
    event[#event + 1], event[#event + 2] = name, value
  end
end
if #event == 0 then
  return {'no_event'}
end
local pending = redis.pcall('XPENDING', KEYS[1], endpoint)
if pending.err then
  return string.find(pending.err, 'NOGROUP', 1, true) and {'no_group'} or pending
end
event[#event + 1], event[#event + 2] = 'only_for', endpoint

local refused = no_right('XDEL', KEYS[2]) or no_right('XADD', KEYS[1])
if refused then
  return refused
end
trial('XDEL', KEYS[2]) -- for maxmemory; the letter itself must stay until the event is in the stream
local added = redis.pcall('XADD', KEYS[1], '*', unpack(event))
if type(added) == 'table' then -- an error; an id is a string
  return added
end
redis.call('XDEL', KEYS[2], ARGV[1])
return {'replayed', added}
