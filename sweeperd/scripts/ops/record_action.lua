-- Records and counts an operator's action. A long action that can't be undone is recorded when it begins and again when
-- it ends. The second record replaces the first, which stays if the command is killed.
--
-- KEYS[1] -> sweeperd:actions        STREAM  one entry for each action
-- KEYS[2] -> sweeperd:action-counts  HASH    action -> times done; action:changed -> entries changed
-- ARGV[1] -> how many entries to keep
-- ARGV[2] -> who: user@host;  ARGV[3] -> the action;  ARGV[4] -> the target;  ARGV[5] -> the number of changed entries
-- ARGV[6] -> the id of the action's first record, or ''
-- ARGV[7] -> '1' if the action begins now, or if it is not known how much of it was done
-- Returns the id of the entry. Its time comes from this server's clock.

-- @include rights
-- @include trial

local function added(field, count)
  return string.format('%.0f', (tonumber(redis.call('HGET', KEYS[2], field)) or 0) + count)
end

local changed = ARGV[3] .. ':changed'
local begun = ARGV[6] ~= '' and ARGV[6]
local actions_text, changed_text = added(ARGV[3], begun and 0 or 1), added(changed, ARGV[5])
local refused = no_right('XTRIM', KEYS[1]) or no_right('XADD', KEYS[1]) or no_right('HSET', KEYS[2])
if refused then
  return refused
end
local removes = begun and not no_right('XDEL', KEYS[1])
local entry = {'who', ARGV[2], 'action', ARGV[3], 'target', ARGV[4], 'count', ARGV[5]}
if ARGV[7] == '1' then
  entry[#entry + 1], entry[#entry + 2] = 'begun', '1'
end
trial('XTRIM', KEYS[1]) -- for maxmemory: see rights.lua
local id = redis.pcall('XADD', KEYS[1], '*', unpack(entry))
if type(id) == 'table' then -- an error: the stream has reached the greatest id
  return id
end
if removes then
  redis.call('XDEL', KEYS[1], begun)
end
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1])
redis.call('HSET', KEYS[2], ARGV[3], actions_text, changed, changed_text)
return id
