-- Counts the newest entries of the event stream, for the rate of expiries.
--
-- KEYS[1] -> sweeperd:events  STREAM
--
-- ARGV[1] -> the end, ms on this server's clock
-- ARGV[2] -> how many entries at most
--
-- Returns {how many entries were read, how many of them are expiries, ms of the oldest one}; {0, 0, 0} without entries.
-- An entry with `only_for` is a replay and no expiry.

local entries = redis.call('XREVRANGE', KEYS[1], '+', ARGV[1], 'COUNT', ARGV[2])
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
return {#entries, expiries, tonumber(string.match(entries[#entries][1], '^%d+'))}
