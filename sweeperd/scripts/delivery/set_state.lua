-- Writes the state of an endpoint for all replicas. A pause replaces any other state. A mute does not replace a pause:
-- a pause lasts until an operator ends it, and the response to a request that was in flight must not lift it.
--
-- KEYS[1] -> sweeperd:endpoints  HASH  endpoint -> state, JSON
-- ARGV[1] -> the endpoint
-- ARGV[2] -> the state, JSON: `paused_at` is a number where it is a pause
-- Returns the state that the hash holds now.
--
-- HDEL comes first and removes nothing. It needs no memory, so it is allowed at maxmemory, and after it HSET is.

local function unreadable(state)
  return type(state) ~= 'table' or state[1] ~= nil
    or (state.muted_until ~= nil and type(state.muted_until) ~= 'number')
    or (state.paused_at ~= nil and state.paused_at ~= cjson.null and type(state.paused_at) ~= 'number')
end

local found = redis.call('HGET', KEYS[1], ARGV[1])
if found and type(cjson.decode(ARGV[2]).paused_at) ~= 'number' then
  local is_json, state = pcall(cjson.decode, found)
  if not is_json or unreadable(state) or type(state.paused_at) == 'number' then
    return found
  end
end
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return ARGV[2]
