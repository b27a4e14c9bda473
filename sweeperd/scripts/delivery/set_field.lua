-- Sets fields of a hash, even at maxmemory.
--
-- KEYS[1] -> HASH
-- ARGV[1], ARGV[2] -> a field and its value;  ARGV[3], ARGV[4] -> the next ones, and so on
-- Returns 1.
--
-- HDEL comes first. It removes nothing and needs no memory: at maxmemory Redis accepts it, and then the HSET that
-- follows.

-- @include rights

local refused = no_right('HDEL', KEYS[1]) or no_right('HSET', KEYS[1])
if refused then
  return refused
end
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
