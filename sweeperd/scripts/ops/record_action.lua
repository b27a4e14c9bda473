-- Records and counts an action of an operator.
--
-- KEYS[1] -> sweeperd:actions        STREAM  one entry for each action
-- KEYS[2] -> sweeperd:action-counts  HASH    action -> how often done; action:changed -> how many entries were changed
--
-- ARGV[1] -> how many entries are kept
-- ARGV[2] -> who: user@host;  ARGV[3] -> the action;  ARGV[4] -> the target;  ARGV[5] -> the number of changed entries
--
-- Returns the id of the entry; the time in the id is of this server's clock.
--
-- A trial of XTRIM comes first. XTRIM needs no memory: if Redis is full, XTRIM is still accepted, and so are the writes
-- after XTRIM.

-- @include rights
-- @include trial

local function added(field, count)
  return string.format('%.0f', (tonumber(redis.call('HGET', KEYS[2], field)) or 0) + count)
end

local changed = ARGV[3] .. ':changed'
local actions_text, changed_text = added(ARGV[3], 1), added(changed, ARGV[5])
local refused = no_right('XTRIM', KEYS[1]) or no_right('XADD', KEYS[1]) or no_right('HSET', KEYS[2])
if refused then
  return refused
end
trial('XTRIM', KEYS[1])
local id = redis.pcall('XADD', KEYS[1], '*', 'who', ARGV[2], 'action', ARGV[3], 'target', ARGV[4], 'count', ARGV[5])
if type(id) == 'table' then -- an error: the stream takes no entry
  return id
end
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1])
redis.call('HSET', KEYS[2], ARGV[3], actions_text, changed, changed_text)
return id
