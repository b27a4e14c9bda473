-- Corrects every stored time that lies in the future, because the clock was set back by hand or by a failover to
-- another host. A time that must be past becomes now. A mute lasts for its length from now on.
--
-- KEYS[1] -> sweeperd:events     STREAM
-- KEYS[2] -> sweeperd:endpoints  HASH  endpoint -> state, JSON: `paused_at`; `muted_until`, and `mute_ms`, its length
-- KEYS[3] -> sweeperd:circuits   HASH  endpoint@process -> note, JSON: `at`, `delivered_at`; endpoint -> ms
-- KEYS[4] -> sweeperd:processes  HASH  daemon -> note, JSON: `at`
-- ARGV[1] -> how far in the future a time may lie, ms: processes read the clock occasionally and extrapolate
-- Returns how far the clock is behind the stream's last id or the latest note, ms; 0 or less if it isn't behind.

-- @include clock
-- @include last_id
-- @include rights
-- @include trial

local latest = clock.now + ARGV[1]
local behind = -math.huge

-- The replacement for a number in a note, or nil to keep it.
local function past(name, digits)
  local at = tonumber(digits)
  if string.find(name, '"probe_at"', 1, true) then
    return nil -- lies in the future while the circuit is open
  end
  behind = math.max(behind, at - clock.now)
  return at > latest and name .. clock.now_text or nil
end

local function corrected(key, note)
  note = string.gsub(note, '("[%a_]*at": *)(%d+)', past)
  local length = key == KEYS[2] and tonumber(string.match(note, '"mute_ms": *(%d+)')) or 0
  if length > 0 then
    note = string.gsub(note, '("muted_until": *)(%d+)', function(name, digits)
      return tonumber(digits) > latest + length and name .. string.format('%d', clock.now + length) or nil
    end)
  end
  return note
end

local last = last_id(KEYS[1])
if last then
  behind = tonumber(string.match(last, '^%d+')) - clock.now
end
local writes, refused = {}, nil
for i = 2, #KEYS do
  local rows = redis.call('HGETALL', KEYS[i])
  for j = 1, #rows, 2 do
    local note = corrected(KEYS[i], rows[j + 1])
    if note ~= rows[j + 1] then
      writes[#writes + 1] = {KEYS[i], rows[j], note}
      refused = refused or no_right('HDEL', KEYS[i]) or no_right('HSET', KEYS[i])
    end
  end
end
local found = math.min(math.max(behind, -9007199254740991), 9007199254740991) -- the range of an integer reply
if refused or #writes == 0 then
  return refused or found
end
trial('HDEL', KEYS[2]) -- for maxmemory: see rights.lua
for i = 1, #writes do
  redis.call('HSET', unpack(writes[i]))
end
return found
