-- Notes that an endpoint asked for quiet, unless it is paused: a pause lasts until somebody ends it, and must not be
-- lifted by the answer to a request that was in flight when it began.
--
-- KEYS[1] -> sweeperd:endpoints  HASH  endpoint -> note, JSON
-- ARGV[1] -> the endpoint;  ARGV[2] -> the note
-- Returns the note that stands there now.
local note = redis.call('HGET', KEYS[1], ARGV[1])
if note then
  local readable, state = pcall(cjson.decode, note)
  -- What cannot be read counts as a pause.
  if not readable or type(state) ~= 'table' or type(state.paused_at) == 'number'
    or (next(state) and type(state.muted_until) ~= 'number') then
    return note
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return ARGV[2]
