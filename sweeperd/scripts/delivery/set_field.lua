-- Sets a field of a hash at maxmemory too.
--
-- KEYS[1] -> HASH
-- ARGV[1] -> the field;  ARGV[2] -> the value
-- Returns 1.
--
-- HDEL comes first and removes nothing. HDEL needs no memory: if Redis is at maxmemory, HDEL is still accepted, and so
-- is HSET after HDEL.

-- @include rights

local refused = no_right('HDEL', KEYS[1]) or no_right('HSET', KEYS[1])
if refused then
  return refused
end
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
