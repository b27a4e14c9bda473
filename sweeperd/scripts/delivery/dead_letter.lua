-- Gives up on a delivery: acknowledges it and keeps the event as a dead letter, in one step and only once.
--
-- KEYS[1] -> sweeperd:events        STREAM
-- KEYS[2] -> sweeperd:dead-letters  STREAM  the letters: event, endpoint, reason, attempts, the event's fields
--
-- ARGV[1] -> the consumer group
-- ARGV[2] -> the stream id of the event
-- ARGV[3] -> why
-- ARGV[4] -> how many times the event was handed over
-- ARGV[5] -> the endpoint: named as the group, except in a replay
-- ARGV[6] -> the owner that the event must have; empty: any
-- ARGV[7..] -> the fields of an event about this, name and value in turn; none: no such event
--
-- Returns 1; 0 if the event is pending no more or has another owner: another replica has taken, parked or settled it.
--
-- A trial of XACK comes first. XACK needs no memory: if Redis is at maxmemory, XACK is still accepted, and so is XADD
-- after XACK. The letter is added before the event is acknowledged: a stream with the greatest last id takes no entry.

-- @include rights
-- @include trial

local GREATEST = '18446744073709551615-18446744073709551615' -- of the ids of a stream
local MOST = 7000 -- Lua passes no more than 8,000 arguments; an event of another writer may have more

redis.call('XLEN', KEYS[2]) -- fail here, if the key is of another type, before the first write
local found = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if pending.err and not string.find(tostring(pending.err), 'NOGROUP', 1, true) then
  return pending
end
if pending.err or #pending == 0 or (ARGV[6] ~= '' and pending[1][2] ~= ARGV[6]) then
  return 0
end
local announced = ARGV[7] ~= nil
local stream = announced and redis.call('XINFO', 'STREAM', KEYS[1]) or {}
for i = 1, #stream, 2 do
  -- The stream takes no entry more.
  announced = announced and not (stream[i] == 'last-generated-id' and stream[i + 1] == GREATEST)
end
local refused = no_right('XACK', KEYS[1]) or no_right('XADD', KEYS[2]) or announced and no_right('XADD', KEYS[1])
if refused then
  return refused
end
local letter = {'event', ARGV[2], 'endpoint', ARGV[5], 'reason', ARGV[3], 'attempts', ARGV[4]}
local fields = found[1] and found[1][2] or {}
for i = 1, #fields <= MOST and #fields or 0 do
  letter[#letter + 1] = fields[i]
end
trial('XACK', KEYS[1])
local added = redis.pcall('XADD', KEYS[2], '*', unpack(letter))
if type(added) == 'table' then -- an error; the id of the entry is text
  return added
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if announced then
  redis.call('XADD', KEYS[1], '*', unpack(ARGV, 7))
end
return 1
