-- Makes the consumer group of an endpoint, and the stream where it is missing, at maxmemory too.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- KEYS[2] -> sweeperd:groups  HASH    group that began in the past -> when it was made, JSON
-- ARGV[1] -> the group
-- ARGV[2] -> its position: it gets the events after this id
-- ARGV[3] -> `backfill`: it is new and begins in the past; `new`: it begins now; empty: it is made again where it was;
--            `replay`: it is made again, but only while the replay has not ended, so while its note is there
-- Returns 1; 0 where another process has made the group, or where the replay has ended.
--
-- XACK comes first and acknowledges nothing. It needs no memory, so it is allowed at maxmemory, and after it XGROUP and
-- HSET are.

-- @include clock

local note = redis.call('HGET', KEYS[2], ARGV[1]) -- where the key is of another type, fail here, before the first write
if ARGV[3] == 'replay' and not note then
  return 0
end
redis.call('XACK', KEYS[1], ARGV[1], '0-0')
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM')
if made.err then
  return string.find(tostring(made.err), 'BUSYGROUP', 1, true) and 0 or made
end
if ARGV[3] == 'backfill' then
  redis.call('HSET', KEYS[2], ARGV[1], '{"made_at":' .. clock.now_text .. '}')
elseif ARGV[3] == 'new' then
  redis.call('HDEL', KEYS[2], ARGV[1]) -- of an earlier endpoint of this name
end
return 1
