-- Counts the newest entries of the event stream, to compute the expiry rate of each kind.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- ARGV[1] -> how far back, ms;  ARGV[2] -> the most entries to read
-- Returns {entries read, ms since the oldest one, then each kind and its expiries}; {0, 0} without entries. The ms
-- are negative if the clock was set back. The kind of a reservation is empty. An entry with `only_for` is a replay and
-- isn't counted as an expiry.

-- @include clock

local start = math.max(0, clock.now - ARGV[1])
local entries = redis.call('XREVRANGE', KEYS[1], '+', string.format('%d', start), 'COUNT', ARGV[2])
if #entries == 0 then
  return {0, 0}
end
local expiries = {}
for i = 1, #entries do
  local fields = entries[i][2]
  if fields[#fields - 1] ~= 'only_for' then
    local kind = ''
    for j = 1, #fields, 2 do
      if fields[j] == 'kind' then
        kind = fields[j + 1]
        break
      end
    end
    expiries[kind] = (expiries[kind] or 0) + 1
  end
end
local found = {#entries, clock.now - tonumber(string.match(entries[#entries][1], '^%d+'))}
for kind, count in pairs(expiries) do
  found[#found + 1], found[#found + 2] = kind, count
end
return found
