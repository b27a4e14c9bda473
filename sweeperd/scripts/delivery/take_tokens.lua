-- Takes tokens from the token bucket of one endpoint. A token allows one request. A full bucket holds `burst` tokens,
-- and one token is added every `interval`.
--
-- KEYS[1] -> sweeperd:pace  HASH  endpoint -> when the bucket will be full again, µs on this server's clock
-- ARGV[1] -> the endpoint;  ARGV[2] -> the interval, µs;  ARGV[3] -> the burst, a whole number
-- ARGV[4] -> how many tokens are wanted, 1 or more
-- Returns {tokens taken, µs until there is one that was not taken}.

-- @include set_fields

local time = redis.call('TIME')
local now, interval, burst = time[1] * 1000000 + time[2], tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0) or 0
-- A time too far in the future comes from another rate, or the clock was set back since. It is corrected in the hash
-- too: a correction of the local value alone would be just as far off at the next call.
local full_at = math.max(math.min(stored, now + burst * interval), now)
local there = math.floor((now - full_at) / interval + burst + 0.000001)
local taken = math.max(0, math.min(there, tonumber(ARGV[4])))
local next_in = math.ceil(full_at + (taken - burst + 1) * interval - now)
local reply = {taken, math.max(0, next_in)}
if taken > 0 or full_at < stored then
  return set_fields(KEYS[1], {ARGV[1], string.format('%.0f', full_at + taken * interval)}) or reply
end
return reply
