-- Makes the consumer group of an endpoint, and the stream where it is missing, at maxmemory too.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- ARGV[1] -> the group
-- ARGV[2] -> its position: it gets the events after this id
-- Returns 1; 0 where another process has made the group.
--
-- XACK comes first and acknowledges nothing. It needs no memory, so it is allowed at maxmemory, and after it XGROUP is.

redis.call('XACK', KEYS[1], ARGV[1], '0-0')
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM')
if not made.err then
  return 1
end
return string.find(tostring(made.err), 'BUSYGROUP', 1, true) and 0 or made
