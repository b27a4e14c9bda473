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

-- @include last_id

for i = 1, 2 do
  if (last_id(KEYS[i]) or '0-0') ~= ARGV[i] then
    return 0
  end
end
if redis.call('ZCARD', KEYS[3]) ~= tonumber(ARGV[3]) or redis.call('HLEN', KEYS[4]) ~= tonumber(ARGV[4]) then
  return 0
end
redis.call('UNLINK', unpack(KEYS, 5))
return 1
