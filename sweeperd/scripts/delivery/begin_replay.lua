-- Begins a replay: creates its consumer group and its note, even at maxmemory.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- KEYS[2] -> sweeperd:groups  HASH    group -> its note, JSON
-- ARGV[1] -> the group;  ARGV[2] -> the group's position: it receives the events after this id
-- ARGV[3] -> the first event of the replay;  ARGV[4] -> the note
-- Returns `begun`; `running` if the group has a replay already; `gone` if the first event was trimmed from the stream.
--
-- A group without a note is left behind when an operator deletes the hash.

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
redis.call('XACK', KEYS[1], ARGV[1], '0-0') -- acknowledges nothing; for maxmemory: see rights.lua
redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
return 'begun'
