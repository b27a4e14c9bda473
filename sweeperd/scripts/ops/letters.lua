-- Counts a page of dead letters by endpoint. Read-only.
--
-- KEYS[1] -> sweeperd:dead-letters  STREAM
-- ARGV[1] -> the id to start at, with `(` before an id that is already counted
-- ARGV[2] -> the page size
-- Returns {the last id, endpoint, count, endpoint, count, ...}; {} at the end of the stream.

local letters = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
if #letters == 0 then
  return {}
end
local counts = {}
for i = 1, #letters do
  local fields = letters[i][2]
  for j = 1, #fields, 2 do
    if fields[j] == 'endpoint' then
      local endpoint = fields[j + 1]
      counts[endpoint] = (counts[endpoint] or 0) + 1
      break
    end
  end
end
local reply = {letters[#letters][1]}
for endpoint, count in pairs(counts) do
  reply[#reply + 1], reply[#reply + 2] = endpoint, count
end
return reply
