-- Writes the state of an endpoint for all replicas. A pause replaces any other state. A mute doesn't replace a pause:
-- only an operator ends a pause, and the response to a request in flight must not lift it. The later of two mutes wins.
-- A state that is neither a pause nor a mute, with `muted_until` 0, ends a mute.
--
-- KEYS[1] -> sweeperd:endpoints  HASH  endpoint -> state, JSON
-- KEYS[2] -> sweeperd:events     STREAM
-- ARGV[1] -> the endpoint
-- ARGV[2] -> the state, JSON: `paused_at` is a number if the state is a pause
-- ARGV[3..] -> the fields of an event about a pause, name and value in turn; the event is added if the endpoint was not
--              paused yet. None: no such event
-- Returns the state that the hash holds now.

-- @include clock
-- @include json
-- @include set_fields

local function unreadable(state)
  return (state.muted_until ~= nil and type(state.muted_until) ~= 'number')
    or (state.mute_ms ~= nil and type(state.mute_ms) ~= 'number')
    or (state.paused_at ~= nil and state.paused_at ~= json.null and type(state.paused_at) ~= 'number')
end

local function is_pause(state)
  return type(state.paused_at) == 'number'
end

-- When a mute ends. If the clock was set back since, the mute lasts for its length from now at the longest.
local function end_of_mute(state)
  local mute_ms = state.mute_ms or 0
  return math.min(state.muted_until or 0, mute_ms > 0 and clock.now + mute_ms or math.huge)
end

local wanted = json.decode(ARGV[2])
local paused = is_pause(wanted)
if wanted.muted_until == 0 then
  wanted.muted_until = math.huge -- no mute outlasts the end of a mute
end
local found = redis.call('HGET', KEYS[1], ARGV[1])
local was_paused = false
if found then
  local is_json, state = pcall(json.decode, found)
  was_paused = not is_json or not string.find(found, '^%s*{') or unreadable(state) or is_pause(state)
  if not paused and (was_paused or end_of_mute(state) >= wanted.muted_until) then
    return found
  end
end
redis.call('XLEN', KEYS[2]) -- fail before the first write if the key has the wrong type
local announced = ARGV[3] and paused and not was_paused
return set_fields(KEYS[1], {ARGV[1], ARGV[2]}, KEYS[2], announced and {unpack(ARGV, 3)}) or ARGV[2]
