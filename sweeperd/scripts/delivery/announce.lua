-- Announces that deliveries to an endpoint fail, or work again, once for all processes: the first to change the note
-- adds the event.
--
-- KEYS[1] -> sweeperd:circuits   HASH  failing:<endpoint> -> `failing` or `recovered`, and since when, ms
-- KEYS[2] -> sweeperd:endpoints  HASH  endpoint -> state, JSON: a paused or muted endpoint is left alone
-- KEYS[3] -> sweeperd:events     STREAM
-- ARGV[1] -> the endpoint
-- ARGV[2] -> the note as the caller has read it; empty: none
-- ARGV[3] -> `failing` or `recovered`
-- ARGV[4..] -> the fields of the event, name and value in turn; none: only the note is changed
-- Returns 1; 0 if another process has changed the note since, or if the endpoint is paused or muted.

-- @include clock
-- @include json
-- @include set_fields

local field = 'failing:' .. ARGV[1]
if (redis.call('HMGET', KEYS[1], field)[1] or '') ~= ARGV[2] then
  return 0
end
local found = redis.call('HGET', KEYS[2], ARGV[1])
if found then
  local is_json, state = pcall(json.decode, found)
  if not is_json or type(state) ~= 'table' or type(state.paused_at) == 'number'
    or (tonumber(state.muted_until) or 0) > clock.now then
    return 0
  end
end
redis.call('XLEN', KEYS[3]) -- fail before the first write if the key has the wrong type
local note = ARGV[3] .. ' ' .. clock.now_text
return set_fields(KEYS[1], {field, note}, KEYS[3], ARGV[4] and {unpack(ARGV, 4)}) or 1
