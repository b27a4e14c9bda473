-- Gives up on deliveries: acknowledges each event and keeps it as a dead letter, atomically and only once.
--
-- KEYS[1] -> sweeperd:events        STREAM
-- KEYS[2] -> sweeperd:dead-letters  STREAM  the letters: event, endpoint, reason, attempts, the event's fields
-- ARGV[1] -> the consumer group;  ARGV[2] -> why
-- ARGV[3] -> the endpoint: the group's name, except in a replay
-- ARGV[4..] -> for each event:
--   the stream id
--   how many times the event was delivered to a consumer
--   the owner that the event must have; empty for any
--   the number of arguments that follow: the fields of an event about this, name and value in turn; 0 for no event
-- Returns the ids of the dead-lettered events. An event is left out if it is no longer pending or has another owner,
-- because another replica has taken, parked or settled it.
--
-- A letter is added before its event is acknowledged, because a stream at the greatest possible id refuses entries.

-- @include last_id
-- @include rights
-- @include trial

local LAST_MS = '18446744073709551615-' -- the greatest first half of an id
local MOST = 7000 -- Lua passes up to 8,000 arguments, and an event from another writer may have more

-- Whether the stream is close to the greatest possible id, and may refuse an entry.
local function is_ending(key)
  return string.sub(last_id(key) or '', 1, #LAST_MS) == LAST_MS
end

redis.call('XLEN', KEYS[2]) -- fail before the first write if the key has the wrong type
local may_announce, one_only = not is_ending(KEYS[1]), is_ending(KEYS[2])
local announced = false
local ids, letters, announcements = {}, {}, {}
local at = 4
while at <= #ARGV and not (one_only and #ids == 1) do
  local id, owner, count = ARGV[at], ARGV[at + 2], tonumber(ARGV[at + 3])
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if pending.err and not string.find(tostring(pending.err), 'NOGROUP', 1, true) then
    return pending
  end
  if not pending.err and #pending > 0 and (owner == '' or pending[1][2] == owner) then
    local letter = {'event', id, 'endpoint', ARGV[3], 'reason', ARGV[2], 'attempts', ARGV[at + 1]}
    local found = redis.call('XRANGE', KEYS[1], id, id)
    local fields = found[1] and found[1][2] or {}
    for i = 1, #fields <= MOST and #fields or 0 do
      letter[#letter + 1] = fields[i]
    end
    ids[#ids + 1], letters[#letters + 1] = id, letter
    if count > 0 and may_announce then
      announcements[#ids], announced = {at + 4, at + 3 + count}, true
    end
  end
  at = at + 4 + count
end
if #ids == 0 then
  return ids
end
local refused = no_right('XACK', KEYS[1]) or no_right('XADD', KEYS[2]) or announced and no_right('XADD', KEYS[1])
if refused then
  return refused
end
trial('XACK', KEYS[1]) -- for maxmemory: see rights.lua
local added = redis.pcall('XADD', KEYS[2], '*', unpack(letters[1]))
if type(added) == 'table' then -- an error; an id is a string
  return added
end
for i = 1, #ids do
  if i > 1 then
    redis.call('XADD', KEYS[2], '*', unpack(letters[i]))
  end
  redis.call('XACK', KEYS[1], ARGV[1], ids[i])
  if announcements[i] then
    redis.call('XADD', KEYS[1], '*', unpack(ARGV, announcements[i][1], announcements[i][2]))
  end
end
return ids
