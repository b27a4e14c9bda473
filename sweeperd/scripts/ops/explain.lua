-- Dry run of expire.lua: its decision and its writes at this moment.
--
-- KEYS[1..4], ARGV[1..5] -> the keys and arguments of expire.lua, in the same order
-- Returns {the reply of expire.lua, {{command, key, ...}, ...}, {change, ...}}: the reply, the writes, and the counters
-- that they would change (recorder.lua).
--
-- The text of expire.lua is included below. It runs with a `redis` that records writes instead of sending them.

-- @include recorder

local reply, imitation, writes
do
  imitation, writes = recorder(redis, KEYS[1])
  local redis = imitation
  reply = (function()
    -- @include sweep/expire
  end)()
end
if reply.err then
  return reply
end
return {reply, writes, writes.changes}
