-- Writes the records of cycles-server for one event: the event, an entry in two indexes, and for each subscription a
-- pending delivery for the dispatcher. If run again, the script writes nothing twice: an existing record stays, because
-- a delivery may have been sent by then.
--
-- KEYS[1] -> event:<event id>       STRING  the event, JSON
-- KEYS[2] -> events:<tenant>        ZSET    event id -> the event's time, ms
-- KEYS[3] -> events:_all            ZSET    the same for all tenants
-- KEYS[4] -> dispatch:pending       LIST    delivery ids; the dispatcher takes them from the right
-- KEYS[5], KEYS[7], ... -> delivery:<delivery id>           STRING  a delivery, JSON
-- KEYS[6], KEYS[8], ... -> deliveries:<subscription id>     ZSET    delivery id -> when it was made, ms
--
-- ARGV[1] -> event id;  ARGV[2] -> event, JSON;  ARGV[3] -> the event's time, ms;  ARGV[4] -> its lifetime, seconds
-- ARGV[5] -> now, ms;  ARGV[6] -> how long a delivery is kept, seconds
-- ARGV[7], ARGV[9], ... -> delivery id;  ARGV[8], ARGV[10], ... -> delivery, JSON
--
-- Returns how many deliveries were made.
--
-- The first write, LPUSH or else SET, needs memory: if Redis is full, the write is refused and nothing has changed.
-- After the first write nothing can fail, since the rights and the types of all other keys have been checked. LPUSH is
-- a check of its own right: no form of LPUSH changes nothing.

-- @include rights

redis.call('ZCARD', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('LLEN', KEYS[4])
local missing = {}
for i = 5, #KEYS, 2 do
  redis.call('ZCARD', KEYS[i + 1])
  if redis.call('EXISTS', KEYS[i]) == 0 then
    missing[#missing + 1] = i
  end
end
local is_new = redis.call('EXISTS', KEYS[1]) == 0
local refused
if is_new then
  refused = no_right('SET', KEYS[1]) or no_right('ZADD', KEYS[2]) or no_right('ZADD', KEYS[3])
end
for i = 1, #missing do
  refused = refused or no_right('SET', KEYS[missing[i]]) or no_right('ZADD', KEYS[missing[i] + 1])
end
if refused then
  return refused
end
for i = 1, #missing do
  redis.call('LPUSH', KEYS[4], ARGV[missing[i] + 2])
end
if is_new then
  redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[4])
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
end
for _, i in ipairs(missing) do
  redis.call('SET', KEYS[i], ARGV[i + 3], 'EX', ARGV[6])
  redis.call('ZADD', KEYS[i + 1], ARGV[5], ARGV[i + 2])
end
return #missing
