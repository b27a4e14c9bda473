-- Counts the newest entries of the event stream, to compute the expiry rate.
--
-- KEYS[1] -> sweeperd:events  STREAM
--
-- ARGV[1] -> how far back, ms
-- ARGV[2] -> the most entries to read
--
-- Returns {entries read, expiries among them, ms since the oldest one}; {0, 0, 0} without entries. The ms are negative
-- if the clock was set back. An entry with `only_for` is a replay and isn't counted as an expiry.

-- @include clock

local start = math.max(0, clock.now - ARGV[1])
local entries = redis.call('XREVRANGE', KEYS[1], '+', string.format('%d', start), 'COUNT', ARGV[2])
if #entries == 0 then
  return {0, 0, 0}
end
local expiries = 0
for i = 1, #entries do
  local fields = entries[i][2]
  if fields[#fields - 1] ~= 'only_for' then
    expiries = expiries + 1
  end
end
return {#entries, expiries, clock.now - tonumber(string.match(entries[#entries][1], '^%d+'))}
