-- Samples an index: the key, the TTL and a few fields of each entry. Read-only.
--
-- KEYS[1] -> the index                 ZSET  id -> deadline, ms
-- KEYS[2..] -> the hashes of the entries
--
-- ARGV[1] -> how many fields to read, then the names of the fields, then the ids
--
-- Returns {id, score, type of the key, PTTL of the key, {value or nil, ...}} for each entry that is still in the index.
-- The values are empty if the key is not a hash.

local count, found = tonumber(ARGV[1]), {}
local fields = {unpack(ARGV, 2, count + 1)}
for i = 2, #KEYS do
  local id = ARGV[count + i]
  local score = redis.call('ZSCORE', KEYS[1], id)
  if score then
    local type = redis.call('TYPE', KEYS[i]).ok
    local values = type == 'hash' and count > 0 and redis.call('HMGET', KEYS[i], unpack(fields)) or {}
    found[#found + 1] = {id, score, type, redis.call('PTTL', KEYS[i]), values}
  end
end
return found
