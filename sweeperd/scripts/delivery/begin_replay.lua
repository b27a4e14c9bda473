-- Begins a replay: makes the consumer group and the note of the replay, at maxmemory too.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- KEYS[2] -> sweeperd:groups  HASH    group -> its note, JSON
-- ARGV[1] -> the group;  ARGV[2] -> the position of the group: the group gets the events after this id
-- ARGV[3] -> the first event of the replay;  ARGV[4] -> the note
-- Returns `begun`; `running` if a replay is in this group; `gone` if the first event is in the stream no more.
--
-- XACK comes first and acknowledges nothing. It needs no memory: if Redis is at maxmemory, XACK is still accepted, and
-- so are XGROUP and HSET after XACK. A group without a note is left if an operator deleted the hash.

-- @include rights

if redis.call('HGET', KEYS[2], ARGV[1]) then
  return 'running'
end
if #redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3]) == 0 then
  return 'gone'
end
local refused = no_right('XACK', KEYS[1]) or no_right('XGROUP', KEYS[1], 'DESTROY')
  or no_right('XGROUP', KEYS[1], 'CREATE') or no_right('HSET', KEYS[2])
if refused then
  return refused
end
redis.call('XACK', KEYS[1], ARGV[1], '0-0')
redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
return 'begun'
