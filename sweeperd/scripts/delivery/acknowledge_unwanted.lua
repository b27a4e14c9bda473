-- Acknowledges events that no living process wants, unless the filters have changed since the events were judged.
--
-- KEYS[1] -> sweeperd:events   STREAM
-- KEYS[2] -> sweeperd:filters  HASH    `version`: see note_filters.lua
-- ARGV[1] -> the group;  ARGV[2] -> the version that the events were judged by; empty if there were no notes
-- ARGV[3..] -> the ids of the events
-- Returns how many events were pending, or -1 if the version has changed and nothing was acknowledged.
--
-- XACK is the only write.

-- @include effects

if (redis.call('HGET', KEYS[2], 'version') or '') ~= ARGV[2] then
  return -1
end
return redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 3))
