-- Notes which events the endpoints of a process select, and removes the notes of silent processes, even at maxmemory.
--
-- KEYS[1] -> sweeperd:filters  HASH
--            `version`            `<number>@<ms>`: it rises when a process joins, leaves or changes its filters
--            `answered`           `<ms> <ms>`: for how long Redis has answered the processes, and TIME at the last call
--            `heard:<process>`    `<ms> <ms>`: `answered` at the process's last call, and since when its filters are
--                                 unchanged
--            `filters:<process>`  endpoint -> filter, JSON
-- ARGV[1] -> the process;  ARGV[2] -> its filters, JSON; empty when the process leaves
-- ARGV[3] -> the silence after which a process no longer counts, ms
-- ARGV[4] -> the longest gap between two calls during which Redis surely answered, ms
-- Returns the version.
--
-- Silence is measured by `answered`: if Redis was down for an hour, no process could call, and all of them still count.
-- After a gap longer than ARGV[4] it is unknown whether Redis answered, so the gap counts for a fifteenth of ARGV[3]
-- only, usually a second.

-- @include clock
-- @include rights

local function pair(text)
  local first, second = string.match(text or '', '^(%d+) (%d+)$')
  return tonumber(first), tonumber(second)
end

local key, process, filters = KEYS[1], ARGV[1], ARGV[2]
local notes, flat = {}, redis.call('HGETALL', key)
for i = 1, #flat, 2 do
  notes[flat[i]] = flat[i + 1]
end
local answered, called_at = pair(notes.answered)
local pause = math.max(0, clock.now - (called_at or clock.now))
answered = (answered or 0) + (pause <= tonumber(ARGV[4]) and pause or math.floor(tonumber(ARGV[3]) / 15))
local answered_text = string.format('%d', answered)

local gone, set, lives = {}, {'answered', answered_text .. ' ' .. clock.now_text}, {}
local version, changed = notes.version, not notes.version
for i = 1, #flat, 2 do
  local field = flat[i]
  local other = string.match(field, '^heard:(.*)$')
  local heard, since = pair(other and notes[field])
  if heard and answered - heard <= tonumber(ARGV[3]) then
    lives[other] = true
    if heard > answered and other ~= process then -- `answered` was lost
      set[#set + 1], set[#set + 2] = field, answered_text .. ' ' .. string.format('%d', since)
    end
  end
end
lives[process] = filters ~= ''
for i = 1, #flat, 2 do
  local sort, other = string.match(flat[i], '^(%a+):(.*)$')
  if (sort == 'heard' or sort == 'filters') and not lives[other] then
    gone[#gone + 1] = flat[i]
    changed = true
  end
end
if lives[process] then
  local _, since = pair(notes['heard:' .. process])
  if notes['filters:' .. process] ~= filters then
    set[#set + 1], set[#set + 2] = 'filters:' .. process, filters
    since, changed = nil, true
  end
  set[#set + 1] = 'heard:' .. process
  set[#set + 1] = answered_text .. ' ' .. string.format('%d', math.min(since or clock.now, clock.now))
end
if changed then
  local number = tonumber(string.match(version or '', '^(%d+)@')) or 0
  version = string.format('%d', number + 1) .. '@' .. clock.now_text
  set[#set + 1], set[#set + 2] = 'version', version
end

local refused = no_right('HDEL', key) or no_right('HSET', key)
if refused then
  return refused
end
redis.call('HDEL', key, '', unpack(gone)) -- for maxmemory: see rights.lua
redis.call('HSET', key, unpack(set))
return version
