-- Removes keys of sweeperd, if nothing that has to stay has come since the caller looked.
--
-- KEYS[1] -> sweeperd:events        STREAM
-- KEYS[2] -> sweeperd:dead-letters  STREAM
-- KEYS[3] -> sweeperd:quarantine    ZSET
-- KEYS[4] -> sweeperd:processes     HASH
-- KEYS[5], ... -> the keys to remove
-- ARGV[1], ARGV[2] -> the last ids that the streams had generated, 0-0 without a stream
-- ARGV[3] -> how many entries were in quarantine;  ARGV[4] -> how many processes were known
-- Returns 1, or 0 if it has removed nothing.

local function last_id(key)
  if redis.call('EXISTS', key) == 0 then
    return '0-0'
  end
  local info = redis.call('XINFO', 'STREAM', key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return info[i + 1]
    end
  end
end

for i = 1, 2 do
  if last_id(KEYS[i]) ~= ARGV[i] then
    return 0
  end
end
if redis.call('ZCARD', KEYS[3]) ~= tonumber(ARGV[3]) or redis.call('HLEN', KEYS[4]) ~= tonumber(ARGV[4]) then
  return 0
end
redis.call('UNLINK', unpack(KEYS, 5))
return 1
